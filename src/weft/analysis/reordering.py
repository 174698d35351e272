"""That a Program is another one in another order: then what is known of that one need not be found out again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir.program import Program


@dataclass(frozen=True)
class Reordering:
    """How a Program came from another one with the same ops. Every dependency of that one is kept.

    - `order`: for each position, where its op was
    - `place`: for each position of the original, where its op is now
    """

    original: Program
    order: Sequence[int]
    place: Sequence[int]

    @staticmethod
    def of(program: Program, order: Sequence[int]) -> Reordering:
        """Of a Program into an order of its positions."""
        place = [0] * len(order)
        for now, was in enumerate(order):
            place[was] = now
        return Reordering(program, order, place)

    def from_the_first(self) -> Reordering:
        """A reordering of a reordering is one of the first Program."""
        first = reordering(self.original)
        if first is None:
            return self
        order, place = [first.order[was] for was in self.order], [self.place[then] for then in first.place]
        return Reordering(first.original, order, place)


def reordering(program: Program) -> Reordering | None:
    """Which Program this one is a reordering of, if `orders.note_order` was told."""
    return program.fact(unknown)


def unknown(program: Program) -> Reordering | None:
    """What is known of an order that nobody told of."""
    return None
