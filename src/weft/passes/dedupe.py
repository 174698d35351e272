"""`dedupe`: communication that gives nothing new is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from weft.errors import OptionError, PlanError
from weft.ir.args import refs
from weft.ir.editor import Editor
from weft.ir.program import Program
from weft.passes.base import Context, Plan, Step, check_fits, fingerprint
from weft.passes.budget import Budget
from weft.passes.duplicates import do_once, find_duplicates
from weft.passes.findings import NAME, Facts, Findings
from weft.passes.narrowing import find_casts, narrow
from weft.passes.options import pass_text
from weft.passes.reshards import drop, find_gathers_of_parts, find_reductions_to_parts, scatter


@dataclass(frozen=True)
class Dedupe:
    """Do the same collective of the same value once; make reduce-scatters of all-reduces of which a rank needs its own
    part; leave out gathers of parts of what is there; cast to smaller dtypes before gathers and not behind them.

    `max_memory_increase_gb`: how far the peak of the program's memory may rise, since results are held longer; none
    is without limit.
    """

    name: ClassVar[str] = NAME
    exact: ClassVar[bool] = False  # a reduce-scatter may sum in another order than an all-reduce
    reorders: ClassVar[bool] = False

    max_memory_increase_gb: float | None = 0.0

    def __post_init__(self) -> None:
        if self.max_memory_increase_gb is not None and not self.max_memory_increase_gb >= 0:  # NaN is not either
            raise OptionError(f"dedupe: max_memory_increase_gb must be at least 0, not {self.max_memory_increase_gb}")

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each change, a remark for each and for each that looked like one."""
        increase = self.max_memory_increase_gb
        budget = Budget(program, int(increase * 1e9) if increase is not None else None)
        found = Findings(Facts.of(program, context.cost), budget)
        find_gathers_of_parts(found)
        find_duplicates(found)
        find_reductions_to_parts(found)
        find_casts(found)
        return Plan(pass_text(self), fingerprint(program), tuple(found.steps), tuple(found.remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Change what the plan says, and take away what nobody uses any more."""
        check_fits(plan, program)
        if not plan.steps:
            return program.stamped(plan.pass_text)
        editor, removed = Editor(program), set[str]()
        for step in plan.steps:
            if step.verb not in _VERBS or any(name not in program for name in step.ops) or len(step.ops) < 2:
                raise PlanError(f"not a step of {NAME}, or one that this program does not have: {step}")
            removed.update(_VERBS[step.verb](editor, program, step))
        _sweep(editor, program, removed)
        return editor.finish(plan.pass_text)


_VERBS: Mapping[str, Callable[[Editor, Program, Step], Iterable[str]]] = {
    "once": lambda editor, program, step: do_once(editor, program, step.ops),
    "drop": lambda editor, program, step: drop(editor, program, step.ops[0], step.ops[1]),
    "scatter": lambda editor, program, step: scatter(editor, program, step.ops[0], step.ops[1:]),
    "narrow": lambda editor, program, step: narrow(editor, program, step.ops[0], step.ops[1:]),
}


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
