"""What matmuls take longer in pieces, and into how many pieces things are cut. docs/bounds.md has the use of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf

from weft.analysis.kernels import input_specs
from weft.cost.model import CostModel, DivisibleModel
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

# Into how many pieces something is cut: so many at least, and so many at most.
COUNTS = ((2, 2.0), (3, 3.0), (4, 4.0), (5, 8.0), (9, inf))


def dearer(program: Program, cost: CostModel, places: Iterable[int], us: list[float]) -> dict[int, tuple[float, ...]]:
    """For each of some matmuls, by position, by how much its pieces take longer than `us` says at the least: one figure
    for each of COUNTS."""
    if not isinstance(cost, DivisibleModel):
        return {}
    found: dict[int, tuple[float, ...]] = {}
    asked: dict[Hashable, tuple[float, ...]] = {}
    for place in places:
        op, inputs = program.ops[place], input_specs(program, program.ops[place])
        key = op.target, inputs, op.out
        if key not in asked:
            asked[key] = tuple(_in_pieces(cost, op, inputs, least, most) for least, most in COUNTS)
        found[place] = tuple(max(0.0, pieces - us[place]) for pieces in asked[key])
    return found


def _in_pieces(cost: DivisibleModel, op: Op, inputs: tuple[TensorSpec, ...], least: int, most: float) -> float:
    """What so many pieces take together at least."""
    if most == inf:
        return cost.parts_us(op, inputs, least, more=True)
    return min(cost.parts_us(op, inputs, count) for count in range(least, int(most) + 1))
