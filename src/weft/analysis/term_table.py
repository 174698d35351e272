"""Terms, numbered, in one form for those that are equal by what is known of collectives:

- a cast of what was gathered or exchanged is a gather or an exchange of what was cast
- a rank's own part of what was reduced over a group is what a reduce-scatter gives it
- where all ranks have the same value, a gather of each rank's own part of it is that value; so a gather of what a
  reduce-scatter gave is an all-reduce

Ranks have the same value if it is the result of an all-reduce, an all-gather or a broadcast among them, or a cast of
one. Which part is a rank's own can be told only of a Program that knows its rank: to see the first of two parts taken
is not enough, as it may be what all ranks take. All-reduce and reduce-scatter are taken to sum in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from weft.ir.program import Group


@dataclass(frozen=True, slots=True)
class Part:
    """One of several equal parts of a value, which lie one behind the other.

    A rank's own part of what was reduced is not called one: it is what a reduce-scatter gives.
    """

    count: int
    number: int
    of: int  # the term of the whole


class Table:
    """Numbers for terms: the same for the same term, also of another Program that is given the same table."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._terms: list[tuple[Hashable, ...]] = []

    def term(self, *parts: Hashable) -> int:
        found = self._numbers.setdefault(parts, len(self._terms))
        if found == len(self._terms):
            self._terms.append(parts)
        return found

    def own(self, group: Group) -> int | None:
        """Which of the group's ranks this one is; None if that is not known."""
        return group.ranks.index(self._rank) if self._rank in group.ranks else None

    def part_of(self, term: int) -> Part | None:
        """Of which value a term is a part, if it is one."""
        match self._terms[term]:
            case ("part", int(count), int(number), int(whole)):
                return Part(count, number, whole)
        return None

    def cut_across(self, term: int, count: int) -> tuple[int, int] | None:
        """The dimension and the whole, if a term is one of so many parts that do not lie one behind the other."""
        match self._terms[term]:
            case ("slice", int(dim), int(_), int(size), int(whole), tuple(shape)) if shape[dim] == size * count:
                return dim, whole
        return None

    def same_on_all(self, term: int, group: Group) -> bool:
        """Whether all ranks of a group are known to have the same value."""
        match self._terms[term]:
            case ("gather" | "reduce" | "broadcast", Group() as among, *_):
                return set(group.ranks) <= set(among.ranks)
            case ("cast", _, int(inner)):
                return self.same_on_all(inner, group)
        return False

    def cast(self, dtype: str, term: int) -> int:
        match self._terms[term]:
            case ("gather", Group() as group, int(inner)):
                return self.gather(group, self.cast(dtype, inner))
            case ("exchange", *how, int(inner)):
                return self.term("exchange", *how, self.cast(dtype, inner))
            case ("part", int(count), int(number), int(inner)):
                return self.part(count, number, self.cast(dtype, inner))
        return self.term("cast", dtype, term)

    def gather(self, group: Group, term: int) -> int:
        part = self.part_of(term)
        own = part is not None and (part.count, part.number) == (group.size, self.own(group))
        if part is not None and own and self.same_on_all(part.of, group):
            return part.of
        match self._terms[term]:
            case ("scatter", Group() as among, str(how), int(inner)) if among == group:
                return self.term("reduce", group, how, inner)
        return self.term("gather", group, term)

    def add(self, one: int, other: int, known: bool) -> int | None:
        """A sum; of reductions it is the reduction of the sum. Any other one is a leaf if its op is known."""
        match self._terms[one], self._terms[other]:
            case (
                ("scatter" | "reduce" as kind, Group() as group, "sum" | "avg" as how, int(left)),
                (str(same), Group() as among, str(alike), int(right)),
            ) if (kind, group, how) == (same, among, alike):
                return self.term(kind, group, how, self.term("sum", *sorted((left, right))))
        return None if known else self.term("sum", *sorted((one, other)))

    def part(self, count: int, number: int, term: int) -> int:
        if count == 1:
            return term
        match self._terms[term]:
            case ("reduce", Group() as group, str(how), int(inner)) if (group.size, self.own(group)) == (count, number):
                return self.term("scatter", group, how, inner)
        return self.term("part", count, number, term)
