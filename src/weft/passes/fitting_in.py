"""Placements within limits: what makes memory is put off, what frees it is waited for earlier."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from weft.sim.sketch import Piece, Placement, Run, Sketch

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
    """A placement of a sketch, and how it runs. What it takes of memory is found out when somebody asks: where there is
    no limit, nobody does."""

    sketch: Sketch
    placement: Placement
    run: Run

    @cached_property
    def peak(self) -> int:
        """The most memory that it takes."""
        return max(self.sketch.memory(self.placement), default=0)

    @cached_property
    def flying(self) -> int:
        """The most bytes of several in flight at a time."""
        return _most_in_flight(self.sketch, self.placement)

    def over(self, limits: Limits) -> int:
        """By how many bytes it is over the limits."""
        memory = max(0, self.peak - limits.memory) if limits.memory is not None else 0
        return memory + (max(0, self.flying - limits.in_flight) if limits.in_flight is not None else 0)


def fitted(sketch: Sketch, placement: Placement, limits: Limits) -> Placed:
    """The placement within the limits, if that can be: with waits at the use if there is memory for it, at the landing
    if not, and earlier if that is not enough."""
    placed = _run(sketch, placement)
    if not placed.over(limits):
        return placed
    at_landing = _run(sketch, _waited_at_landing(sketch, placed))
    if limits.in_flight is not None:
        # Either the next one is launched later, when one has landed, or what is in flight is waited for sooner.
        later, sooner = (at_landing.placement, True), (placed.placement, False)
        thinned = [_thinned(sketch, one, limits, put_off) for one, put_off in (later, sooner)]
        placed = min((_run(sketch, one) for one in thinned), key=lambda one: (one.over(limits), one.run.step_us))
        if not placed.over(limits):
            return placed
        at_landing = _run(sketch, _waited_at_landing(sketch, placed))
    placed = at_landing
    for _ in range(_TRIES):
        if not placed.over(limits):
            break
        placed = _run(sketch, _relieved_of_all(sketch, placed.placement, limits))
    return placed


def _relieved_of_all(sketch: Sketch, placement: Placement, limits: Limits) -> Placement:
    if limits.memory is not None:
        placement = _relieved(sketch, placement, limits.memory)
    if limits.keep_order:
        launch = in_order(sketch, placement.launch)
        placement = replace(placement, launch=tuple(launch), wait=tuple(map(max, launch, placement.wait)))
    return placement if limits.in_flight is None else _thinned(sketch, placement, limits, True)


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


def stays(sketch: Sketch, piece: Piece) -> bool:
    """Whether a piece is left where it is: then its slot is behind itself, and all others of the slot come later."""
    return piece.fixed and sketch.slots[piece.ready] == sketch.program.index[piece.name]


def in_order(sketch: Sketch, launch: Sequence[int]) -> list[int]:
    """Launches in which no collective overtakes another of its group: pieces are numbered as the program has them."""
    found = list(launch)
    ahead: dict[str, int] = {}
    due: dict[str, int] = {}  # of those behind, the first: a limit may want a piece later than that, and must not
    for number in reversed(range(len(found))):
        piece = sketch.pieces[number]
        due[piece.group] = min(piece.due, due.get(piece.group, piece.due))
        ready = min(piece.ready, due[piece.group])
        found[number] = max(min(found[number], ahead.get(piece.group, found[number])), ready)
        ahead[piece.group] = found[number] - stays(sketch, piece)
    behind: dict[str, int] = {}
    for number, piece in enumerate(sketch.pieces):
        found[number] = max(found[number], behind.get(piece.group, 0))
        behind[piece.group] = found[number]
    return found


def _run(sketch: Sketch, placement: Placement) -> Placed:
    return Placed(sketch, placement, sketch.run(placement))


def _most_in_flight(sketch: Sketch, placement: Placement) -> int:
    """The most bytes that are in flight while several are. What is launched in a slot is launched before its waits."""
    flying: list[tuple[int, int]] = []  # (where it is waited for, its bytes), the first to be waited for first
    nbytes = most = 0
    for number in placement.order:
        while flying and flying[0][0] < placement.launch[number]:
            nbytes -= heapq.heappop(flying)[1]
        heapq.heappush(flying, (placement.wait[number], sketch.pieces[number].nbytes))
        nbytes += sketch.pieces[number].nbytes
        if len(flying) > 1:
            most = max(most, nbytes)
    return most


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


class _Thinning:
    """Launches one after the other, with a limit to the bytes in flight."""

    def __init__(self, sketch: Sketch, placement: Placement, limits: Limits) -> None:
        assert limits.in_flight is not None, "there is something to be over"
        self._pieces, self._limit, self._keep_order = sketch.pieces, limits.in_flight, limits.keep_order
        self._launch, self._wait = list(placement.launch), list(placement.wait)
        self._todo = [(placement.launch[number], rank, number) for rank, number in enumerate(placement.order)]
        self._flying: list[int] = []

    def run(self, put_off: bool) -> Placement:
        order = list[int]()
        heapq.heapify(self._todo)
        while self._todo:
            slot, rank, number = heapq.heappop(self._todo)
            self._flying = [one for one in self._flying if self._wait[one] >= slot]
            if put_off and self._is_put_off(rank, number):
                continue
            self._bring_forward(number)
            if self._too_many(number) and self._is_put_off(rank, number):
                continue
            self._wait[number] = max(self._wait[number], slot)
            self._flying.append(number)
            order.append(number)
        return Placement(tuple(self._launch), tuple(self._wait), tuple(order))

    def _too_many(self, number: int) -> bool:
        together = (*self._flying, number)
        return len(together) > 1 and sum(self._pieces[one].nbytes for one in together) > self._limit

    def _bring_forward(self, number: int) -> None:
        """Wait for those that are used first, until there is room for one more."""
        slot = self._launch[number]
        for one in sorted(self._flying, key=lambda one: (self._wait[one], self._launch[one], one)):
            if self._too_many(number) and max(self._pieces[one].settled, self._launch[one]) < slot:
                self._wait[one] = slot - 1
                self._flying.remove(one)

    def _is_put_off(self, rank: int, number: int) -> bool:
        """If there is no room: launch it when one of those in flight has been waited for, unless that is too late."""
        if not self._too_many(number):
            return False
        slot, piece = min(self._wait[one] for one in self._flying) + 1, self._pieces[number]
        behind = [one for one in self._todo if self._keep_order and self._pieces[one[2]].group == piece.group]
        if slot > min([piece.due, *(self._pieces[other].due for _, _, other in behind)]):
            return False
        if behind:  # they are in the queue, and this one is not: to look through it each time would take long
            queued_anew = {*behind}
            self._todo = [one for one in self._todo if one not in queued_anew]
            heapq.heapify(self._todo)
        for _, turn, other in ((0, rank, number), *behind):
            self._launch[other] = max(self._launch[other], slot)
            self._wait[other] = max(self._wait[other], self._launch[other])
            heapq.heappush(self._todo, (self._launch[other], turn, other))
        return True


def _thinned(sketch: Sketch, placement: Placement, limits: Limits, put_off: bool) -> Placement:
    """A placement in which there are not too many bytes in flight, if that can be: those that are used first are waited
    for sooner, or, if it is to be `put_off`, the next one is launched later."""
    return _Thinning(sketch, placement, limits).run(put_off)
