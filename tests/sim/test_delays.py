"""By how much segments are longer than the work in them: by hand, and against trying everything."""

from __future__ import annotations

from itertools import product
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from weft.sim.between import Floating
from weft.sim.delays import Delay, least_delay

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
