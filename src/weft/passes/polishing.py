"""Small steps from a good order to a better one: each op is tried at other places, with those that must come along.

The effort is counted in ops that are simulated, not in seconds, so that every rank gives up at the same point. It is
for small programs: a large one would use it up before every op has been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.cost.prices import Prices
from weft.ir.program import Program
from weft.sim.streams import Flight, Streams, link_shares

_EFFORT = 200_000
_CHECK = 4  # to ask whether an order is within the limits is as much effort as to simulate it so many times


@dataclass
class _Clock:
    """How long a program takes in a given order; `left` is how many ops may still be simulated."""

    program: Program
    priced: Prices
    left: int

    def __post_init__(self) -> None:
        index = self.program.index
        self._start_of = {index[wait]: index[start] for wait, start in pairs(self.program).start.items()}
        us = self.priced.comm_us
        self._shares = {place: link_shares(links, us[place]) for place, links in self.priced.links.items()}

    def score(self, order: Sequence[int]) -> tuple[float, float]:
        """How long the step takes, and of those that take as long, how late the collectives land: the less the better.
        Rounded, so that noise is no gain."""
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
        last = max(streams.now, streams.drain())
        return round(last, 6), round(sum(flight.end for flight in streams.landed.values()), 6)


def polished(
    program: Program, priced: Prices, order: Sequence[int], still: Collection[int], fits: Callable[[list[int]], bool]
) -> list[int]:
    """The order, or a better one. Ops that are `still`, and inputs, are not tried elsewhere; `fits` says whether an
    order is within the limits."""
    clock = _Clock(program, priced, _EFFORT)
    if len(order) ** 2 > clock.left:
        return list(order)
    original = clock.score(order)
    best, score = _climbed(clock, order, original, still, fits)
    return best if score[0] < original[0] else list(order)


def _climbed(
    clock: _Clock,
    order: Sequence[int],
    score: tuple[float, float],
    still: Collection[int],
    fits: Callable[[list[int]], bool],
) -> tuple[list[int], tuple[float, float]]:
    """Better and better orders, until there is no better one in reach or the effort is used up."""
    program = clock.program
    fixed = {*still, *(place for place, op in enumerate(program.ops) if op.is_input)}
    before = [frozenset(earlier) for earlier in dependencies(program).before]
    best, improved = list(order), True
    while improved:
        improved = False
        for place in (place for place in list(best) if place not in fixed):
            for candidate in _elsewhere(best, place, before, fixed):
                if clock.left < len(order):
                    return best, score
                found = clock.score(candidate)
                if found < score:
                    clock.left -= _CHECK * len(order)
                    if fits(candidate):
                        best, score, improved = candidate, found, True
                        break
    return best, score


def _elsewhere(
    order: list[int], place: int, before: Sequence[frozenset[int]], fixed: Collection[int]
) -> Iterator[list[int]]:
    """The order with one op at other places, the nearest first: up together with what it needs, down with what needs
    it. Ops that are fixed are not taken along."""
    here = order.index(place)
    ups, downs = _up(order, here, before, fixed), _down(order, here, before, fixed)
    for up, down in zip_longest(ups, downs):
        if up is not None:
            yield up
        if down is not None:
            yield down


def _up(order: list[int], here: int, before: Sequence[frozenset[int]], fixed: Collection[int]) -> Iterator[list[int]]:
    along, needed, passed = [order[here]], set(before[order[here]]), list[int]()
    for there in reversed(range(here)):
        other = order[there]
        if other in needed:
            if other in fixed:
                return
            along.insert(0, other)
            needed |= before[other]
        else:
            passed.insert(0, other)
            yield [*order[:there], *along, *passed, *order[here + 1 :]]


def _down(order: list[int], here: int, before: Sequence[frozenset[int]], fixed: Collection[int]) -> Iterator[list[int]]:
    along, passed = [order[here]], list[int]()
    for there in range(here + 1, len(order)):
        other = order[there]
        if before[other].isdisjoint(along):
            passed.append(other)
            yield [*order[:here], *passed, *along, *order[there + 1 :]]
        elif other in fixed:
            return
        else:
            along.append(other)
