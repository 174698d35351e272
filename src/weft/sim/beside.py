"""What it takes to put the right factors of several matmuls into one matrix. docs/bounds.md has the use of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.analysis.dependencies import arguments
from weft.cost.model import CostModel, HardwareModel
from weft.ir.program import Program
from weft.ir.specs import TensorSpec


def beside_us(program: Program, cost: CostModel, matmuls: Sequence[int]) -> float:
    """What it takes at least for some matmuls, by position, if all that multiply by the same factors share the matrix.

    A factor that is an input, or that was communicated, is read and written. One that was computed may have been
    written there.
    """
    if not isinstance(cost, HardwareModel):
        return 0.0
    factors = program.fact(_factors)
    return sum(cost.moved_us(2 * nbytes) / users for nbytes, users in (factors[place] for place in matmuls))


def _factors(program: Program) -> Mapping[int, tuple[int, int]]:
    """For each matmul, by position, the bytes of its right factor that have to be copied, and how many matmuls have the
    same factor."""
    given = arguments(program)
    roots: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        if op.traits.matmul and len(given[place]) > 1:
            root = given[place][1]
            while program.ops[root].traits.is_view and not program.ops[root].is_wait and given[root]:
                root = given[root][0]
            roots[place] = root
    users: dict[int, int] = {}
    for root in roots.values():
        users[root] = users.get(root, 0) + 1
    found = {}
    for place, root in roots.items():
        op = program.ops[root]
        nbytes = sum(spec.nbytes for spec in op.out if isinstance(spec, TensorSpec))
        found[place] = nbytes if op.is_input or op.is_wait else 0, users[root]
    return found
