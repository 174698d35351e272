"""A Program along a chain of ops that nothing can cut: what lies between one and the next, and what floats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

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
class Flights:
    """For each segment, how long something is in flight at least that must have landed `before` it ends, and that
    cannot be launched before it begins, `behind` it."""

    before: Sequence[float]
    behind: Sequence[float]

    @staticmethod
    def of(between: Between, loads: Mapping[str, Mapping[int, float]]) -> Flights:
        """Of groups and links that are busy for so long with each collective."""
        count = len(between.chain)
        behind = [count - first for first in between.first]
        return Flights(_busiest(loads, between.last, count), _busiest(loads, behind, count)[::-1])

    @property
    def us(self) -> float:
        """How long something is in flight at least: what must have landed before one of the chain's ops is not in the
        air together with what is launched behind it."""
        return max([self.before[-1], *map(sum, zip(self.before, self.behind[1:], strict=False))])


def _busiest(loads: Mapping[str, Mapping[int, float]], until: Sequence[int], count: int) -> list[float]:
    """For each number up to a count, how long that of which no more than this is said in `until` keeps the busiest
    group or link busy."""
    found = [0.0] * (count + 1)
    for one in loads.values():
        busy = [0.0] * len(found)
        for place, us in one.items():
            busy[until[place]] += us
        found = [*map(max, found, accumulate(busy))]
    return found


@dataclass(frozen=True)
class Between:
    """Where each op is among those of a chain: segment i lies before the chain's op number i, the last one behind all.

    `first[v]` is the first segment in which op v can run, `last[v]` the last one; -1 for the chain's own ops, which run
    in none.
    """

    parts: Parts
    chain: Sequence[int]
    first: Sequence[int]
    last: Sequence[int]

    @staticmethod
    def of(parts: Parts) -> Between:
        chain = longest_chain(parts)
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
        return Between(parts, chain, first, last)

    @cached_property
    def done_before(self) -> list[float]:
        """For each segment, how long the compute stream works on what must be done before it begins."""
        work = [0.0, *(self.parts.us[place] for place in self.chain)]
        for place, us in self.parts.loads["compute"].items():
            if 0 <= self.last[place] < len(self.chain):
                work[self.last[place] + 1] += us
        return list(accumulate(work))

    @cached_property
    def done_behind(self) -> list[float]:
        """For each segment, how long the compute stream works on what cannot be done before it has ended."""
        work = [*(self.parts.us[place] for place in self.chain), 0.0]
        for place, us in self.parts.loads["compute"].items():
            if self.first[place] > 0:
                work[self.first[place] - 1] += us
        return list(accumulate(reversed(work)))[::-1]

    def heads(self) -> list[float]:
        """For each op, how long the compute stream works at least before its first piece can begin."""
        found = [self.done_before[segment] for segment in self.first]
        for number, place in enumerate(self.chain):
            found[place] = self.done_before[number + 1] - self.parts.us[place]
        return found

    def tails(self) -> list[float]:
        """For each op, how long the compute stream works at least after its last piece has ended."""
        found = [self.done_behind[segment] for segment in self.last]
        for number, place in enumerate(self.chain):
            found[place] = self.done_behind[number] - self.parts.us[place]
        return found

    @cached_property
    def flights(self) -> Flights:
        """Those of the collectives that are in flight for certain."""
        return Flights.of(self, {name: loads for name, loads in self.parts.loads.items() if name != "compute"})

    def floating(self, late: Collection[int] = ()) -> list[Floating]:
        """The compute that is in no single segment. What is `late` begins in the segment behind its first one."""
        work = self.parts.loads["compute"].items()
        spans = ((place, self.first[place], self.last[place], us) for place, us in work)
        return [Floating(first + (place in late), last, us) for place, first, last, us in spans if first < last]

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
