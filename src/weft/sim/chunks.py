"""Which ops might be cut into chunks as part of a chain of collectives and matmuls, all row by row."""

from __future__ import annotations

from collections.abc import Sequence

from weft.analysis.axes import RULES
from weft.analysis.dependencies import arguments, turned
from weft.analysis.kernels import ELEMENTWISE, only_moves
from weft.ir.program import Op, Program


def chunks(program: Program) -> list[bool]:
    """For each op, whether it might be.

    Rows are followed from a collective through whatever works row by row, to matmuls and to other collectives; and
    from a collective back to the matmuls that make what it sends. A matmul that sums over the rows of anything that is
    cut may add up chunks. Whether the shapes allow it is not asked.
    """
    before = arguments(program)
    after = turned(before)
    able = [_by_rows(op) for op in program.ops]
    starts = [place for place, op in enumerate(program.ops) if op.is_start]
    behind, ahead = _reached(starts, after, able), _reached(starts, before, able)
    products = [place for place, op in enumerate(program.ops) if op.traits.matmul and able[place]]
    # A row gets from a collective to a matmul or another collective, or from a matmul to a collective.
    to_product, from_product = _reached(products, before, able), _reached(products, after, able)
    found = [
        op.is_start or (behind[place] and (ahead[place] or to_product[place])) or (ahead[place] and from_product[place])
        for place, op in enumerate(program.ops)
    ]
    return _with_sums(program, before, found)


def _with_sums(program: Program, before: Sequence[Sequence[int]], cut: Sequence[bool]) -> list[bool]:
    """What is cut, and the matmuls that are given that or views of it, with these views."""
    found, seen = list(cut), list(cut)
    for place, op in enumerate(program.ops):
        if not seen[place] and (op.traits.matmul or op.traits.is_view) and any(seen[other] for other in before[place]):
            found[place], seen[place] = True, op.traits.is_view
    return found


def _by_rows(op: Op) -> bool:
    """Whether an op makes some rows of its result from some rows of what it is given, in some of its uses."""
    if op.traits.random or op.traits.barrier or op.is_input:
        return False
    return op.is_start or op.target in RULES or op.target in ELEMENTWISE or only_moves(op)


def _reached(starts: Sequence[int], neighbours: Sequence[Sequence[int]], able: Sequence[bool]) -> list[bool]:
    """Which ops are reached in one direction through what works row by row, the starts included."""
    found, todo = [False] * len(neighbours), list(starts)
    while todo:
        place = todo.pop()
        if not found[place] and able[place]:
            found[place] = True
            todo += neighbours[place]
    return found
