"""`dedupe`: communication that gives nothing new is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from weft.errors import OptionError
from weft.ir.program import Program
from weft.passes.base import Context, Plan, fingerprint
from weft.passes.budget import Budget
from weft.passes.duplicates import ONCE, find_duplicates
from weft.passes.findings import Facts, Findings
from weft.passes.leaving_out import Verb, leave_out
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

    name: ClassVar[str] = "dedupe"
    exact: ClassVar[bool] = False  # a reduce-scatter may sum in another order than an all-reduce
    reorders: ClassVar[bool] = False

    max_memory_increase_gb: float | None = 0.0

    def __post_init__(self) -> None:
        if self.max_memory_increase_gb is not None and not self.max_memory_increase_gb >= 0:  # NaN is not either
            raise OptionError(f"dedupe: max_memory_increase_gb must be at least 0, not {self.max_memory_increase_gb}")

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each change, a remark for each and for each that looked like one."""
        increase = self.max_memory_increase_gb
        budget = Budget(program, None if increase is None or increase == inf else int(increase * 1e9))
        found = Findings(self.name, Facts.of(program, context.cost), budget)
        find_gathers_of_parts(found)
        find_duplicates(found)
        find_reductions_to_parts(found)
        find_casts(found)
        return Plan(pass_text(self), fingerprint(program), tuple(found.steps), tuple(found.remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Change what the plan says, and take away what nobody uses any more."""
        return leave_out(program, plan, _VERBS)


_VERBS: Mapping[str, Verb] = {
    **ONCE,
    "drop": lambda editor, program, step: drop(editor, program, step.ops[0], step.ops[1]),
    "scatter": lambda editor, program, step: scatter(editor, program, step.ops[0], step.ops[1:]),
    "narrow": lambda editor, program, step: narrow(editor, program, step.ops[0], step.ops[1:]),
}
