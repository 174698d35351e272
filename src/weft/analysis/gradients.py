"""Which all-reduces average gradients: what data parallel training does between the backward and the update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from weft.analysis.dependencies import Kind, dependencies
from weft.analysis.kernels import KERNELS, Kernel, only_moves, read_names
from weft.analysis.storages import storages
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import windows
from weft.ir.program import Op, Program
from weft.ir.specs import ScalarSpec, TensorSpec

# What an update or a norm is made of, besides writes, views and collectives.
_UPDATES = (Kernel.FREE, Kernel.GENERATED, Kernel.POINTWISE, Kernel.REDUCTION)
_UPDATES_OF_LISTS = frozenset(
    """
    aten._foreach_abs.default aten._foreach_add.List aten._foreach_add.Scalar aten._foreach_add.ScalarList
    aten._foreach_add.Tensor aten._foreach_addcdiv.Scalar aten._foreach_addcdiv.ScalarList
    aten._foreach_addcmul.Scalar aten._foreach_clone.default aten._foreach_div.List aten._foreach_div.Scalar
    aten._foreach_div.ScalarList aten._foreach_div.Tensor aten._foreach_lerp.Scalar aten._foreach_max.default
    aten._foreach_maximum.List aten._foreach_mul.List aten._foreach_mul.Scalar aten._foreach_mul.ScalarList
    aten._foreach_mul.Tensor aten._foreach_neg.default aten._foreach_norm.Scalar aten._foreach_reciprocal.default
    aten._foreach_sign.default aten._foreach_sqrt.default aten._foreach_sub.List aten._foreach_sub.Scalar
    """.split()
)
_DIVIDES = ("aten.div.Scalar", "aten.div.Tensor", "aten.div_.Scalar", "aten.div_.Tensor", "prims.div.default")
_MULTIPLIES = ("aten.mul.Scalar", "aten.mul.Tensor", "aten.mul_.Scalar", "aten.mul_.Tensor", "prims.mul.default")


def gradients(program: Program) -> Mapping[str, str | None]:
    """For each all-reduce, why it is no average of gradients; None if it is one.

    It is one if the collective averages, or the numbers are scaled by the number of ranks before it or behind it, and
    if the result is returned, or kept in a buffer, or goes into an update: into nothing but norms, ops that work
    element by element, and writes.
    """
    return program.fact(_gradients)


def scaling(op: Op) -> float | None:
    """The number that an op multiplies each element by; None if it does something else."""
    factor = op.args[1] if len(op.args) == 2 else None
    if isinstance(factor, bool) or not isinstance(factor, int | float) or op.kwargs:
        return None
    if op.target in _DIVIDES:
        return 1 / factor if factor else None
    return float(factor) if op.target in _MULTIPLIES else None


def _gradients(program: Program) -> Mapping[str, str | None]:
    further = used_further(program)
    return {
        op.name: _refusal(program, op, further)
        for op in program.starts
        if op.comm is not None and op.comm.kind == "all_reduce"
    }


def _refusal(program: Program, op: Op, further: Sequence[int | None]) -> str | None:
    assert op.comm is not None, "a start communicates"
    if len(op.out) == 1 and isinstance(op.out[0], TensorSpec) and op.out[0].shape == ():
        return f"it has one element of {total_bytes(op):,} bytes, such as a loss, and is left alone"
    ranks, reduction = op.comm.group.size, op.comm.reduce_op
    if reduction not in ("sum", "avg"):
        return f"it is no average of gradients but a {reduction} of {total_bytes(op):,} bytes"
    if reduction == "sum" and not _scaled(program, op, ranks):
        return f"it is no average of gradients: it sums {total_bytes(op):,} bytes, and nothing divides by {ranks}"
    user = further[program.index[op.name]]
    if user is None:
        return None
    name, target = program.ops[user].name, program.ops[user].target
    return f"it is no average of gradients: its {total_bytes(op):,} bytes go on into %{name} ({target})"


def _scaled(program: Program, op: Op, ranks: int) -> bool:
    """Whether the numbers are divided by the number of ranks, before, behind, or in part before and in part behind."""
    factors = [*_factors_before(program, op), *_factors_behind(program, op)]
    return any(math.isclose(factor * ranks, 1, rel_tol=1e-6) for factor in (*factors, math.prod(factors)))


def _factors_before(program: Program, op: Op) -> Iterator[float]:
    read = read_names(op)
    while len(read) == 1 and read[0] in program:
        op = program[read[0]]
        factor = scaling(op)
        if factor is None and not only_moves(op):
            return
        if factor is not None:
            yield factor
        read = read_names(op)


def _factors_behind(program: Program, op: Op) -> Iterator[float]:
    window = windows(program).get(op.name)
    for position in window.family if window is not None else ():
        factor = scaling(program.ops[position])
        if factor is not None:
            yield factor


def used_further(program: Program) -> Sequence[int | None]:
    """For each op, the first op that its result gets to and that does more with it than an update does."""
    return program.fact(_further)


def _further(program: Program) -> list[int | None]:
    users = _users(program)
    kept = _kept(program)
    found: list[int | None] = [None] * len(program)
    for position in reversed(range(len(program))):
        if position in kept:  # what is read there later is a parameter, or its gradient of the next step
            continue
        ends = [other if not _updates(program.ops[other]) else found[other] for other in users[position]]
        found[position] = min((end for end in ends if end is not None), default=None)
    return found


def _users(program: Program) -> list[list[int]]:
    """Who uses what each op makes, by its name or through the memory that it writes."""
    users: list[list[int]] = [[] for _ in program.ops]
    for position, op in enumerate(program.ops):
        for name in {name for name in read_names(op) if name in program}:
            users[program.index[name]].append(position)
    for earlier, later, kind in dependencies(program).order:
        if kind is Kind.MUTATION and program.ops[earlier].traits.mutates:
            users[earlier].append(later)
    return users


def _kept(program: Program) -> frozenset[int]:
    """The ops that write to nothing but memory that was there before the step."""
    known = storages(program)
    given = {at for at, maker in enumerate(known.maker) if program.ops[maker].target in ("input", "get_attr")}
    return frozenset(
        position
        for position, op in enumerate(program.ops)
        if op.traits.mutates and known.of_args(op.argument(key) for key in op.traits.mutates) <= given
    )


def _updates(op: Op) -> bool:
    """Whether an op can be part of an update, or of a norm that is taken of gradients."""
    if op.traits.barrier or op.traits.matmul:
        return False
    passes = op.is_start or bool(op.traits.mutates) or op.traits.is_view or op.target in _UPDATES_OF_LISTS
    numbers = bool(op.out) and all(isinstance(spec, ScalarSpec) for spec in op.out)
    return passes or numbers or KERNELS.get(op.target) in _UPDATES
