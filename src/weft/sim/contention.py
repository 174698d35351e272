"""The bound that comes of compute being slower while anything is in flight, and of the ends of the step, where flights
have only so much compute beside them. docs/bounds.md has the proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from weft.sim.between import Between, Flights


def contended_us(found: Between, slowdown: float) -> float:
    """The step is no shorter than this."""
    work, slowed = sum(found.parts.loads["compute"].values()), 1 - 1 / slowdown
    certain = work + found.flights.us * slowed
    return max(
        certain + _at_ends(found, found.flights.behind, slowdown),
        certain + _at_ends(found, _late(found, slowdown), slowdown),
        work + Flights.of(found, found.parts.flights).us * slowed,
    )


def _at_ends(found: Between, late: Sequence[float], slowdown: float) -> float:
    """How much longer the step is at least because of its ends, if something is in flight for so long from the
    beginning of each segment on."""
    work, at_begin, at_both = sum(found.parts.loads["compute"].values()), 0.0, 0.0
    each = zip(found.flights.before, late, found.done_before, found.done_behind, strict=True)
    for before, behind, done, to_do in each:
        at_both = max(at_both, at_begin + max(0.0, behind / slowdown - (work - done)))
        at_begin = max(at_begin, before / slowdown - (work - to_do))
    return max(at_begin, at_both)


def _late(found: Between, slowdown: float) -> list[float]:
    """For each segment, how long something is in flight from its beginning on if all work that floats is done then.

    That is what cannot be launched before, and what the work brings with it, though of each op no more than hides it:
    one that brings more is better done before.
    """
    late = [0.0] * (len(found.chain) + 1)
    for name, loads in found.parts.loads.items():
        if name == "compute":
            continue
        changes = [0.0] * (len(late) + 1)
        for place, us in loads.items():
            changes[0] += us
            changes[found.first[place] + 1] -= us
        for place, us in _brought(found, loads, slowdown):
            changes[found.first[place] + 1] += us
            changes[found.last[place] + 1] -= us
        late = [*map(max, late, accumulate(changes))]
    return late


def _brought(found: Between, loads: Mapping[int, float], slowdown: float) -> Iterator[tuple[int, float]]:
    """Of the load of collectives that float, the shares that are put down to work that leads to them: to each op no
    more than hides it, and the rest to those before it that float with it."""
    work, before = found.parts.loads["compute"], found.parts.before
    left = [0.0] * len(before)
    for place, us in loads.items():
        left[place] = us
    for place in reversed(range(len(left))):
        if not left[place] or found.first[place] == found.last[place]:
            continue
        if us := min(left[place], work.get(place, 0.0) * slowdown):
            yield place, us
        span = found.first[place], found.last[place]
        others = [other for other, _ in before[place] if (found.first[other], found.last[other]) == span]
        for other in others:
            left[other] += (left[place] - us) / len(others)
