"""Ranks agree on a graph, or do not, and in either case all of them do the same, and in time."""

from __future__ import annotations

import json
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from tests.run.ranks import Rank, Server, kill_me, serving
from weft.errors import AgreementError
from weft.run.agreement import Verdict, agree
from weft.run.entries import Claim, announce, write_entry
from weft.run.session import Session
from weft.run.store import SharedStore, digest, packed, plain

pytestmark = pytest.mark.usefixtures("soon")

HEADER = ("weft 0.1.0", "torch 2.13.0", "machine h100-ib400, sha256 0123")
LINES = ("all_gather over 0: 0, 3, 4", "all_gather over 0: 1", "reduce_scatter over 0: 2")
LIMIT_S = 2.0  # of which 1.5 are spent on waiting
LONG_S = 300.0  # whoever waits for anybody with this limit does not end soon
UNKNOWN = (
    "graph step: rank 0 cannot learn whether the ranks agreed: {}. They may run the optimised graph or the one as "
    "written, and with the wrong one this rank would hang them all; start the job again"
)
LATE = "late or absent, as nothing came for 1.5 s"


def claim(*ranks: int, key: str = "step", header: tuple[str, ...] = HEADER, lines: tuple[str, ...] = LINES) -> Claim:
    return Claim(key, header, lines, ranks)


def yes(made: Claim) -> Verdict:
    return Verdict(True, terms=made)


def claims(store: Store, rank: int, made: Claim, timeout_s: float = LIMIT_S, again: bool = False) -> Verdict:
    """`agree`, as it is called in another process."""
    return agree(store, rank, made, timeout_s=timeout_s, again=again)


def posts(store: Store, rank: int, made: Claim) -> None:
    """Claim something, and wait for nothing."""
    with SharedStore(store, LIMIT_S) as shared:
        write_entry(shared, made.key, rank, announce(shared, made))


def posted(server: Server) -> None:
    """Return when rank 0 has claimed the step."""
    store = server.store()
    while not store.check([f"weft/claims/{digest('step')}/0"]):
        sleep(0.01)


def posts_and_dies(store: Store, rank: int, made: Claim) -> None:
    posts(store, rank, made)
    kill_me()


class Failing(Store):
    """A store in this process to which nothing can be added any more once it `fails`."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self.fails = False

    def check(self, keys: list[str]) -> bool:
        return {*keys} <= self.values.keys()

    def set(self, key: str, value: Any) -> None:
        if self.fails:
            raise OSError("full")
        self.values[key] = value

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self.values.setdefault(key, desired)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests that do not harm it; each has keys of its own."""
    with serving() as one:
        yield one


def results(server: Server, made: dict[int, Claim], timeout_s: float = LIMIT_S) -> list[Any]:
    ranks = [Rank(server, claims, rank, one, timeout_s) for rank, one in made.items()]
    return [rank.result() for rank in ranks]


# All are there


@pytest.mark.parametrize("count", [2, 4])
def test_all_claim_the_same(server: Server, count: int) -> None:
    made = claim(*range(count), key=f"all {count}")
    assert results(server, dict.fromkeys(range(count), made), LONG_S) == [yes(made)] * count


@pytest.mark.parametrize(
    ("name", "other", "why"),
    [
        (
            "plan",
            claim(lines=(LINES[0], "all_gather over 0: 1, 5", LINES[2])),
            'collective 1 is "all_gather over 0: 1" on ranks 0..2, "all_gather over 0: 1, 5" on rank 3',
        ),
        (
            "shorter",
            claim(lines=LINES[:2]),
            'collective 2 is "reduce_scatter over 0: 2" on ranks 0..2, nothing on rank 3',
        ),
        (
            "torch",
            claim(header=("weft 0.1.0", "torch 2.12.1", HEADER[2]), lines=()),
            '"torch 2.13.0" on ranks 0..2, "torch 2.12.1" on rank 3',
        ),
        (
            "machine",
            claim(header=(*HEADER[:2], "machine h100-ib400, sha256 4567")),
            '"machine h100-ib400, sha256 0123" on ranks 0..2, "machine h100-ib400, sha256 4567" on rank 3',
        ),
    ],
    ids=["plan", "shorter", "torch", "machine"],
)
def test_one_differs(server: Server, name: str, other: Claim, why: str) -> None:
    made = claim(*range(4), key=name)
    other = replace(other, key=name, ranks=made.ranks)
    verdicts = results(server, {0: made, 1: made, 2: made, 3: other}, LONG_S)
    proposal = made if other.header == made.header else None  # those who decide by the same may all do what one does
    assert verdicts == [Verdict(False, f"graph {name}: {why}", proposal=proposal)] * 4


def test_ranks_of_a_mesh_agree_through_each_other(server: Server) -> None:
    """Of two by two ranks, each communicates with two others, and reaches the last through them."""
    made = {0: claim(0, 1, 2), 1: claim(0, 1, 3), 2: claim(0, 2, 3), 3: claim(1, 2, 3)}
    mesh = {rank: replace(one, key="mesh") for rank, one in made.items()}
    assert results(server, mesh, LONG_S) == [yes(one) for one in mesh.values()]
    torn = {rank: replace(one, key="torn mesh") for rank, one in made.items()}
    torn[3] = replace(torn[3], lines=())
    why = 'graph torn mesh: collective 0 is "all_gather over 0: 0, 3, 4" on ranks 0..2, nothing on rank 3'
    assert results(server, torn, LONG_S) == [Verdict(False, why, proposal=torn[0])] * 4


@pytest.mark.parametrize("keys", [("stage 0", "stage 1"), ("stages", "stages")])
def test_pipeline_stages_have_nothing_to_do_with_each_other(server: Server, keys: tuple[str, str]) -> None:
    first, second = claim(0, 1, key=keys[0]), claim(2, 3, key=keys[1], lines=LINES[1:])
    torn = replace(second, lines=("broadcast over 1: 7",))
    why = f'graph {keys[1]}: collective 0 is "all_gather over 0: 1" on rank 2, "broadcast over 1: 7" on rank 3'
    no = Verdict(False, why, proposal=second)
    assert results(server, {0: first, 1: first, 2: second, 3: torn}, LONG_S) == [yes(first), yes(first), no, no]


# Some are not


def test_one_that_is_absent_is_named_by_all(server: Server) -> None:
    made = claim(*range(4), key="absent")
    no = Verdict(False, f"graph absent: rank 2: {LATE}")
    assert results(server, {0: made, 1: made, 3: made}) == [no] * 3


def test_one_that_comes_too_late_does_as_the_others_do(server: Server) -> None:
    made = claim(0, 1, key="late")
    ranks = [Rank(server, claims, 0, made), Rank(server, claims, 1, made, LONG_S, after_s=LIMIT_S)]
    no = Verdict(False, f"graph late: rank 1: {LATE}")
    assert [rank.result() for rank in ranks] == [no, no]


def test_one_that_is_given_up_is_late_also_for_those_whom_nobody_knew_of(server: Server) -> None:
    """Rank 0 gives up on rank 1 before it could hear of rank 2, which comes later, and does not wait."""
    ranks = [Rank(server, claims, 0, claim(0, 1, key="chain"))]
    ranks.append(Rank(server, claims, 2, claim(1, 2, key="chain"), LONG_S, after_s=LIMIT_S))
    assert [rank.result() for rank in ranks] == [Verdict(False, f"graph chain: rank 1: {LATE}")] * 2


def test_one_that_is_killed_before_it_posts_is_named(server: Server) -> None:
    made = claim(0, 1, key="killed before")
    ranks = [Rank(server, claims, 0, made), Rank(server, kill_me)]
    assert [rank.result() for rank in ranks] == [Verdict(False, f"graph killed before: rank 1: {LATE}"), "killed"]


def test_one_that_is_killed_after_it_posted_has_agreed(server: Server) -> None:
    """Its word is there, and all that live read the same."""
    made = claim(0, 1, 2, key="killed after")
    dead = Rank(server, posts_and_dies, 1, made)
    assert results(server, {0: made, 2: made}, LONG_S) == [yes(made), yes(made)]
    assert dead.result() == "killed"


# Compiled again


def test_one_that_compiles_again_follows_alone(server: Server) -> None:
    made = claim(0, 1, key="again")
    assert results(server, {0: made, 1: made}, LONG_S) == [yes(made)] * 2
    store = server.store()
    assert claims(store, 1, made, LONG_S, again=True) == Verdict(True, followed=True, terms=made)
    other = replace(made, lines=("all_reduce over 0: 0", *LINES[1:]))
    why = (
        'graph again: collective 0 is "all_gather over 0: 0, 3, 4" as all ranks agreed before, '
        '"all_reduce over 0: 0" now on rank 1'
    )
    verdict = claims(store, 1, other, LONG_S, again=True)
    assert verdict == Verdict(False, why, terms=made)
    assert verdict.lines == LINES
    assert claims(store, 0, made, LONG_S, again=True) == Verdict(True, followed=True, terms=made)


def test_a_no_stays_a_no() -> None:
    store, made = HashStore(), claim(0, 1)
    no = Verdict(False, "graph step: rank 1: late or absent, as nothing came for 0.15 s")
    assert claims(store, 0, made, 0.2) == no
    assert [claims(store, rank, made, LONG_S, again=True) for rank in (1, 0, 1)] == [no] * 3
    assert no.lines == ()


def test_other_ranks_than_before_are_another_claim() -> None:
    store = HashStore()
    posts(store, 1, claim(0, 1))
    assert claims(store, 0, claim(0, 1), LONG_S).agreed
    why = "graph step: ranks 0, 1 were named before, and now rank 0"
    assert claims(store, 0, claim(0), LONG_S) == Verdict(False, why, terms=claim(0, 1))


def test_nobody_follows_what_those_whom_it_talks_to_had_no_part_in() -> None:
    """Rows of a mesh agreed on something, or not; columns under the same key cannot know of each other."""
    store = HashStore()
    posts(store, 1, claim(0, 1))
    assert claims(store, 0, claim(0, 1), LONG_S).agreed
    assert not claims(store, 2, claim(2, 3), 0.2).agreed
    with pytest.raises(AgreementError) as error:
        claims(store, 0, claim(0, 2), LONG_S)
    assert str(error.value) == UNKNOWN.format("rank 2 took no part in what was agreed on before")


def test_a_graph_over_other_ranks_has_a_key_of_its_own() -> None:
    session = Session()
    rows, columns = (0, 1), (0, 2)
    assert [session.told_apart("step", one) for one in (rows, columns, rows, columns)] == ["step", "step #1"] * 2
    assert session.told_apart("other", columns) == "other"


def test_one_that_is_named_and_does_not_name_back_is_a_difference() -> None:
    store = HashStore()
    posts(store, 1, claim(1))
    why = "graph step: rank 0 communicates with rank 1 in it, but not the other way round"
    assert claims(store, 0, claim(0, 1), LONG_S) == Verdict(False, why)


# The store fails


def test_a_store_that_is_silent_from_the_start_means_no() -> None:
    with serving() as server:
        ranks = [Rank(server, claims, 0, claim(0, 1), 1.0, again, held=True) for again in (False, True)]
        server.stop()
        for rank in ranks:
            rank.go()
        first, again = (rank.result() for rank in ranks)
    silent = "the store did not answer within the limit of 1 s"
    assert first == Verdict(False, f"graph step: rank 0 could not post its claim: {silent}")
    assert isinstance(again, AgreementError)
    assert str(again) == UNKNOWN.format(silent)


def test_a_store_that_falls_silent_leaves_the_outcome_unknown() -> None:
    with serving() as server:
        rank = Rank(server, claims, 0, claim(0, 1))
        posted(server)
        server.stop()
        error = rank.result()  # and it has ended, although a call of it has not
    assert isinstance(error, AgreementError)
    assert str(error) == UNKNOWN.format("the store did not answer within the limit of 2 s")


def test_a_store_that_is_killed_leaves_the_outcome_unknown_to_those_who_posted() -> None:
    with serving() as server:
        ranks = [Rank(server, claims, 0, claim(0, 1)), Rank(server, claims, 1, claim(0, 1), 1.0, held=True)]
        posted(server)
        server.end()
        ranks[1].go()
        error, verdict = (rank.result() for rank in ranks)
    assert isinstance(error, AgreementError)
    assert "rank 0 cannot learn whether the ranks agreed: the store failed: DistNetworkError: " in str(error)
    assert not verdict.agreed
    assert verdict.why.startswith("graph step: rank 1 could not post its claim: the store failed: DistNetworkError: ")


def test_what_fails_after_a_claim_stood_is_unknown() -> None:
    """Also to a process that does not know that it has claimed this before."""
    store = Failing()
    posts(store, 0, claim(0, 1))
    store.fails = True
    with pytest.raises(AgreementError) as error:
        claims(store, 0, claim(0, 1, lines=()), LONG_S)
    assert str(error.value) == UNKNOWN.format("the store failed: OSError: full")


def test_no_thread_is_left_behind() -> None:
    before = threading.enumerate()
    store = HashStore()
    posts(store, 1, claim(0, 1))
    assert claims(store, 0, claim(0, 1), LONG_S).agreed
    assert threading.enumerate() == before


# What is in the store is data

CELL = f"claims/{digest('step')}/1"
PARTS = {"claim": digest([HEADER, LINES]), "ranks": digest([0, 1])}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("\x1b[31m", "the store holds no claim of it, but '·[31m'"),
        ("[" * 100_000, f"the store holds no claim of it, but '{'[' * 60}…'"),
        ("7", "the store holds no claim of it, but '7'"),
        ('{"refused":3}', "the store holds no claim of it, but '{\"refused\":3}'"),
        ('{"claim":1,"ranks":2}', 'the store holds no claim of it, but \'{"claim":1,"ranks":2}\''),
        (json.dumps({**PARTS, "ranks": "nowhere"}), "what it claims is damaged in the store"),
        (json.dumps({**PARTS, "ranks": digest("no list")}), "what it claims is damaged in the store"),
        (json.dumps({**PARTS, "ranks": digest([-1])}), "what it claims is damaged in the store"),
        (json.dumps({**PARTS, "ranks": digest("forged")}), "what it claims is damaged in the store"),
        (json.dumps({**PARTS, "ranks": digest("noise")}), "what it claims is damaged in the store"),
    ],
    ids="escape deep number refusal numbers nowhere text negative forged noise".split(),
)
def test_what_is_no_claim_is_a_reason(value: str, why: str) -> None:
    store = HashStore()
    weft = PrefixStore("weft", store)
    for part in ("no list", [-1]):
        weft.set(f"parts/{digest(part)}", packed(part))
    weft.set(f"parts/{digest('forged')}", packed([0, 1]))
    weft.set(f"parts/{digest('noise')}", "noise")
    weft.set(CELL, value)
    no = Verdict(False, f"graph step: rank 1: {why}")
    assert [claims(store, rank, claim(0, 1), LONG_S) for rank in (0, 1, 0)] == [no] * 3


@pytest.mark.parametrize("part", [packed("text"), packed([[1], [2]]), packed([list(HEADER)]), "noise", ""])
def test_a_claim_that_is_damaged_still_differs(part: str) -> None:
    store, other = HashStore(), claim(0, 1, lines=())
    posts(store, 1, other)
    PrefixStore("weft", store).set(f"parts/{digest([HEADER, ()])}", part)
    why = "claims differ on rank 0 and on rank 1; what is claimed on rank 1 is damaged in the store"
    assert claims(store, 0, claim(0, 1), LONG_S) == Verdict(False, f"graph step: {why}")


def test_a_claim_that_stands_and_is_damaged_cannot_be_followed() -> None:
    store = HashStore()
    posts(store, 1, claim(0, 1))
    assert claims(store, 0, claim(0, 1), LONG_S).agreed
    PrefixStore("weft", store).set(f"parts/{PARTS['claim']}", "noise")
    with pytest.raises(AgreementError, match="the claim that was agreed on is damaged in the store"):
        claims(store, 0, claim(0, 1, lines=()), LONG_S)


def test_long_claims_are_compared_and_endless_ones_refused() -> None:
    store = HashStore()
    long = claim(0, 1, key="long", lines=tuple(f"all_gather over 0: {number}" for number in range(50_000)))
    posts(store, 1, replace(long, lines=(*long.lines[:-1], "x" * 1000)))
    why = f'graph long: collective 49999 is "all_gather over 0: 49999" on rank 0, "{"x" * 200}…" on rank 1'
    assert claims(store, 0, long, LONG_S) == Verdict(False, why, proposal=long)
    endless = claim(0, 1, lines=tuple(digest(number) for number in range(60_000)))
    no = claims(store, 1, endless, LONG_S)
    size = len(b64encode(zlib.compress(plain([endless.header, endless.lines]).encode())))
    why = f"its claim is too large: {size} bytes are more than the 1048576 that ranks exchange through the store"
    assert no == Verdict(False, f"graph step: rank 1: {why}")
    assert claims(store, 0, claim(0, 1), LONG_S) == no


# Whatever happens


PATIENCE_S = 0.15
MOMENTS_S = [0.0, 0.0, 0.0, 0.05, PATIENCE_S - 0.004, PATIENCE_S - 0.001, PATIENCE_S, PATIENCE_S + 0.001, 0.3]


@st.composite
def scenes(draw: st.DrawFn) -> tuple[dict[int, Claim], dict[int, float]]:
    """Up to four ranks with their claims, and when those who come at all come. Whoever is named names back."""
    count = draw(st.integers(2, 4))
    pairs = [(one, other) for one in range(count) for other in range(one)]
    joined = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=len(pairs), unique=True))
    made = {}
    for rank in range(count):
        named = {rank, *(one for pair in joined for one in pair if rank in pair)}
        lines = draw(st.sampled_from([LINES, LINES, LINES, LINES, LINES[1:]]))
        made[rank] = claim(*sorted(named), lines=lines)
    if draw(st.booleans()):
        return made, dict.fromkeys(made, 0.0)
    there = draw(st.lists(st.sampled_from(range(count)), min_size=count - 1, max_size=count, unique=True))
    return made, {rank: draw(st.sampled_from(MOMENTS_S)) for rank in there}


@settings(max_examples=30)
@given(scenes())
def test_ranks_that_reach_each_other_do_the_same(scene: tuple[dict[int, Claim], dict[int, float]]) -> None:
    made, moments = scene
    punctual = moments == dict.fromkeys(made, 0.0)
    verdicts = happening(made, moments, LONG_S if punctual else PATIENCE_S / 0.75)
    assert verdicts.keys() == moments.keys() or not punctual
    for rank, verdict in verdicts.items():
        reached = all_reached(made, rank)
        assert {verdicts[one].agreed for one in reached & verdicts.keys()} == {verdict.agreed}
        assert bool(verdict.why) != verdict.agreed
        same = len({made[one].lines for one in reached}) == 1
        assert not verdict.agreed or (same and reached <= moments.keys())
        assert not punctual or verdict.agreed == same


def happening(made: dict[int, Claim], moments: dict[int, float], timeout_s: float) -> dict[int, Verdict]:
    """The verdicts of ranks that come at these moments, without those who cannot tell."""
    store, verdicts = HashStore(), {}

    def run(rank: int) -> None:
        sleep(moments[rank])
        with suppress(AgreementError):  # a machine that is busy may leave it too little time
            verdicts[rank] = claims(store, rank, made[rank], timeout_s)

    with ThreadPoolExecutor(len(moments)) as pool:
        list(pool.map(run, moments))  # raises what any of them raises
    return verdicts


def all_reached(made: dict[int, Claim], rank: int) -> set[int]:
    found: set[int] = set()
    pending = {rank}
    while pending:
        found |= pending
        pending = {one for other in pending for one in made[other].ranks} - found
    return found
