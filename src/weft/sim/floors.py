"""The least that a collective can take, whatever bucket it is put in and however it is cut."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt

from weft.cost.model import CostModel
from weft.ir.program import Collective

_SLACK = 0.005  # how far below the true infimum a certified rate may be


@dataclass(frozen=True)
class Floors:
    """Lower bounds from a cost model that is monotone in bytes.

    `most` is the number of bytes that the largest bucket of a group could have: all that the group communicates.
    """

    cost: CostModel
    most: Mapping[str, int]
    _rates: dict[Collective, float] = field(default_factory=dict)

    def load_us(self, collective: Collective, nbytes: int) -> float:
        """The time that `nbytes` keep the group's stream busy at the very least, as part of anything."""
        if collective not in self._rates:
            self._rates[collective] = min(sum(map(self._rate, way)) for way in _ways(collective))
        return nbytes * self._rates[collective]

    def least_us(self, collective: Collective) -> float:
        """The time that any piece of it takes, however small."""
        return min(sum(self.cost.collective_us(one, 1) for one in way) for way in _ways(collective))

    def _rate(self, collective: Collective) -> float:
        """Microseconds for a byte at the best size."""
        most = max(1, self.most.get(collective.group.name, 1))
        return least_rate(lambda nbytes: self.cost.collective_us(collective, nbytes), most)


def _ways(collective: Collective) -> list[tuple[Collective, ...]]:
    """A collective as itself, and as what it can be replaced by."""
    if collective.kind != "all_reduce":
        return [(collective,)]
    scatter = replace(collective, kind="reduce_scatter")
    gather = replace(collective, kind="all_gather", reduce_op="")
    return [(collective,), (scatter, gather)]


def least_rate(us: Callable[[int], float], most: int) -> float:
    """A lower bound on us(b) / b for every b from 1 to `most`, at most half a percent below the least of them.

    Between a and b a monotone function is at least us(a), so its rate is at least us(a) / b. The stretch with the
    lowest such figure is halved until that figure is close to a rate that is really reached.
    """
    reached = us(most) / most
    stretches = [(us(1) / most, 1, most)]  # (a rate that nothing in it is below, its first size, its last)
    while True:
        low, first, last = heapq.heappop(stretches)
        if low >= reached * (1 - _SLACK) or first == last:
            return min(low, reached)
        middle = isqrt(first * last)
        for begin, end in ((first, middle), (middle + 1, last)):
            time = us(begin)
            reached = min(reached, time / begin)
            heapq.heappush(stretches, (time / end, begin, end))
