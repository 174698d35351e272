"""Carrying out plans that only move ops. Each step says: these ops, directly before or after that one.

All places are places of the original order, so steps do not disturb each other: whatever stands "before %x" comes
between the ops that were around there, even if %x itself moves away. Ops at one place keep their order.
"""

from __future__ import annotations

from weft.errors import PlanError
from weft.ir.editor import Editor
from weft.ir.program import Program
from weft.passes.base import Plan, Step, check_fits

END = ""  # as an anchor: the end of the program


def before(ops: tuple[str, ...], anchor: str) -> Step:
    """The step that puts `ops` directly before `anchor`."""
    return Step("move", ops, {"before": anchor})


def after(ops: tuple[str, ...], anchor: str) -> Step:
    """The step that puts `ops` directly after `anchor`."""
    return Step("move", ops, {"after": anchor})


def apply_moves(program: Program, plan: Plan) -> Program:
    """The program with the plan's moves carried out."""
    check_fits(plan, program)
    place: dict[str, tuple[int, int]] = {op.name: (position, 1) for position, op in enumerate(program.ops)}
    for step in plan.steps:
        where = _where(step, program)
        for name in step.ops:
            if name not in place:
                raise PlanError(f"the plan moves %{name}, which this program does not have")
            place[name] = where
    editor = Editor(program)
    editor.reorder(sorted(program.index, key=lambda name: (place[name], program.index[name])))
    return editor.finish(plan.pass_text)


def _where(step: Step, program: Program) -> tuple[int, int]:
    """An op stands at (its position, 1); what comes before it at 0 and what comes after it at 2."""
    match step.verb, list(step.detail.items()):
        case "move", [("before", "")]:
            return len(program), 0
        case "move", [("before", str(anchor))] if anchor in program:
            return program.index[anchor], 0
        case "move", [("after", str(anchor))] if anchor in program:
            return program.index[anchor], 2
    raise PlanError(f"not a move, or one to a place that this program does not have: {step}")
