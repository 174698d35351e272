"""Conversions in front of the members of a bucket, and of their results, done by one kernel.

A kernel that converts what one member sends, or gives, takes a launch, and there is one for each. `weft.pack` converts
all that is of one dtype: it reads and writes each byte once, as they did, and is launched once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.fusion import fusion
from weft.analysis.kernels import input_specs
from weft.analysis.storages import storages
from weft.analysis.terms import CASTS
from weft.analysis.windows import Window, windows
from weft.cost.model import CostModel
from weft.ir.args import Dtype, Ref
from weft.ir.dims import Dim
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.targets import traits_of
from weft.passes.absorbing import absorbed, before_absorbed
from weft.passes.joining import follower


def converted_together(program: Program, members: Sequence[Window]) -> list[list[Window]]:
    """The members whose conversions can be one kernel: sets of several, each of one dtype that is converted."""
    known = program.fact(_conversions)
    found: dict[str, list[Window]] = {}
    for member in members:
        if member.start.name in known:
            found.setdefault(known[member.start.name].spec.dtype, []).append(member)
    return [together for together in found.values() if len(together) > 1]


def results_converted_together(program: Program, members: Sequence[Window]) -> list[list[Window]]:
    """The same for the conversions of results."""
    known = program.fact(_conversions_of_results)
    found: dict[tuple[str, str], list[Window]] = {}
    for member in members:
        if member.start.name in known:
            one = known[member.start.name]
            found.setdefault((one.spec.dtype, one.op.out[0].dtype), []).append(member)
    return [together for together in found.values() if len(together) > 1]


def conversion_of_result(program: Program, member: Window) -> Op:
    """The op that converts the result of such a member."""
    return program.fact(_conversions_of_results)[member.start.name].op


def pack_of(program: Program, members: Sequence[Window]) -> Op:
    """The op that does the conversions of such members, and gives what they send one behind the other."""
    return _pack([program.fact(_conversions)[member.start.name] for member in members])


def pack_of_results(program: Program, members: Sequence[Window]) -> Op:
    """The same for the conversions of results: the op is given what those were given."""
    return _pack([program.fact(_conversions_of_results)[member.start.name] for member in members])


@dataclass(frozen=True)
class SavedByPacks:
    """The compute that it saves to convert members together before they are sent, and to convert their results
    together; less than 0 if that takes longer."""

    before_us: float
    behind_us: float

    @staticmethod
    def of(program: Program, members: Sequence[Window], cost: CostModel) -> SavedByPacks:
        sent, got = converted_together(program, members), results_converted_together(program, members)
        return SavedByPacks(
            sum(_saved_us(program, program.fact(_conversions), together, cost) for together in sent),
            sum(_saved_us(program, program.fact(_conversions_of_results), together, cost) for together in got),
        )

    @property
    def us(self) -> float:
        return self.before_us + self.behind_us


@dataclass(frozen=True)
class _Conversion:
    """An op that converts what a collective sends or gives, and what a pack is given in place of that."""

    op: Op
    source: Ref
    spec: TensorSpec


def _pack(conversions: Sequence[_Conversion]) -> Op:
    size: Dim = 0
    for one in conversions:
        size = size + one.spec.numel
    dtype, target = conversions[0].op.out[0].dtype, "weft.pack.default"
    given = tuple(one.source for one in conversions)
    return Op("packed", target, (given, Dtype(dtype), 1), {}, (TensorSpec((size,), dtype),), traits_of(target))


def _saved_us(program: Program, known: Mapping[str, _Conversion], members: Sequence[Window], cost: CostModel) -> float:
    conversions = [known[member.start.name] for member in members]
    pack = _pack(conversions)
    apart = sum(cost.op_us(one.op, input_specs(program, one.op)) for one in conversions)
    return apart - cost.op_us(pack, input_specs(program, pack))


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


def _conversions_of_results(program: Program) -> Mapping[str, _Conversion]:
    """For each start whose result is only converted, by a kernel that does nothing else: that conversion.

    What a pack gives is in one buffer: nobody may write to a part of it, or send it, as long as others use theirs.
    """
    fused, found = fusion(program), dict[str, _Conversion]()
    touched = _written_or_sent(program)
    for name, member in windows(program).items():
        op = follower(program, member)
        if op is None or fused.members[fused.region[program.index[op.name]]] != (program.index[op.name],):
            continue
        if not touched.isdisjoint(storages(program).of_value(op.name)):
            continue
        (given,), (made,) = program[op.given[0]].out, op.out
        if isinstance(given, TensorSpec) and given.strides is None and given.dtype != made.dtype and op.target in CASTS:
            found[name] = _Conversion(op, op.refs()[0], given)
    return found


def _written_or_sent(program: Program) -> set[int]:
    """The storages that some op writes to, or some start sends."""
    found: set[int] = set()
    for op in program.ops:
        if op.traits.mutates:
            found |= storages(program).of_args(op.argument(key) for key in op.traits.mutates)
        elif op.is_start:
            found |= storages(program).of_args(op.args)
    return found
