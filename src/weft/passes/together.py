"""Collectives of different groups in flight at the same time.

Compute is slower while anything is in flight, and no slower if two things are. So what a group has to send is moved,
where there is a choice, to when others are sending anyway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from weft.sim.sketch import Piece, Placement, Run, Sketch

_REACH = 3  # how many flights of others are looked at, from where a collective would be by itself


def moved_together(sketch: Sketch, placement: Placement, run: Run, latest: Sequence[float], group: str) -> Placement:
    """The placement with the flights of one group moved to those of the others.

    None begins later than `latest`, and those of the group keep their order.
    """
    pieces = sketch.pieces
    flights = _Flights(
        (begin, land) for piece, begin, land in zip(pieces, run.begins, run.lands, strict=True) if piece.group != group
    )
    launch = list(placement.launch)
    members = [number for number in placement.order if pieces[number].group == group]
    dues = [*accumulate((pieces[number].due for number in reversed(members)), min)][::-1]  # of it and all behind it
    slot, free = 0, 0.0
    for number, due in zip(members, dues, strict=True):
        end = min(due, bisect_right(run.slots, latest[number]) - 1)
        slot = launch[number] = _best_slot(pieces[number], run.slots, flights, (slot, end), free)
        free = max(free, run.slots[slot]) + pieces[number].us
    rank = {number: place for place, number in enumerate(placement.order)}
    order = sorted(rank, key=lambda number: (launch[number], rank[number]))
    return Placement(tuple(launch), tuple(map(max, launch, placement.wait)), tuple(order))


def moved_to_gathers(sketch: Sketch, placement: Placement, run: Run, latest: Sequence[float]) -> Placement:
    """The placement with all that frees memory launched where the next gather is, behind it, if that is not too late.

    So the flights of one group follow each other without a gap, and those of others are beside them.
    """
    pieces, launch = sketch.pieces, list(placement.launch)
    slots = sorted({launch[number] for number, piece in enumerate(pieces) if piece.grows})
    for number, piece in enumerate(pieces):
        place = bisect_left(slots, piece.ready)
        last = min(piece.due, bisect_right(run.slots, latest[number]) - 1)
        if not piece.grows and place < len(slots) and slots[place] <= last:
            launch[number] = slots[place]
    rank = {number: place for place, number in enumerate(placement.order)}
    order = sorted(rank, key=lambda number: (launch[number], not pieces[number].grows, rank[number]))
    return Placement(tuple(launch), tuple(map(max, launch, placement.wait)), tuple(order))


def _best_slot(piece: Piece, times: Sequence[float], flights: _Flights, bounds: tuple[int, int], free: float) -> int:
    """The slot from which most of a piece is in flight beside others: of those, what makes memory that is used in the
    step takes the last, and all else the first. `bounds` are the first and the last slot that it may have; its group is
    not `free` before that time."""
    first = max(piece.ready, bounds[0])
    end = max(first, bounds[1])
    late = piece.grows and piece.used < len(times) - 1
    spans = flights.before(times[end]) if late else flights.behind(max(times[first], free))
    wanted = {end if late else first}
    for begin, land in spans:  # with its beginning, or with its end
        for time in (begin, land - piece.us):
            near = bisect_left(times, time)
            wanted |= {near - 1, near}
    slots = sorted((slot for slot in wanted if first <= slot <= end), reverse=late)
    return max(slots, key=lambda slot: flights.beside(max(times[slot], free), piece.us))


class _Flights:
    """The times at which something is in flight."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._spans = _joined(spans)
        self._begins = [begin for begin, _ in self._spans]

    def beside(self, begin: float, us: float) -> float:
        """How long a flight of so many microseconds has company."""
        found, place = 0.0, max(bisect_right(self._begins, begin) - 1, 0)
        while place < len(self._spans) and self._begins[place] < begin + us:
            found += max(0.0, min(self._spans[place][1], begin + us) - max(self._begins[place], begin))
            place += 1
        return found

    def before(self, time: float) -> Sequence[tuple[float, float]]:
        """The last few that begin before a time."""
        place = bisect_right(self._begins, time)
        return self._spans[max(place - _REACH, 0) : place]

    def behind(self, time: float) -> Sequence[tuple[float, float]]:
        """The next few that end behind a time."""
        place = max(bisect_right(self._begins, time) - 1, 0)
        return self._spans[place : place + _REACH]


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The times that are in any of the spans, in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
