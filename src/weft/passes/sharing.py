"""What regions have in common: chunks that one makes and another takes, so that nobody puts them together in between.

That is so for what a forward pass saves and the backward pass uses, through views such as `detach`; and, if chunks may
be summed, for the matmuls of weight gradients, which sum over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.analysis.axes import Axis, rows_of
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.passes.region import SUMS, Region

Axes = Mapping[str, Axis]
Traced = tuple[int, Axis, Axes]  # the number of a region, where its rows are in a value, and the views on the way there


def families(program: Program, regions: Sequence[Region], sum_chunks: bool) -> list[list[int]]:
    """The numbers of regions that share chunks, directly or through others, if all are cut alike. Only what has the
    rows of all ranks counts: a rank's own rows are soon copied, and there is a way in them through the whole step."""
    shared = sharing(program, regions, sum_chunks)
    owner = {name: number for number, region in enumerate(shared) for name in region.axes}
    roots = list(range(len(regions)))

    def root(number: int) -> int:
        return number if roots[number] == number else root(roots[number])

    for number, region in enumerate(shared):
        for name in (*region.axes, *region.sums):
            for other, axis in region.given(program[name]).items():
                maker = owner.get(other, number)
                if axis.outer > 1 and shared[maker].axes.get(other) == axis and shared[maker].size == region.size:
                    roots[root(maker)] = root(number)
    found: dict[int, list[int]] = {}
    for number in range(len(regions)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())


def sharing(program: Program, regions: Sequence[Region], sum_chunks: bool) -> list[Region]:
    """The regions with the views through which one takes what another makes; if `sum_chunks`, also with the matmuls
    that sum over their rows."""
    finder = _Finder(program, regions)
    for number, region in enumerate(regions):
        for name in region.axes:
            finder.take(number, region.given(program[name]))
    for op in program.ops if sum_chunks else ():
        if op.target in SUMS and op.name not in finder.region:
            finder.add_up(op)
    return finder.found()


class _Finder:
    def __init__(self, program: Program, regions: Sequence[Region]) -> None:
        self._program, self._regions = program, regions
        self.region = {name: number for number, region in enumerate(regions) for name in region.axes}
        self._axes = [dict(region.axes) for region in regions]
        self._sums: list[dict[str, Axes]] = [{} for _ in regions]

    def found(self) -> list[Region]:
        place = self._program.index.__getitem__
        return [
            replace(region, axes={name: axes[name] for name in sorted(axes, key=place)}, sums=sums)
            for region, axes, sums in zip(self._regions, self._axes, self._sums, strict=True)
        ]

    def take(self, number: int, given: Axes) -> None:
        """Take views of chunks into a region that is given them."""
        for name, axis in given.items():
            traced = self._traced(name) if name not in self.region else None
            if traced is not None and traced[1] == axis and self._alike(traced[0], number):
                self._enter(number, traced[2])

    def add_up(self, op: Op) -> None:
        """Take a matmul into a region if it sums over the rows, and both of its arguments are to be had in the same
        chunks."""
        match op.args:
            case (Ref(left), Ref(right)) if left != right:
                traced = [self._traced(left), self._traced(right)]
                known = [one for one in traced if one is not None]
                if not known:
                    return
                number = max(one[0] for one in known)
                given = self._summed_over(op, (left, right), known[0][1], number)
                fits = all(
                    given.get(name) in (None, one[1]) for name, one in zip((left, right), traced, strict=True) if one
                )
                if given and fits and all(self._alike(one[0], number) for one in known):
                    for one in known:
                        self._enter(number, one[2])
                    self._sums[number][op.name] = given

    def _summed_over(self, op: Op, names: tuple[str, str], axis: Axis, number: int) -> Axes:
        """Where the rows must be in both arguments; nothing if they cannot be there."""
        rank, rows = len(op.out[0].shape), rows_of(self._program, self._regions[number].size)
        wanted = {names[0]: replace(axis, dim=rank - 1), names[1]: replace(axis, dim=rank - 2)}
        there = all(rows.is_at(rows.of(name), one) for name, one in wanted.items())
        return wanted if there and not axis.dropped else {}

    def _alike(self, one: int, other: int) -> bool:
        left, right = self._regions[one], self._regions[other]
        return (left.size, left.chunks) == (right.size, right.chunks)

    def _enter(self, number: int, path: Axes) -> None:
        for name, axis in path.items():
            if name not in self.region:
                self.region[name] = number
                self._axes[number][name] = axis

    def _traced(self, name: str) -> Traced | None:
        """Where a value comes from through views; None if that is no region."""
        if name in self.region:
            number = self.region[name]
            return number, self._axes[number][name], {}
        op = self._program[name]
        if not op.traits.is_view or op.is_wait or op.traits.mutates or len(op.given) != 1:
            return None
        found = self._traced(op.given[0])
        if found is None:
            return None
        number, axis, path = found
        made = rows_of(self._program, self._regions[number].size).result(op, op.given[0], axis)
        return (number, made, {**path, name: made}) if made is not None else None
