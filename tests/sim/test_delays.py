"""By how much segments are longer than the work in them: by hand, and against trying everything."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.sim.between import Floating
from weft.sim.delays import Delay, least_delay
from weft.sim.rows import Member, Row

OPTIONS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4)
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3)), max_size=3)


@given(OPTIONS, st.integers(0, 8))
def test_a_delay_is_convex_and_never_above_the_best_way(options: list[tuple[int, int]], work: int) -> None:
    found = Delay.of([(float(delay), float(gap)) for delay, gap in options])
    assert found.us == min(delay + gap for delay, gap in options)
    assert [price for price, _ in found.gaps] == sorted({price for price, _ in found.gaps}, reverse=True)
    assert all(0 < price <= 1 + 1e-9 for price, _ in found.gaps)
    assert _with(found, work) <= min(delay + max(0, gap - work) for delay, gap in options) + 1e-9


def _with(delay: Delay, work: float) -> float:
    """What is left of a delay if so much work that floats is done in the segment."""
    left = delay.us
    for price, width in delay.gaps:
        left -= price * min(work, width)
        work -= min(work, width)
    return left


@given(st.lists(OPTIONS, min_size=3, max_size=3), SPANS)
def test_no_way_to_do_floating_work_delays_less(
    ways: list[list[tuple[int, int]]], spans: list[tuple[int, ...]]
) -> None:
    delays = [Delay.of([(float(delay), float(gap)) for delay, gap in options]) for options in ways]
    floating = [Floating(min(a, b), max(a, b), float(us)) for a, b, us in spans]
    units = [one for one in floating for _ in range(int(one.us))]
    best = inf
    for places in product(*(range(one.first, one.last + 1) for one in units)):
        best = min(best, sum(_with(delay, places.count(number)) for number, delay in enumerate(delays)))
    assert least_delay(delays, floating) <= best + 1e-9


# Rows: a segment with a matmul of 40 us before a collective of 30 us, and one of 60 us behind it.

COMPUTE = (((0, 0), 40.0), ((1, 1), 60.0))
NEVER = 1e6  # us: what nobody would do


def member(cut: tuple[float, ...], inside: float | None = None) -> Member:
    return Member("tp", 30.0, cut, inside)


def delay_of(
    *members: Member, compute: tuple[tuple[tuple[int, int], float], ...] = COMPUTE, slowdown: float = 1.0
) -> float:
    return Row(members, compute).delay(slowdown).us


def test_a_whole_collective_is_beside_nothing() -> None:
    assert delay_of(member((NEVER,) * 5)) == 30.0


def test_a_whole_collective_is_beside_what_is_on_neither_side_of_it() -> None:
    beside = (*COMPUTE, ((0, 1), 20.0))
    assert delay_of(member((NEVER,) * 5), compute=beside) == 10.0


def test_pieces_are_beside_other_pieces() -> None:
    # In two pieces, half of what comes before is done first, and half of what comes behind at last: 20 + 70 + 30.
    assert delay_of(member((70.0, *[NEVER] * 4))) == pytest.approx(20.0)
    # In four: 10 + 80 + 15, where nobody waits for more than 5 us.
    assert delay_of(member((NEVER, NEVER, 80.0, NEVER, NEVER))) == pytest.approx(5.0)


def test_inside_a_matmul_it_adds_what_it_adds() -> None:
    assert delay_of(member((70.0, *[NEVER] * 4), inside=12.0)) == 12.0


def test_what_is_inside_a_matmul_or_whole_parts_those_that_are_cut() -> None:
    cut, never = (36.0, *[NEVER] * 4), (NEVER,) * 5
    compute = (((0, 0), 40.0), ((1, 1), 60.0), ((2, 2), 40.0))
    # Both cut, 20 + 36 + 36 + 20 us: hidden. Only one of them cut: what is whole comes on top.
    assert delay_of(member(cut), member(cut), compute=compute) == 0.0
    assert delay_of(member(cut), member(never), compute=compute) == 30.0
    assert delay_of(member(cut), member(never, inside=7.0), compute=compute) == 7.0


def test_what_is_in_flight_slows_compute_down() -> None:
    # Half of the 30 us that it takes whole; the other half is idle.
    assert Row((member((NEVER,) * 5),), COMPUTE).delay(2.0) == Delay(30.0, ((1.0, 15.0),))


def test_groups_are_busy_at_the_same_time() -> None:
    one, other = member((50.0,) * 5), Member("dp", 30.0, (60.0,) * 5, None)
    compute = (((0, 0), 0.0), ((1, 1), 10.0), ((2, 2), 0.0))
    assert delay_of(one, other, compute=compute) == 50.0  # 60 us, of which 10 us are worked
