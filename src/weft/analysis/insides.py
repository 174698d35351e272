"""Which collectives a matmul might carry out inside it, and what such an op might do away with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.dependencies import arguments, turned
from weft.analysis.kernels import only_moves
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

# The matmuls that fused ops can do; the left factor of each is its first argument.
MATMULS = frozenset("aten.mm.default aten.linear.default aten._scaled_mm.default".split())

_SUM = "aten.add.Tensor"
_TURNS = frozenset("aten.permute.default aten.t.default aten.transpose.int".split())


@dataclass(frozen=True)
class Neighbours:
    """Of a collective, by position: the `matmuls` in which it might be done, all or some of them, and what is `between`
    them and it: moved data, and sums of products."""

    matmuls: tuple[int, ...]
    between: tuple[int, ...]


def insides(program: Program) -> Mapping[int, tuple[Neighbours, ...]]:
    """For each start, by position, the ways to have it inside a matmul.

    What is gathered is the left factor of matmuls, as it is or moved about; what is scattered is a product of matmuls,
    or a sum of products. An all-reduce may become one of each. Whether the shapes allow it is not asked.
    """
    before = arguments(program)
    after = turned(before)
    found: dict[int, tuple[Neighbours, ...]] = {}
    for place, op in enumerate(program.ops):
        if op.comm is not None and (ways := tuple(_ways(program, place, op.comm.kind, before, after))):
            found[place] = ways
    return found


def _ways(
    program: Program, place: int, kind: str, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> Iterator[Neighbours]:
    if kind in ("all_gather", "all_reduce"):
        moved = _reached(program, place, after, sums=False)
        held = {program.ops[one].name for one in (place, *moved)}
        users = {user for one in (place, *moved) for user in after[one] if _left(program.ops[user]) in held}
        if users:
            yield Neighbours(tuple(sorted(users)), tuple(sorted(moved)))
    if kind in ("reduce_scatter", "all_reduce"):
        moved = _reached(program, place, before, sums=True)
        dtype, givers = _dtype(program.ops[place]), {one for step in (place, *moved) for one in before[step]}
        makers = {one for one in givers if program.ops[one].target in MATMULS and _dtype(program.ops[one]) == dtype}
        if makers:
            yield Neighbours(tuple(sorted(makers)), tuple(sorted(moved)))


def _reached(program: Program, start: int, neighbours: Sequence[Sequence[int]], sums: bool) -> set[int]:
    """What is reached from a collective in one direction through what moves elements, and through sums."""
    dtype = _dtype(program.ops[start])
    found, todo = set[int](), list(neighbours[start])
    while todo:
        place = todo.pop()
        op = program.ops[place]
        moves = only_moves(op) and op.target not in _TURNS and not op.is_input
        if place not in found and (moves or (sums and op.target == _SUM)) and _dtype(op) in (dtype, ""):
            found.add(place)
            todo += neighbours[place]
    return found


def _left(op: Op) -> str:
    """The left factor of a matmul that a fused op can do; nothing if it is none."""
    return op.args[0].name if op.target in MATMULS and op.args and isinstance(op.args[0], Ref) else ""


def _dtype(op: Op) -> str:
    """The dtype of a result; nothing if it has none of its own, as a list."""
    return op.out[0].dtype if len(op.out) == 1 and isinstance(op.out[0], TensorSpec) else ""
