"""Proofs that a collective may be gone, or another one stand for it, though not the same bytes are sent.

They rest on terms (`analysis/terms.py`), which both Programs are told in: the same gather of the same value is one
term however often it is done, a cast of a gather is a gather of a cast, a rank's own part of an all-reduce is a
reduce-scatter, and a gather of everybody's own part of what all have is what all have. What the pass says is asked
only for who stands for whom; that those are equal is found out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weft.analysis.storages import storages
from weft.analysis.term_table import Table
from weft.analysis.terms import Terms, terms
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.specs import Spec, TensorSpec
from weft.verify.heirs import Heirs

_Claim = tuple[str, str]  # a value of `before`, and one of `after` that stands for it


@dataclass(frozen=True)
class Proofs:
    """What is needed to prove it of any collective of two Programs."""

    before: Program
    after: Program
    heirs: Heirs

    def proved(self, was: Iterable[Op], now: Iterable[Op]) -> bool:
        """Whether whatever stands for a result of the starts `was` is equal to it, and `now` are of some use.

        Nobody may write to any of these values, and those that were returned apart may not become one.
        """
        had, has = self._terms
        old_ones, new_ones = list(was), list(now)
        claims = self._claimed(old_ones, new_ones)
        if not self._may_be_shared(old_ones, new_ones, claims):
            return False
        sent_on = {has.sent.get(op.name) for op in new_ones}  # the first half of an all-reduce is what the second sends
        wanted = {op.name: has.of.get(op.name) for op in new_ones if has.of.get(op.name) not in sent_on}
        if not all(term in self._values[0] for term in wanted.values()):
            return False
        if len(wanted) > len({had.of.get(op.name) for op in old_ones}):  # nothing is done twice
            return False
        if not wanted and not all(had.of.get(op.name) in self._values[1] for op in old_ones):
            return False
        return all(self._equal(one, heir) for one, heir in claims)

    def without_repeats(self, was: Sequence[Op], now: Sequence[Op]) -> tuple[Op, ...]:
        """The starts `was` without those that gave what one before them gave, if `now` may give it to all at once."""
        if not self._may_be_shared(was, now, self._claimed(was, now)):
            return tuple(was)
        had = self._terms[0].of
        # A term is the same in any shape. One that nobody knows is not like any other.
        first: dict[tuple[Any, ...], Op] = {}
        for op in was:
            first.setdefault((had.get(op.name, op.name), *map(_type, op.out)), op)
        return tuple(first.values())

    def _claimed(self, was: Sequence[Op], now: Sequence[Op]) -> list[_Claim]:
        """Who stands for whom among the values of these starts."""
        known, knows = storages(self.before), storages(self.after)
        were_there, are_there = self._claims
        claims = [one for op in was for storage in known.of_value(op.name) for one in were_there.get(storage, ())]
        claims += [one for op in now for storage in knows.of_value(op.name) for one in are_there.get(storage, ())]
        return claims

    def _may_be_shared(self, was: Sequence[Op], now: Sequence[Op], claims: Sequence[_Claim]) -> bool:
        """Whether nobody writes to any of these values, and none is returned for several."""
        known, knows = storages(self.before), storages(self.after)
        old = frozenset[int]().union(*(known.of_value(op.name) for op in was))
        new = frozenset[int]().union(*(knows.of_value(op.name) for op in now))
        new = new.union(*(knows.of_value(heir) for _, heir in claims))
        written, writes = self._written
        return written.isdisjoint(old) and writes.isdisjoint(new) and new.isdisjoint(self._returned_as_one)

    def _equal(self, one: str, heir: str) -> bool:
        """Whether a value of `before` is the same as the one of `after` that stands for it."""
        old, new = self.before[one], self.after[heir]
        if old.name == new.name and len(old.out) != 1:
            return self.heirs.unchanged(new)  # its results are as what it is given, which is asked for, too
        if list(map(_type, old.out)) != list(map(_type, new.out)):
            return False
        had, has = self._terms
        return one in had.of and had.of[one] == has.of.get(heir)

    @cached_property
    def _terms(self) -> tuple[Terms, Terms]:
        table = Table(self.before.rank if self.before.rank == self.after.rank else None)
        return terms(self.before, table), terms(self.after, table, self.heirs.unchanged)

    @cached_property
    def _values(self) -> tuple[frozenset[int], frozenset[int]]:
        had, has = self._terms
        return frozenset(had.of.values()), frozenset(has.of.values())

    @cached_property
    def _claims(self) -> tuple[dict[int, list[_Claim]], dict[int, list[_Claim]]]:
        """Who stands for whom, starts apart: for each storage of `before` and for each of `after`."""
        known, knows = storages(self.before), storages(self.after)
        were_there: dict[int, list[_Claim]] = {}
        are_there: dict[int, list[_Claim]] = {}
        for op in self.after.ops:
            for origin in self.heirs.origins(op):
                if not self.before[origin].is_start:
                    for storage in known.of_value(origin):
                        were_there.setdefault(storage, []).append((origin, op.name))
                    for storage in knows.of_value(op.name):
                        are_there.setdefault(storage, []).append((origin, op.name))
        return were_there, are_there

    @cached_property
    def _written(self) -> tuple[frozenset[int], frozenset[int]]:
        return _written(self.before), _written(self.after)

    @cached_property
    def _returned_as_one(self) -> frozenset[int]:
        """The storages of `after` that are returned for more than one of `before`."""
        known, knows = storages(self.before), storages(self.after)
        stands_for: dict[int, set[int]] = {}
        for was, now in zip(self.before.outputs, self.after.outputs, strict=False):
            for one, other in zip(refs(was), refs(now), strict=False):
                for storage in knows.of_value(other.name):
                    stands_for.setdefault(storage, set()).update(known.of_value(one.name))
        return frozenset(storage for storage, found in stands_for.items() if len(found) > 1)


def _written(program: Program) -> frozenset[int]:
    known = storages(program)
    return known.of_args(op.argument(key) for op in program.ops for key in op.traits.mutates)


def _type(spec: Spec) -> Spec:
    return TensorSpec(spec.shape, spec.dtype, None, spec.device) if isinstance(spec, TensorSpec) else spec
