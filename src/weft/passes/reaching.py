"""How far back a bucket of a chain can reach, found in one go along the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.sim.sketch import Piece


@dataclass(frozen=True)
class Room:
    """What a bucket may have: bytes, and, of gathers, memory. `least` says what each half-slot needs without it."""

    nbytes: float
    memory: int | None = None
    least: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _Run:
    """Pieces that follow each other, as one. `held`: the most that `least` says from the use of the piece behind them
    to the use of the first of them."""

    ready: int
    due: int
    settled: int
    used: int
    nbytes: int
    makes: int
    held: int

    def __add__(self, other: _Run) -> _Run:
        return _Run(
            max(self.ready, other.ready),
            min(self.due, other.due),
            max(self.settled, other.settled),
            min(self.used, other.used),
            self.nbytes + other.nbytes,
            self.makes + other.makes,
            max(self.held, other.held),
        )

    def fits(self, room: Room) -> bool:
        if self.ready > self.due or self.settled > self.used or self.nbytes > room.nbytes:
            return False
        return room.memory is None or self.held + self.makes <= room.memory


def reaches(pieces: Sequence[Piece], room: Room) -> list[int]:
    """For each piece of a chain, the first that it can be in a bucket with. Gathers stand by their uses, latest first.

    What fits still fits without its first or its last piece. So from one piece to the next the first never moves back,
    and each piece is taken in once and left out once. Nothing can be taken out of a sum of maxima: `front` has the sums
    of all ends of the older half, the longest last, and `back` that of the younger one (a queue made of two stacks).
    """
    found: list[int] = []
    front: list[_Run] = []
    back: list[_Run] = []  # one sum, or none
    first = 0
    between = [_run(piece, _held(piece, after, room)) for piece, after in pairwise(pieces)]
    for last, piece in enumerate(pieces):
        end = _run(piece, 0)
        while first < last and not _sum([*front[-1:], *back, end]).fits(room):
            if not front:
                back = []
                for place in range(last - 1, first - 1, -1):
                    front.append(_sum([between[place], *front[-1:]]))
            front.pop()
            first += 1
        found.append(first)
        back = [_sum([*back, between[last]])] if last < len(between) else []
    return found


def _run(piece: Piece, held: int) -> _Run:
    return _Run(piece.ready, piece.due, piece.settled, piece.used, piece.nbytes, piece.makes, held)


def _held(piece: Piece, after: Piece, room: Room) -> int:
    """All that a gather makes lives from its first use to the last of its bucket's."""
    return max(room.least[2 * after.used : 2 * piece.used + 1]) if room.memory is not None else 0


def _sum(runs: Sequence[_Run]) -> _Run:
    whole = runs[0]
    for run in runs[1:]:
        whole = whole + run
    return whole
