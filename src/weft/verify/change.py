"""A Program and the one that was made from it, with what several rules ask of the two: each thing is found out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weft.ir.program import Program
from weft.verify.heirs import Heirs
from weft.verify.proofs import Proofs
from weft.verify.sights import Sights, sights


@dataclass(frozen=True)
class Change:
    """What the rules between two Programs are given. The names and definitions of both must be in order."""

    before: Program
    after: Program

    @cached_property
    def heirs(self) -> Heirs:
        """Who stands for whom."""
        return Heirs(self.before, self.after)

    @cached_property
    def sights(self) -> tuple[Sights, Sights]:
        """What is seen in `before` and in `after`."""
        return sights(self.before, self.after, self.heirs)

    @cached_property
    def proofs(self) -> Proofs:
        """What collectives that are not the same can be shown to have in common."""
        return Proofs(self.before, self.after, self.heirs)

    @cached_property
    def starts(self) -> dict[str, tuple[str, ...]]:
        """For each collective of `after`, those of `before` that it stands for. It may be inside a matmul."""
        known, origins = self.before, self.heirs.origins
        return {
            op.name: tuple(name for name in origins(op) if known[name].collective is not None)
            for op in self.after.communicating
        }
