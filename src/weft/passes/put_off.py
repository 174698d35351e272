"""`put_off`: what sends on what others have received leaves these the time to arrive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from weft.analysis.memory import memory
from weft.analysis.orders import reordered
from weft.analysis.windows import Window, sent_on, windows
from weft.cost.prices import prices
from weft.errors import OptionError
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.moves import apply_moves, moves_to
from weft.passes.options import pass_text
from weft.sim.units import size_text


@dataclass(frozen=True)
class PutOff:
    """Put off collectives that send on what others have received.

    Hybrid sharding scatters a gradient within a node, and reduces what comes out between nodes. As written, the second
    follows the first at once, so there is no time in which the first could fly. Here those that follow each other
    within a share of the step's compute are launched together, and by as much later: so both have time, can be in
    flight while other groups are, and can be merged with their like. What is used before that stays.

    - `share`: of the step's compute, from 0 to 1
    """

    name: ClassVar[str] = "put_off"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = True

    share: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise OptionError(f"put_off: share must be from 0 to 1, not {self.share}")

    def plan(self, program: Program, context: Context) -> Plan:
        """The moves, and a remark for each run of collectives that are put off or stay."""
        clock = [*accumulate(prices(program, context.needed_cost(self.name)).us)]
        late_us = self.share * clock[-1] if clock else 0.0
        goals: dict[int, int] = {}  # of each op that moves, the position behind which it will stand
        remarks: list[Remark] = []
        for run in _runs(program, clock, late_us):
            goal = bisect_left(clock, clock[run[-1].position] + late_us, lo=run[-1].position)
            verdict, how = (
                "done",
                f"put off by {late_us:,.1f} us of compute, so that what is sent on has time to arrive",
            )
            if goal < min(one.due for one in run):
                moving = (place for one in run for place in (*one.launched, *one.waited))
                goals.update({place: goal for place in moving if place <= goal})
            else:
                verdict, how = (
                    "refused",
                    f"behind which there are no {late_us:,.1f} us of compute before the use or the end",
                )
            remarks.append(Remark(self.name, run[0].start.name, verdict, f"{counted(len(run), 'collective')} {how}"))
        steps: Sequence[Step] = ()
        if goals:
            order = sorted(range(len(program)), key=lambda place: (goals.get(place, place), place in goals, place))
            if (why := _refusal(program, order, context.memory_limit)) is None:
                steps = moves_to(program, order)
            else:
                remarks = [Remark(self.name, "", "refused", why)]
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)


def _runs(program: Program, clock: Sequence[float], most_us: float) -> list[list[Window]]:
    """Those that send something on, in order, as runs in which there is no more to compute than that."""
    found: list[list[Window]] = []
    for one in (windows(program)[name] for name in sent_on(program)):
        if found and clock[one.position] - clock[found[-1][0].position] <= most_us:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _refusal(program: Program, order: Sequence[int], limit: int | None) -> str | None:
    """Why this order takes too much memory, if it takes more than the limit and than it was."""
    if limit is None:
        return None
    peak, was = memory(reordered(program, order)).peak_bytes, memory(program).peak_bytes
    if peak <= max(limit, was):
        return None
    return f"what would be held for longer needs {size_text(peak)}, and may have {size_text(limit)}"
