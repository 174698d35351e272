"""Ranks that measured different times go on with the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf, nan
from statistics import median
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from tests.run.ranks import Rank, Server, kill_me, serving
from weft.errors import AgreementError, CostError
from weft.run.alignment import aligned
from weft.run.store import SharedStore, digest, packed, plain

pytestmark = pytest.mark.usefixtures("soon")

LIMIT_S = 2.0  # of which 1.5 are spent on waiting
LONG_S = 300.0  # whoever waits for anybody with this limit does not end soon
TIMES = [{"mm": 0.1, "add": 3.0}, {"mm": 0.3, "mul": 0.7}, {"mm": 0.2, "add": 4.0}, {"mm": 1e-9, "add": 5.5}]


def measured(
    store: Store, rank: int, ranks: list[int], key: str, times: dict[str, float], timeout_s: float
) -> dict[str, float]:
    """`aligned`, as it is called in another process."""
    return aligned(store, rank, ranks, key, times, timeout_s=timeout_s)


def posts_and_dies(store: Store, rank: int, ranks: list[int], key: str, times: dict[str, float]) -> None:
    with SharedStore(store, LIMIT_S) as shared:
        shared.write_once(cell(key, f"{rank}/own"), packed(times))
        shared.write_once(cell(key, rank), plain(ranks))
    kill_me()


def cell(key: str, name: object) -> str:
    return f"times/{digest(key)}/{name}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests that do not harm it; each has keys of its own."""
    with serving() as one:
        yield one


def results(server: Server, key: str, count: int, timeout_s: float, absent: int | None = None) -> list[Any]:
    everybody = list(range(count))
    here = [rank for rank in everybody if rank != absent]
    ranks = [Rank(server, measured, rank, everybody, key, TIMES[rank], timeout_s) for rank in here]
    return [rank.result() for rank in ranks]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (2, {"add": 3.0, "mm": (0.1 + 0.3) / 2, "mul": 0.7}),
        (3, {"add": 3.5, "mm": 0.2, "mul": 0.7}),
        (4, {"add": 4.0, "mm": (0.1 + 0.2) / 2, "mul": 0.7}),
    ],
)
def test_all_get_the_median(server: Server, count: int, expected: dict[str, float]) -> None:
    found = results(server, f"all {count}", count, LONG_S)
    assert found == [expected] * count
    assert [list(one) for one in found] == [sorted(expected)] * count  # in one order, too


@pytest.mark.parametrize(
    ("absent", "expected"), [(0, {"add": 4.0, "mm": 0.25, "mul": 0.7}), (2, {"add": 3.0, "mm": 0.2, "mul": 0.7})]
)
def test_one_that_is_absent_does_not_count(server: Server, absent: int, expected: dict[str, float]) -> None:
    """Rank 0 would have led; the others do without."""
    assert results(server, f"absent {absent}", 3, LIMIT_S, absent) == [expected] * 2


@pytest.mark.parametrize("late", [0, 1])
def test_one_that_comes_too_late_gets_what_the_others_have(server: Server, late: int) -> None:
    key, other = f"late {late}", 1 - late
    ranks = [
        Rank(server, measured, other, [0, 1], key, TIMES[other], LIMIT_S),
        Rank(server, measured, late, [0, 1], key, TIMES[late], LONG_S, after_s=LIMIT_S),
    ]
    assert [rank.result() for rank in ranks] == [TIMES[other]] * 2


def test_one_that_leads_and_is_killed_counts_if_it_has_posted(server: Server) -> None:
    dead = Rank(server, posts_and_dies, 0, [0, 1], "killed", TIMES[0])
    assert dead.result() == "killed"
    rank = Rank(server, measured, 1, [0, 1], "killed", TIMES[1], LIMIT_S)
    assert rank.result() == {"add": 3.0, "mm": 0.2, "mul": 0.7}


def test_what_was_aligned_stays(server: Server) -> None:
    first, _ = results(server, "again", 2, LONG_S)
    assert aligned(server.store(), 1, [0, 1], "again", {"mm": 99.0}, timeout_s=LONG_S) == first


def test_other_ranks_under_the_same_key_are_others() -> None:
    store = HashStore()
    assert aligned(store, 0, [0], "key", {"mm": 1.0}, timeout_s=LONG_S) == {"mm": 1.0}
    assert aligned(store, 1, [1], "key", {"mm": 2.0}, timeout_s=LONG_S) == {"mm": 2.0}


def test_ranks_of_a_mesh_that_name_different_others_get_the_same_at_once() -> None:
    """Each talks to one in its row and one in its column, and to the fourth through either."""
    store, mesh = HashStore(), {0: [0, 1, 2], 1: [0, 1, 3], 2: [0, 2, 3], 3: [1, 2, 3]}
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda rank: measured(store, rank, mesh[rank], "mesh", {"mm": 1.0 + rank}, LONG_S), mesh)
    assert [*found] == [{"mm": 2.5}] * 4


def test_one_that_is_absent_from_a_mesh_does_not_keep_the_others_apart() -> None:
    store, mesh = HashStore(), {0: [0, 1, 2], 1: [0, 1, 3], 2: [0, 2, 3]}
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda rank: measured(store, rank, mesh[rank], "mesh", {"mm": 1.0 + rank}, LIMIT_S), mesh)
    assert [*found] == [{"mm": 2.0}] * 3


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_that_fails_is_an_error(killed: bool) -> None:
    with serving() as server:
        rank = Rank(server, measured, 1, [0, 1], "fails", TIMES[1], LIMIT_S)
        store = server.store()
        while not store.check([f"weft/{cell('fails', 1)}"]):
            sleep(0.01)
        if killed:
            server.end()
        else:
            server.stop()
        error = rank.result()
    assert isinstance(error, AgreementError)
    why = "failed: DistNetworkError: " if killed else "did not answer within the limit of 2 s"
    assert str(error).startswith(f"times fails: rank 1 cannot learn those of the others: the store {why}")


@pytest.mark.parametrize("value", ["noise", packed([1]), packed({"mm": -1}), packed({"mm": "1"}), packed({"mm": True})])
def test_what_is_in_the_store_is_data(value: str) -> None:
    store = HashStore()
    weft = PrefixStore("weft", store)
    weft.set(cell("times", "1/own"), value)
    weft.set(cell("times", 1), plain([0, 1]))
    assert aligned(store, 0, [0, 1], "times", TIMES[0], timeout_s=LONG_S) == TIMES[0]
    weft.set(cell("result", "0/median"), value)
    with pytest.raises(AgreementError, match=r"^times result: what the store holds as their median is damaged$"):
        aligned(store, 0, [0], "result", TIMES[0], timeout_s=LONG_S)


@pytest.mark.parametrize("value", ["noise", "7", "[-1]", "[true]", "[" * 100_000])
def test_an_entry_that_names_nobody_does_not_count(value: str) -> None:
    store = HashStore()
    weft = PrefixStore("weft", store)
    weft.set(cell("entry", "1/own"), packed(TIMES[1]))
    weft.set(cell("entry", 1), value)
    assert aligned(store, 0, [0, 1], "entry", TIMES[0], timeout_s=LONG_S) == TIMES[0]


@pytest.mark.parametrize("us", [-1.0, nan, inf])
def test_a_time_that_cannot_be_is_refused(us: float) -> None:
    with pytest.raises(CostError, match=f"^a measured time must be a number of at least 0, not {us} for mm$"):
        aligned(HashStore(), 0, [0], "key", {"mm": us}, timeout_s=LONG_S)


def test_more_than_a_store_should_hold_is_refused() -> None:
    times = {digest(number): float(number) for number in range(60_000)}
    with pytest.raises(AgreementError, match=r"bytes are more than the 1048576 that ranks exchange through the store$"):
        aligned(HashStore(), 0, [0], "key", times, timeout_s=LONG_S)


@settings(max_examples=20)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6)), min_size=2, max_size=4),
    st.just([0.0] * 4) | st.lists(st.sampled_from([0.0, 0.0, 0.149, 0.15, 0.151, 0.3]), min_size=4, max_size=4),
)
def test_whatever_the_moment_all_have_the_same(times: list[dict[str, float]], moments: list[float]) -> None:
    store = HashStore()
    found: dict[int, dict[str, float]] = {}
    punctual = not any(moments[: len(times)])

    def run(rank: int) -> None:
        sleep(moments[rank])
        with suppress(AgreementError):  # a machine that is busy may leave it too little time
            found[rank] = measured(store, rank, everybody, "key", times[rank], LONG_S if punctual else 0.2)

    everybody = list(range(len(times)))
    with ThreadPoolExecutor(len(times)) as pool:
        list(pool.map(run, everybody))  # raises what any of them raises
    assert len({repr(one) for one in found.values()}) <= 1
    if punctual:
        names = {name for one in times for name in one}
        expected = {name: median([one[name] for one in times if name in one]) for name in names}
        assert found == dict.fromkeys(everybody, expected)
