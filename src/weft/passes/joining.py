"""What all members of a bucket do first with their results can be done once, to the whole buffer."""

from __future__ import annotations

from collections.abc import Sequence

from weft.analysis.gradients import scaling
from weft.analysis.pairs import pairs
from weft.analysis.terms import CASTS
from weft.analysis.users import users
from weft.analysis.windows import Window
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.traits import PURE
from weft.passes.results import returned


def joint_ops(program: Program, members: Sequence[Window]) -> tuple[Op, ...]:
    """Of each member the op that alone uses its result, if it is the same op for all: a cast, a scaling by a number.

    Element by element it does not matter where an element stands, so the bits stay the same.
    """
    found = [follower(program, member) for member in members]
    first = found[0]
    if first is None:
        return ()
    same = first.target, first.args[1:], tuple(first.kwargs.items()), _dtype(first)
    ops = [op for op in found if op is not None]
    alike = all((op.target, op.args[1:], tuple(op.kwargs.items()), _dtype(op)) == same for op in ops)
    return tuple(ops) if alike and len(ops) == len(found) else ()


def follower(program: Program, member: Window) -> Op | None:
    """The op that alone uses a member's result, if it is a cast or a scaling by a number."""
    waits = pairs(program).waits[member.start.name]
    readers = users(program).get(waits[0], ()) if len(waits) == 1 and waits[0] not in returned(program) else ()
    if len(readers) != 1 or program.index[readers[0].name] not in member.waited:
        return None
    op = readers[0]
    if op.args[:1] != op.refs() or op.traits != PURE or not (op.target in CASTS or scaling(op) is not None):
        return None
    (made,), (sent,) = op.out, member.start.out
    if not isinstance(made, TensorSpec) or not isinstance(sent, TensorSpec):
        return None
    return op if made.strides is None and made.device == sent.device else None


def _dtype(op: Op) -> str:
    return op.out[0].dtype
