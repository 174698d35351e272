"""How steps that leave communication out are carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from weft.errors import PlanError
from weft.ir.args import refs
from weft.ir.editor import Editor
from weft.ir.program import Program
from weft.passes.base import Plan, Step, check_fits

Verb = Callable[[Editor, Program, Step], Iterable[str]]  # does a step, and returns the ops that it removed


def leave_out(program: Program, plan: Plan, verbs: Mapping[str, Verb]) -> Program:
    """The program after the steps of a plan, without what nobody uses any more."""
    check_fits(plan, program)
    if not plan.steps:
        return program.stamped(plan.pass_text)
    editor, removed = Editor(program), set[str]()
    for step in plan.steps:
        if step.verb not in verbs or any(name not in program for name in step.ops) or len(step.ops) < 2:
            raise PlanError(f"not a step of {plan.pass_text}, or one that this program does not have: {step}")
        removed.update(verbs[step.verb](editor, program, step))
    _sweep(editor, program, removed)
    return editor.finish(plan.pass_text)


def _sweep(editor: Editor, program: Program, removed: set[str]) -> None:
    """Remove the ops without effect that fed nothing but what was removed."""
    uses = Counter(name for op in editor for name in op.given)
    uses.update(ref.name for output in program.outputs for ref in refs(output))
    todo = [ref.name for name in sorted(removed, key=program.index.__getitem__) for ref in program[name].refs()]
    while todo:
        name = todo.pop()
        op = program[name]
        # One that stands for others is used under their names.
        if name in removed or uses[name] or op.is_input or op.has_effect or editor[name].sources != op.sources:
            continue
        editor.remove(name)
        removed.add(name)
        uses.subtract(op.given)
        todo += op.given
