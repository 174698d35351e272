"""The least that a collective can take, whatever bucket it is put in and however it is cut."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isqrt

from weft.cost.model import CostModel, HardwareModel
from weft.ir.program import Collective

_SLACK = 0.001  # how far below the true infimum a certified rate may be

# Given a collective, as it is or as a part of what replaces it: how many bytes its largest bucket could have.
Most = Callable[[Collective], int]


@dataclass
class Floors:
    """Lower bounds from a cost model that is monotone in bytes.

    All sizes of largest buckets have to be known before the first rate is asked for, so that no stretch of sizes is
    looked at twice: first `expect` every collective, then ask.
    """

    cost: CostModel
    _sizes: dict[Collective, set[int]] = field(default_factory=dict)
    _rates: dict[Collective, Mapping[int, float]] = field(default_factory=dict)

    def expect(self, collective: Collective, most: Most) -> None:
        """Say that this collective will be asked about."""
        for way in ways_of(collective):
            for one in way:
                self._sizes.setdefault(one, set()).add(most(one))

    def load_us(self, collective: Collective, nbytes: int, most: Most) -> float:
        """The time that `nbytes` keep the group's stream busy at the very least, as part of anything."""
        return nbytes * min(sum(self._rate(one, most(one)) for one in way) for way in ways_of(collective))

    def link_us(self, hardware: HardwareModel, collective: Collective, nbytes: int, most: Most) -> Mapping[str, float]:
        """The time that `nbytes` keep each link busy at the very least, as part of anything: what the link takes for
        them at full bandwidth or, where collectives are faster than that, what they take."""
        ways = [self._links(hardware, way, nbytes, most) for way in ways_of(collective)]
        return {link: min(way.get(link, 0.0) for way in ways) for link in ways[0]}

    def _links(
        self, hardware: HardwareModel, way: Sequence[Collective], nbytes: int, most: Most
    ) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for one in way:
            load = nbytes * self._rate(one, most(one))
            for link, busy in hardware.link_us(one, nbytes).items():
                found[link] = found.get(link, 0.0) + min(busy, load)
        return found

    def least_us(self, collective: Collective) -> float:
        """The time that any piece of it takes, however small."""
        return min(sum(self.cost.collective_us(one, 1) for one in way) for way in ways_of(collective))

    def _rate(self, collective: Collective, most: int) -> float:
        """Microseconds for a byte at the best size up to `most`."""
        if collective not in self._rates:
            sizes = self._sizes[collective]
            self._rates[collective] = least_rates(lambda nbytes: self.cost.collective_us(collective, nbytes), sizes)
        return self._rates[collective][most]


def ways_of(collective: Collective) -> list[tuple[Collective, ...]]:
    """A collective as itself, and as what it can be replaced by, in order."""
    if collective.kind != "all_reduce":
        return [(collective,)]
    scatter = replace(collective, kind="reduce_scatter")
    gather = replace(collective, kind="all_gather", reduce_op="")
    return [(collective,), (scatter, gather)]


def least_rates(us: Callable[[int], float], sizes: Iterable[int]) -> Mapping[int, float]:
    """For each size n, a lower bound on us(b) / b for every b from 1 to n, a thousandth below the least at most.

    Between a and b a monotone function is at least us(a), so its rate is at least us(a) / b. The stretch with the
    lowest such figure is halved until that figure is close to a rate that is really reached.
    """
    found: dict[int, float] = {}
    begin, certified, reached = 1, inf, inf
    for size in sorted(set(sizes)):
        low, reached = _least(us, begin, size, reached)
        certified = min(certified, low)
        found[size], begin = certified, size + 1
    return found


def _least(us: Callable[[int], float], begin: int, end: int, known: float) -> tuple[float, float]:
    """A rate that no size from `begin` to `end` is below, or that is close enough to the least rate that is reached,
    there or as `known` from smaller sizes; and that least rate."""
    reached = min(known, us(end) / end)
    stretches = [(us(begin) / end, begin, end)]  # (a rate that nothing in it is below, its first size, its last)
    while True:
        low, first, last = heapq.heappop(stretches)
        if low >= reached * (1 - _SLACK) or first == last:
            return min(low, reached), reached
        middle = isqrt(first * last)
        for start, stop in ((first, middle), (middle + 1, last)):
            time = us(start)
            reached = min(reached, time / start)
            heapq.heappush(stretches, (time / stop, start, stop))
