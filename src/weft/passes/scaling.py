"""Scaling the buffer of a bucket instead of each of its members: the same op on the same numbers, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.analysis.dependencies import dependencies
from weft.analysis.gradients import scaling
from weft.analysis.windows import Window, windows
from weft.errors import PlanError
from weft.ir.args import Ref
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.traits import PURE
from weft.passes.results import returned


def scaled_alike(program: Program, members: Sequence[Window]) -> bool:
    """Whether all members of a bucket are scaled alike, directly before they are sent and for nobody else."""
    after = program.fact(_after)
    first = _scaler(program, members[0].start)
    for member in members:
        op = _scaler(program, member.start)
        if op is None or first is None or (op.target, repr(op.args[1])) != (first.target, repr(first.args[1])):
            return False
        # Nobody else: nor does anybody write to what is scaled before it is copied into the buffer.
        if after[program.index[op.name]] != [member.position] or op.name in returned(program):
            return False
    return True


def scale_once(merged: Program, program: Program, buckets: Sequence[Sequence[str]]) -> Program:
    """`merged`, which was made from `program`, with each of these buckets of starts scaled after it was packed."""
    editor = Editor(merged)
    readers = {name: op for op in merged.ops for name in op.given}
    for starts in buckets:
        scalers = [op for name in starts if (op := _scaler(program, program[name])) is not None]
        alike = scaled_alike(program, [windows(program)[name] for name in starts])
        packed = _packed(readers, scalers[0]) if alike else None
        if packed is None:
            raise PlanError(f"these are not scaled alike and copied into one buffer: {', '.join(starts)}")
        _scale(editor, scalers, packed, readers[packed.name])
    return replace(editor.finish(""), history=merged.history)


def _scale(editor: Editor, scalers: Sequence[Op], packed: Op, bucket: Op) -> None:
    first = scalers[0]
    names = tuple(op.name for op in scalers)
    made = Op("scaled", first.target, (Ref(packed.name), first.args[1]), {}, packed.out, PURE, None, "", names)
    scaled = editor.insert_after(packed.name, made)
    editor.replace(replace(bucket, args=(scaled, *bucket.args[1:])))
    for op in scalers:
        editor.remove(op.name, use=op.given[0])


def _scaler(program: Program, start: Op) -> Op | None:
    """The op that makes what a start sends by scaling something of the same type, if it is such an op."""
    sent = start.args[0]
    op = program[sent.name] if isinstance(sent, Ref) and sent.name in program else None
    if op is None or op.traits != PURE or scaling(op) is None or not isinstance(op.args[0], Ref):
        return None
    given = program[op.args[0].name].out
    plain = len(given) == 1 and isinstance(given[0], TensorSpec) and given[0].strides is None
    return op if plain and given == op.out else None


def _packed(readers: Mapping[str, Op], scaler: Op) -> Op | None:
    """The op that copies what is scaled into the buffer, behind the view that makes it flat; None if none does."""
    found = readers[scaler.name]
    found = readers[found.name] if found.traits.is_view else found
    return found if found.target == "aten.cat.default" else None


def _after(program: Program) -> list[list[int]]:
    return dependencies(program).after()
