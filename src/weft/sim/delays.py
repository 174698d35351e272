"""How long segments are delayed at least, however work that floats is done in them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.sim.between import Floating


@dataclass(frozen=True)
class Delay:
    """By how much a segment is longer than the work that is done in it, at the least.

    It is `us` if nothing is done in it that floats. Such work fills `gaps`: for each microsecond of a gap that is
    filled, the delay is less by the gap's price, from 1 down to 0.
    """

    us: float
    gaps: tuple[tuple[float, float], ...] = ()  # (price, width), the most expensive first

    @staticmethod
    def of(options: Iterable[tuple[float, float]]) -> Delay:
        """Of a segment for which there are several ways, each with a delay in any case, and a gap besides.

        With so much floating work as x, a way costs delay + max(0, gap - x). The least of all ways is not convex in x;
        what is taken is the largest convex function that is nowhere above it.
        """
        ways = [*options]
        corners = sorted({(0.0, min(delay + gap for delay, gap in ways)), *((gap, delay) for delay, gap in ways)})
        hull: list[tuple[float, float]] = []
        for corner in corners:
            if hull and corner[1] >= hull[-1][1]:
                continue
            while len(hull) > 1 and _price(hull[-2], hull[-1]) <= _price(hull[-1], corner):
                hull.pop()
            hull.append(corner)
        gaps = tuple((_price(one, other), other[0] - one[0]) for one, other in pairwise(hull))
        return Delay(hull[0][1], gaps)


def _price(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How much is saved for each microsecond from one corner to the other."""
    return (one[1] - other[1]) / (other[0] - one[0])


def least_delay(delays: Sequence[Delay], floating: Sequence[Floating]) -> float:
    """How long all segments together are delayed at least.

    The amounts of work that can be done in the segments are a polymatroid, so it is best to fill the most expensive
    gaps first; and how much of all gaps down to a price is filled then is as much as can be filled of these alone.
    """
    prices = sorted({price for delay in delays for price, _ in delay.gaps}, reverse=True)
    saved = 0.0
    for price, following in pairwise([*prices, 0.0]):
        gaps = [sum(width for one, width in delay.gaps if one >= price) for delay in delays]
        saved += (price - following) * (sum(gaps) - unfilled(gaps, floating))
    return sum(delay.us for delay in delays) - saved


def unfilled(gaps: Sequence[float], floating: Iterable[Floating]) -> float:
    """How much is left of the gaps at least, one in each segment, however work is done in them.

    What must be done first is done first; that fills most, as a segment has no use for work of earlier ones.
    """
    coming = sorted(floating, key=lambda one: one.first)
    waiting: list[tuple[int, float]] = []  # (the last segment where it can be done, what is left of it)
    place, left = 0, 0.0
    for number, gap in enumerate(gaps):
        while place < len(coming) and coming[place].first <= number:
            heapq.heappush(waiting, (coming[place].last, coming[place].us))
            place += 1
        while gap > 0 and waiting:
            last, us = heapq.heappop(waiting)
            if last < number:
                continue
            if us > gap:
                heapq.heappush(waiting, (last, us - gap))
            gap = max(0.0, gap - us)
        left += gap
    return left
