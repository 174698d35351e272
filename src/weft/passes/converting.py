"""Conversions in front of the members of a bucket, done by one kernel.

A kernel that converts what one member sends takes a launch, and there is one for each. `weft.pack` converts all that is
of one dtype: it reads and writes each byte once, as they did, and is launched once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.fusion import fusion
from weft.analysis.kernels import input_specs
from weft.analysis.windows import Window, windows
from weft.cost.model import CostModel
from weft.ir.args import Dtype, Ref
from weft.ir.dims import Dim
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.targets import traits_of
from weft.passes.absorbing import absorbed, before_absorbed


def converted_together(program: Program, members: Sequence[Window]) -> list[list[Window]]:
    """The members whose conversions can be one kernel: sets of several, each of one dtype that is converted."""
    known = program.fact(_conversions)
    found: dict[str, list[Window]] = {}
    for member in members:
        if member.start.name in known:
            found.setdefault(known[member.start.name].spec.dtype, []).append(member)
    return [together for together in found.values() if len(together) > 1]


def pack_of(program: Program, members: Sequence[Window]) -> Op:
    """The op that does the conversions of such members, and gives what they send one behind the other."""
    known = [program.fact(_conversions)[member.start.name] for member in members]
    size: Dim = 0
    for one in known:
        size = size + one.spec.numel
    dtype, target = known[0].op.out[0].dtype, "weft.pack.default"
    given = tuple(one.source for one in known)
    return Op("packed", target, (given, Dtype(dtype), 1), {}, (TensorSpec((size,), dtype),), traits_of(target))


def saved_by_packs_us(program: Program, members: Sequence[Window], cost: CostModel) -> float:
    """The compute that it saves to convert members together; less than 0 if that takes longer."""
    saved = 0.0
    for together in converted_together(program, members):
        apart = [program.fact(_conversions)[member.start.name].op for member in together]
        pack = pack_of(program, together)
        saved += sum(cost.op_us(op, input_specs(program, op)) for op in apart)
        saved -= cost.op_us(pack, input_specs(program, pack))
    return saved


@dataclass(frozen=True)
class _Conversion:
    """An op that converts what a collective sends, and what a pack is given in place of that."""

    op: Op
    source: Ref
    spec: TensorSpec


def _conversions(program: Program) -> Mapping[str, _Conversion]:
    """For each start with a conversion in front of it that can be done together with others: that conversion."""
    of_one = {name: window for name, window in windows(program).items() if len(window.start.given) == 1}
    found = {name: _conversion(program, window) for name, window in of_one.items()}
    return {name: conversion for name, conversion in found.items() if conversion is not None}


def _conversion(program: Program, member: Window) -> _Conversion | None:
    """The only kernel that a pack makes needless, if it converts and shares that kernel with no other op.

    One that also makes what is converted would still be launched, and would have more to write. And all lies row by
    row: what does not is copied by a kernel for each tensor.
    """
    fused = fusion(program)
    kernels = [place for place in absorbed(program, member) if fused.region[place] >= 0]
    if len(kernels) != 1 or fused.members[fused.region[kernels[0]]] != (*kernels,):
        return None
    source = before_absorbed(program, member)
    (given,), (sent,) = program[source.name].out, program[member.start.given[0]].out
    in_rows = all(isinstance(spec, TensorSpec) and spec.strides is None for spec in (given, sent))
    if not in_rows or not isinstance(given, TensorSpec) or given.dtype == sent.dtype:
        return None
    return _Conversion(program.ops[kernels[0]], source, given)
