"""The bound that goes along a chain of ops that nothing can cut, from one to the next. docs/bounds.md has the proof."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.sim.parts import Parts


@dataclass(frozen=True)
class Segment:
    """What lies between two neighbours of a chain, and so in the time between them.

    - `compute`: how long the compute stream works on that
    - `flight`: how long something of it is in flight
    - `path`: how long its longest path is
    """

    compute: float
    flight: float
    path: float


@dataclass(frozen=True)
class Floating:
    """Work of the compute stream that may be done in any segment from `first` to `last`."""

    first: int
    last: int
    us: float


def segments_us(parts: Parts, slowdown: float, busiest: float) -> float:
    """The step is no shorter than this. `busiest` is how long something is in flight in all."""
    found = _Between.of(parts, longest_chain(parts))
    work, segments, floating = sum(parts.loads["compute"].values()), found.segments(), found.floating()
    slowed = 1 - 1 / slowdown
    by_flight = [max(0.0, one.flight * (1 - slowed) - one.compute) for one in segments]
    by_path = [max(0.0, max(one.flight, one.path) - one.compute - one.flight * slowed) for one in segments]
    return work + max(
        busiest * slowed + unfilled(by_flight, floating),
        sum(one.flight for one in segments) * slowed + unfilled(by_path, floating),
    )


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


def longest_chain(parts: Parts) -> list[int]:
    """The ops that cannot be cut on the path that would be longest if nothing were cut, in order."""
    length: list[float] = []
    by: list[int] = []  # through which op the longest path leads to each, -1 for none
    for place, edges in enumerate(parts.before):
        best = max(edges, key=lambda edge: length[edge[0]], default=(-1, False))[0]
        by.append(best)
        length.append(parts.us[place] + (length[best] if best >= 0 else 0.0))
    place = max(range(len(length)), key=length.__getitem__, default=-1)
    found = []
    while place >= 0:
        if parts.whole[place]:
            found.append(place)
        place = by[place]
    return found[::-1]


@dataclass(frozen=True)
class _Between:
    """Where each op is among those of a chain: segment i lies before the chain's op number i, the last one behind all.

    `first[v]` is the first segment in which op v can run, `last[v]` the last one; -1 for the chain's own ops, which run
    in none.
    """

    parts: Parts
    chain: Sequence[int]
    first: Sequence[int]
    last: Sequence[int]

    @staticmethod
    def of(parts: Parts, chain: Sequence[int]) -> _Between:
        number = {place: index for index, place in enumerate(chain)}
        count = len(parts.before)
        first, last = [0] * count, [len(chain)] * count
        for place, edges in enumerate(parts.before):
            for other, _ in edges:
                first[place] = max(first[place], number[other] + 1 if other in number else first[other])
        for place in reversed(range(count)):
            for other, _ in parts.before[place]:
                last[other] = min(last[other], number.get(place, last[place]))
        for place in chain:
            first[place] = last[place] = -1
        return _Between(parts, chain, first, last)

    def floating(self) -> list[Floating]:
        """The compute that is in no single segment."""
        work = self.parts.loads["compute"].items()
        spans = ((self.first[place], self.last[place], us) for place, us in work)
        return [Floating(first, last, us) for first, last, us in spans if first < last]

    def segments(self) -> list[Segment]:
        found = {name: [0.0] * (len(self.chain) + 1) for name in self.parts.loads}
        for name, loads in self.parts.loads.items():
            for place, us in loads.items():
                if 0 <= self.first[place] == self.last[place]:
                    found[name][self.first[place]] += us
        compute, paths = found.pop("compute"), self._paths()
        flights = [max(loads, default=0.0) for loads in zip(*found.values(), strict=True)] or [0.0] * len(paths)
        return [Segment(*one) for one in zip(compute, flights, paths, strict=True)]

    def _paths(self) -> list[float]:
        """For each segment the longest path in it, from the op before it to the one behind it or to the step's end."""
        parts, number = self.parts, {place: index for index, place in enumerate(self.chain)}
        found = [0.0] * (len(self.chain) + 1)
        times: list[tuple[float, float]] = []  # as the heads of Parts, from the end of the op before the segment on
        for place, edges in enumerate(parts.before):
            segment = number.get(place, self.first[place])
            begin = end = 0.0
            for other, soft in edges:
                if self.first[other] != segment:
                    continue
                begin = max(begin, times[other][0] + parts.pieces[other] if soft else times[other][1])
                end = max(end, times[other][1] + parts.pieces[place])
            times.append((begin, max(end, begin + parts.us[place])))
            if place in number:
                found[segment] = begin
            elif segment == len(self.chain):
                found[segment] = max(found[segment], times[place][1])
        return found
