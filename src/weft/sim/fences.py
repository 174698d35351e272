"""Where pieces of what lies between two collectives might be put together. docs/bounds.md has the use of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.sim.stretches import NOTHING, Fence, Work

Edge = tuple[int, int]  # from one op of a list to another, by their places in it


def fences(works: Sequence[Work], edges: Sequence[Edge], width: float) -> tuple[Fence, ...]:
    """For some ops in order, with the edges between them: what comes before an edge, with the op that it comes from,
    and what comes behind it, with the op that it leads to.

    They are a choice for whoever makes a schedule, so that a fence with less on both sides stands for another one. One
    stands for all that have as much before them, by whole multiples of `width`.
    """
    before, behind = [1 << place for place in range(len(works))], [1 << place for place in range(len(works))]
    for earlier, later in sorted(edges, key=lambda edge: edge[1]):
        before[later] |= before[earlier]
    for earlier, later in sorted(edges, reverse=True):
        behind[earlier] |= behind[later]
    found: dict[int, Fence] = {}
    for earlier, later in edges:
        fence = Fence(_sum(works, before[earlier]), _sum(works, behind[later]))
        place = int(fence.before.us / width) if width > 0 else 0
        known = found.get(place, fence)
        found[place] = Fence(_less(known.before, fence.before), _less(known.behind, fence.behind))
    return tuple(found[place] for place in sorted(found))


def _sum(works: Sequence[Work], places: int) -> Work:
    """Some of the works, given as bits; rounded, as sums of the same in another order are not the same."""
    return total([work for place, work in enumerate(works) if places >> place & 1])


def total(works: Sequence[Work]) -> Work:
    """All of some works; rounded, so that those of layers are found to be alike."""
    dearer = zip(NOTHING.dearer, *(work.dearer for work in works), strict=True)
    return Work(round(sum(work.us for work in works), 9), tuple(round(sum(one), 9) for one in dearer))


def _less(one: Work, other: Work) -> Work:
    return Work(min(one.us, other.us), tuple(map(min, one.dearer, other.dearer)))
