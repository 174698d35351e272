"""Placements within limits: what makes memory is put off, what frees it is waited for earlier."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.sim.sketch import Placement, Run, Sketch

_TRIES = 4


@dataclass(frozen=True)
class Limits:
    """What a placement may take; None is no limit.

    - `memory`: bytes that may live at any op
    - `in_flight`: bytes of collectives that are launched and not waited for; one alone may always be
    - `keep_order`: collectives of a group keep their order
    """

    memory: int | None = None
    in_flight: int | None = None
    keep_order: bool = False


@dataclass(frozen=True)
class Placed:
    """A placement, how it runs, and the most memory that it takes."""

    placement: Placement
    run: Run
    peak: int

    def over(self, limits: Limits) -> int:
        """By how many bytes it is over the limit."""
        return max(0, self.peak - limits.memory) if limits.memory is not None else 0


def fitted(sketch: Sketch, placement: Placement, limits: Limits) -> Placed:
    """The placement within the limits, if that can be: with waits at the use if there is memory for it, at the landing
    if not, and earlier if that is not enough."""
    if limits.in_flight is not None:
        placement = _few_in_flight(sketch, placement, limits.in_flight)
    placed = _run(sketch, placement)
    if not placed.over(limits):
        return placed
    placed = _run(sketch, _waited_at_landing(sketch, placed))
    for _ in range(_TRIES):
        if not placed.over(limits):
            break
        assert limits.memory is not None, "there is something to be over"
        relieved = _relieved(sketch, placed.placement, limits.memory)
        if limits.keep_order:
            relieved = replace(relieved, launch=tuple(in_order(sketch, relieved.launch)))
        placed = _run(sketch, relieved)
    return placed


def with_room(
    sketch: Sketch, launch: Sequence[int], times: Sequence[float], us: Sequence[float], limit: int
) -> list[int]:
    """The launches, those of pieces that make memory put off until there is room for them, in the order of use."""
    found = [piece.due if piece.grows else slot for piece, slot in zip(sketch.pieces, launch, strict=True)]
    landed = [
        min(max(bisect_left(times, times[slot] + took), slot, piece.settled), piece.used)
        for piece, slot, took in zip(sketch.pieces, launch, us, strict=True)
    ]
    used = sketch.memory(Placement(tuple(found), tuple(landed), ()))
    for number in sorted(range(len(found)), key=lambda number: (sketch.pieces[number].used, number)):
        piece = sketch.pieces[number]
        if not piece.grows:
            continue
        half = 2 * piece.due
        while half > 2 * launch[number] and used[half] + piece.makes <= limit:
            half -= 1
        found[number] = max(min((half + 1) // 2, piece.due), launch[number])
        for place in range(2 * found[number] + 1, 2 * piece.due + 1):
            used[place] += piece.makes
    return found


def in_order(sketch: Sketch, launch: Sequence[int]) -> list[int]:
    """Launches in which no collective overtakes another of its group: pieces are numbered as the program has them."""
    found = list(launch)
    ahead: dict[str, int] = {}
    for number in reversed(range(len(found))):
        piece = sketch.pieces[number]
        found[number] = max(min(found[number], ahead.get(piece.group, found[number])), piece.ready)
        ahead[piece.group] = found[number]
    behind: dict[str, int] = {}
    for number, piece in enumerate(sketch.pieces):
        found[number] = max(found[number], behind.get(piece.group, 0))
        behind[piece.group] = found[number]
    return found


def _run(sketch: Sketch, placement: Placement) -> Placed:
    return Placed(placement, sketch.run(placement), max(sketch.memory(placement), default=0))


def _waited_at_landing(sketch: Sketch, placed: Placed) -> Placement:
    landed = tuple(
        min(max(bisect_left(placed.run.slots, land), piece.settled, slot), piece.used)
        for piece, land, slot in zip(sketch.pieces, placed.run.lands, placed.placement.launch, strict=True)
    )
    return replace(placed.placement, wait=landed)


def _relieved(sketch: Sketch, placement: Placement, limit: int) -> Placement:
    """Wherever there is too much: launches put off, those first whose use is last; then waits brought forward."""
    launch, wait = list(placement.launch), list(placement.wait)
    used = sketch.memory(placement)
    growing = sorted((n for n, one in enumerate(sketch.pieces) if one.grows), key=lambda n: (-sketch.pieces[n].used, n))
    others = [number for number, piece in enumerate(sketch.pieces) if not piece.grows]
    for half in (half for half, nbytes in enumerate(used) if nbytes > limit):
        for number in growing:
            piece = sketch.pieces[number]
            if used[half] <= limit:
                break
            if 2 * launch[number] + 1 <= half <= 2 * piece.due:
                later = min(piece.due, (half + 1) // 2)
                _less(used, 2 * launch[number] + 1, 2 * later, piece.makes)
                launch[number] = later
                wait[number] = max(wait[number], later)
        for number in others:
            piece = sketch.pieces[number]
            sooner = max(piece.settled, launch[number], half // 2 - 1)
            if used[half] > limit and 2 * sooner + 1 < half <= 2 * wait[number] + 1:
                _less(used, 2 * sooner + 2, 2 * wait[number] + 1, piece.frees)
                wait[number] = sooner
    return replace(placement, launch=tuple(launch), wait=tuple(wait))


def _less(used: list[int], first: int, last: int, nbytes: int) -> None:
    for half in range(first, last + 1):
        used[half] -= nbytes


def _few_in_flight(sketch: Sketch, placement: Placement, limit: int) -> Placement:
    """A placement in which the one that was launched first is waited for before there are too many bytes in flight,
    or, if that must not be waited for so early, the next launch is put off."""
    launch, wait = list(placement.launch), list(placement.wait)
    flying: list[int] = []
    for number in placement.order:
        piece = sketch.pieces[number]
        flying = [one for one in flying if wait[one] > launch[number]]
        while flying and sum(sketch.pieces[one].nbytes for one in flying) + piece.nbytes > limit:
            first = min(flying, key=lambda one: (wait[one], launch[one], one))
            if sketch.pieces[first].settled < launch[number] and launch[first] < launch[number]:
                wait[first] = launch[number] - 1
            elif wait[first] < piece.due:
                launch[number] = wait[first] + 1
            else:
                break
            flying = [one for one in flying if wait[one] > launch[number]]
        wait[number] = max(wait[number], launch[number])
        flying.append(number)
    order = sorted(placement.order, key=lambda number: launch[number])
    return Placement(tuple(launch), tuple(wait), tuple(order))
