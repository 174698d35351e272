"""`gather_once`: what was gathered is held until it is needed again, where there is memory for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.memory import memory
from weft.errors import OptionError
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.budget import Budget, Lease
from weft.passes.duplicates import ONCE, duplicates
from weft.passes.findings import Facts, Findings
from weft.passes.leaving_out import leave_out
from weft.passes.options import pass_text
from weft.sim.simulate import simulate

_WORTH_IT = 0.01  # of the step as it is: where the gathers that could be left out take less, none is


@dataclass(frozen=True)
class GatherOnce:
    """Hold what was gathered for the next one who needs it, as far as the memory limit of the run goes.

    Sharded parameters are gathered in the forward and once more in the backward, so that none has to be held meanwhile.
    Where the limit leaves memory, that is time to gain. What has to be held for the shortest time comes first: most of
    the step then has memory left for launching collectives early. Whether that would have been the better use of it is
    seen only when the step is scheduled, so `optimize` compares it with and without. If a run has no limit, nothing is
    held.

    `share`: how much of the memory that the limit leaves may be taken
    """

    name: ClassVar[str] = "gather_once"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:  # NaN is not either
            raise OptionError(f"gather_once: share must be from 0 to 1, not {self.share}")

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each gather that stands for later ones, a remark for each that is held or could be."""
        steps: list[Step] = []
        remarks: list[Remark] = []
        limit, peak = context.memory_limit, memory(program).peak_bytes
        if limit is not None and limit > peak:
            cost = context.needed_cost(self.name)
            facts = Facts.of(program, cost)
            found = Findings(self.name, facts, Budget(program, int(self.share * (limit - peak))))
            saved = sum(_decided(found, _repeated(facts)))
            if saved >= _WORTH_IT * simulate(program, cost).step_us:
                steps, remarks = found.steps, found.remarks
            elif found.steps:
                why = f"{counted(len(found.steps), 'gather')} could be held, and would save {saved:,.1f} us only"
                remarks = [Remark(self.name, found.steps[0].ops[0], "refused", why)]
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Leave out the gathers that the plan says."""
        return leave_out(program, plan, ONCE)


def _repeated(facts: Facts) -> list[Step]:
    """The gathers that could stand for later ones, if memory were no matter; those first that would be held for the
    shortest time."""
    steps = [step for step in duplicates(facts) if facts.program[step.ops[0]].target == "all_gather.start"]
    return sorted(steps, key=lambda step: (_held(facts, step), facts.program.index[step.ops[0]]))


def _held(facts: Facts, step: Step) -> int:
    """For how many ops more the first gather of a step is held."""
    first, *others = step.ops
    return max(facts.lifetime(name)[1] for name in others) - facts.lifetime(first)[1]


def _decided(found: Findings, steps: list[Step]) -> list[float]:
    """Take the steps for which there is memory. What each of them saves."""
    facts, saved = found.facts, []
    for step in steps:
        first, *others = step.ops
        _, death, size = facts.lifetime(first)
        leases: list[Lease] = [(death + 1, death + _held(facts, step), size)]
        leases += [(birth, end, -size) for birth, end, size in map(facts.lifetime, others)]
        us = sum(facts.start_us(facts.program[name]) for name in others)
        again = ", ".join(f"%{name}" for name in others)
        what = f"held for {counted(_held(facts, step), 'op')} more, until {again} would have gathered it again"
        if found.decide(facts.program[first], leases, f"{what}{facts.saved(us)}"):
            found.steps.append(step)
            saved.append(us)
    return saved
