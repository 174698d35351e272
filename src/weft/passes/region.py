"""`Region`: ops of a Program that work row by row, and are to be cut into chunks together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weft.analysis.axes import Axis, Given, Rows, rows_of
from weft.ir.program import Op, Program
from weft.passes.factors import tensor
from weft.passes.holders import CAT, cut_of

# What is written to in a region is seen there alone, so that its chunks may as well be made anew.
ANEW: Mapping[str, str] = {
    "aten.add_.Scalar": "aten.add.Scalar",
    "aten.add_.Tensor": "aten.add.Tensor",
    "aten.div_.Scalar": "aten.div.Scalar",
    "aten.div_.Tensor": "aten.div.Tensor",
    "aten.mul_.Scalar": "aten.mul.Scalar",
    "aten.mul_.Tensor": "aten.mul.Tensor",
    "aten.neg_.default": "aten.neg.default",
    "aten.relu_.default": "aten.relu.default",
    "aten.sqrt_.default": "aten.sqrt.default",
    "aten.sub_.Scalar": "aten.sub.Scalar",
    "aten.sub_.Tensor": "aten.sub.Tensor",
}

# A matmul whose result is added to another value.
SUMS: Mapping[str, str] = {"aten.mm.default": "aten.addmm.default", "aten.bmm.default": "aten.baddbmm.default"}


@dataclass(frozen=True)
class Region:
    """Ops of a Program, in its order, each with where the rows are in its result, and how many chunks they are cut
    into. `sums` are matmuls that sum over the rows, with where those are in their arguments: their result is the sum of
    what each chunk gives."""

    program: Program = field(repr=False)
    size: int
    axes: Mapping[str, Axis]
    chunks: int
    sums: Mapping[str, Given] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Rows:
        return rows_of(self.program, self.size)

    def given(self, op: Op) -> Given:
        """What an op of the region takes for a chunk: these values in parts, all others whole."""
        if op.name in self.sums:
            return self.sums[op.name]
        found = self._given.get(op.name)
        if found is None:
            found = self.rows.given(op, self.axes[op.name])
            assert found is not None, f"%{op.name} can be cut, or it would not be in a region"
            self._given[op.name] = found
        return found

    @cached_property
    def _given(self) -> dict[str, Given]:
        return {}

    @cached_property
    def stages(self) -> Mapping[str, int]:
        """For each op, how many collectives of the region come before it, one after the other."""
        found: dict[str, int] = {}
        for name in self.axes:
            op = self.program[name]
            before = (found[name] + self.program[name].is_start for name in op.given if name in found)
            found[name] = max(before, default=0)
        return found

    @cached_property
    def moved(self) -> Mapping[str, str]:
        """Of concatenations of all that a split gives, those that move nothing, and what is split: the order of the
        elements stays the same if there is but one of whatever comes before the dimension that is split."""
        found: dict[str, str] = {}
        for op in map(self.program.__getitem__, self.axes):
            if op.target != CAT or op.argument(1, "dim") not in (0, None):
                continue
            split = cut_of(self.program, op)
            if split is not None and split.base in self.axes:
                before = tensor(self.program, split.base).shape[: split.dim]
                if all(size == 1 for size in before):
                    found[op.name] = split.base
        return found

    @cached_property
    def overwritten(self) -> frozenset[str]:
        """The values that are written to in the region: of them, nobody sees what they were before."""
        writing = [self.program[name] for name in self.axes if self.program[name].target in ANEW]
        return frozenset(op.given[0] for op in writing)
