"""Small steps from a good order to a better one: each op is tried at other places.

The effort is counted in ops that are simulated, not in seconds, so that every rank gives up at the same point. It is
for small programs: a large one would use it up before every op has been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.cost.prices import Prices
from weft.ir.program import Program
from weft.sim.streams import Flight, Streams

_EFFORT = 400_000


@dataclass
class _Clock:
    """How long a program takes in a given order; `left` is how many ops may still be simulated."""

    program: Program
    priced: Prices
    left: int

    def __post_init__(self) -> None:
        index = self.program.index
        self._start_of = {index[wait]: index[start] for wait, start in pairs(self.program).start.items()}
        known, us = self.priced.links, self.priced.comm_us
        self._shares = {
            place: {link: min(1.0, busy / us[place]) for link, busy in links.items() if us[place] > 0}
            for place, links in known.items()
        }

    def step_us(self, order: Sequence[int]) -> float:
        self.left -= len(order)
        streams = Streams(self.priced.slowdown)
        for place in order:
            op = self.program.ops[place]
            if op.comm is not None:
                us, shares = self.priced.comm_us[place], self._shares[place]
                streams.launch(Flight(place, op.comm.group.name, us, shares, streams.now))
            elif op.is_wait:
                if place in self._start_of:
                    streams.wait(self._start_of[place])
            else:
                streams.compute(self.priced.us[place])
        return max(streams.now, streams.drain())


def polished(
    program: Program, priced: Prices, order: Sequence[int], still: Collection[int], fits: Callable[[list[int]], bool]
) -> list[int]:
    """The order, or a better one. Ops that are `still`, and inputs, are not tried elsewhere; `fits` says whether an
    order is within the limits."""
    clock = _Clock(program, priced, _EFFORT)
    before = [frozenset(earlier) for earlier in dependencies(program).before]
    best, best_us = list(order), clock.step_us(order)
    improved = len(order) ** 2 <= _EFFORT
    while improved:
        improved = False
        for place in list(best):
            if place in still or program.ops[place].is_input:
                continue
            for candidate in _elsewhere(best, place, before):
                if clock.left < len(order):
                    return best
                us = clock.step_us(candidate)
                if us < best_us * (1 - 1e-9) and fits(candidate):
                    best, best_us, improved = candidate, us, True
                    break
    return best


def _elsewhere(order: list[int], place: int, before: Sequence[frozenset[int]]) -> Iterator[list[int]]:
    """The order with one op at every other place that its dependencies allow, the nearest first."""
    here = order.index(place)
    rest = order[:here] + order[here + 1 :]
    first = here
    while first > 0 and rest[first - 1] not in before[place]:
        first -= 1
    last = here
    while last < len(rest) and place not in before[rest[last]]:
        last += 1
    for there in sorted(range(first, last + 1), key=lambda there: (abs(there - here), there)):
        if there != here:
            yield [*rest[:there], place, *rest[there:]]
