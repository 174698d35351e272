"""`hoist_starts`: each start moves to just after its last input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.dependencies import dependencies
from weft.analysis.traffic import total_bytes
from weft.ir.program import Op, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.moves import after, apply_moves
from weft.passes.options import pass_text


@dataclass(frozen=True)
class HoistStarts:
    """Move starts up to their last input, so that communication begins as early as it can.

    The collectives of a group keep their order, so a start does not overtake an earlier one of its group.
    `group`: only collectives of this group; all if not given.
    """

    name: ClassVar[str] = "hoist_starts"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    group: str | None = None

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each start that can move, a remark for each start."""
        chosen = context.group(self.group) if self.group is not None else None
        known = dependencies(program)
        inputs_end = max((program.index[op.name] for op in program.inputs), default=-1)
        issued: dict[str, tuple[int, str]] = {}  # per group: the place and the name of its last start
        steps: list[Step] = []
        remarks: list[Remark] = []
        for op in program.starts:
            if op.comm is None:
                continue
            position, group = program.index[op.name], op.comm.group
            ready = max(known.before[position], default=-1)
            previous, rival = issued.get(group.name, (-1, ""))
            place = max(ready, previous, inputs_end)
            moves = (chosen is None or group == chosen) and -1 < place < position - 1
            issued[group.name] = (place if moves else position), op.name
            if chosen is not None and group != chosen:
                continue
            why = "the inputs of the program"
            if previous == place > ready:
                why = f"%{rival}, the collective before it in group {group.name}"
            elif ready == place:
                why = f"its last input %{program.ops[place].name}"
            if moves:
                steps.append(after((op.name,), program.ops[place].name))
            remarks.append(self._remark(op, position - place - 1 if moves else 0, why))
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)

    def _remark(self, op: Op, passed: int, why: str) -> Remark:
        if not passed:
            return Remark(self.name, op.name, "refused", f"stays where it is, after {why}")
        message = (
            f"moved up past {counted(passed, 'op')}, to after {why}; its {total_bytes(op)} bytes live that much longer"
        )
        return Remark(self.name, op.name, "done", message)
