"""`bucket_auto`: chooses the buckets by what they cost and save."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import ClassVar

from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window
from weft.cost.model import CostModel, HardwareModel
from weft.cost.prices import Prices, prices
from weft.ir.program import Collective, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.chains import Link, best_buckets
from weft.passes.combine import place
from weft.passes.members import KINDS, apply_buckets, bucket_step, check_options, key_of, mergeable
from weft.passes.options import pass_text
from weft.sim.simulate import simulate

Chain = Sequence[Window]


@dataclass(frozen=True)
class BucketAuto:
    """Merge collectives where that makes the step shorter.

    The collectives of one key are a chain on their group's stream. Reductions start when their inputs are there; for
    gathers it is the other way round, seen from the end: they must be there when they are used. Each chain is cut into
    buckets in the best way there is, given the times of collectives by size and what the copies cost, and each is
    launched when its time has come: a reduction as soon, a gather as late as it can. What the simulator does not
    confirm is left as it was.

    - `kinds`: which kinds of collectives
    - `mode`: how they are merged, as in `bucket`
    - `max_mb`: how many megabytes a bucket may have at most
    """

    name: ClassVar[str] = "bucket_auto"
    exact: ClassVar[bool] = False  # merged reductions may be summed in another order
    reorders: ClassVar[bool] = True

    kinds: tuple[str, ...] = KINDS[:3]
    mode: str = "default"
    max_mb: float = 1000.0

    def __post_init__(self) -> None:
        check_options(self.name, self.kinds, self.mode)

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each bucket that the simulator confirms; a remark for each chain and each that is in none."""
        cost = context.needed_cost(self.name)
        able, others = mergeable(program, self.kinds, self.mode)
        remarks = [Remark(self.name, name, "refused", why) for name, why in others.items()]
        chains: dict[Hashable, list[Window]] = {}
        for window in able:
            chains.setdefault(key_of(program, window, self.mode), []).append(window)
        steps: list[Step] = []
        priced = prices(program, cost)
        step_us = simulate(program, cost, priced=priced).step_us
        for chain in chains.values():
            found = self._steps(program, chain, cost, priced)
            took = simulate(self._made(program, [*steps, *found]), cost).step_us
            remarks.append(self._remark(chain, found, step_us - took))
            if took < step_us:
                steps, step_us = [*steps, *found], took
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        return apply_buckets(program, plan)

    def _made(self, program: Program, steps: Sequence[Step]) -> Program:
        return apply_buckets(program, Plan(pass_text(self), fingerprint(program), tuple(steps)))

    def _steps(self, program: Program, chain: Chain, cost: CostModel, priced: Prices) -> list[Step]:
        """A chain in its best buckets, each launched when its time has come. That of gathers is seen from the end."""
        comm = chain[0].start.comm
        assert comm is not None, "a start communicates"
        clock = [0.0, *accumulate(priced.us)]  # when the compute stream comes to each op, if never held
        mirrored = comm.kind == "all_gather"
        ordered = sorted(chain, key=lambda one: (-one.used, -one.position) if mirrored else (one.ready, one.position))
        times = [clock[-1] - clock[one.used] if mirrored else clock[one.ready + 1] for one in ordered]
        links = [Link(time, total_bytes(one.start)) for time, one in zip(times, ordered, strict=True)]

        def together(first: int, last: int) -> bool:
            small = sum(link.nbytes for link in links[first : last + 1]) <= self.max_mb * 1e6
            return first == last or (small and place(ordered[first : last + 1]) is not None)

        copies = self._copies(comm, cost)
        found = []
        for bucket in best_buckets(links, partial(cost.collective_us, comm), copies, together, clock[-1]):
            members = sorted(ordered[bucket.first : bucket.last], key=lambda one: one.position)
            where = _behind(members, bisect_right(clock, clock[-1] - bucket.end) - 2) if mirrored else None
            found.append(bucket_step(program, members, self.mode if len(members) > 1 else "alone", where))
        return found

    def _copies(self, comm: Collective, cost: CostModel) -> Callable[[int], float]:
        """What it takes to copy a bucket together, and its parts out of a gathered one."""
        if self.mode == "coalesced" or not isinstance(cost, HardwareModel):
            return lambda nbytes: 0.0
        share = 1 / comm.group.size if comm.kind == "all_gather" else 1.0  # of the whole tensor, what is sent
        out = 1.0 if comm.kind == "all_gather" else 0.0
        return lambda nbytes: cost.launch_us + cost.moved_us(round(2 * nbytes * (share + out)))

    def _remark(self, chain: Chain, steps: Sequence[Step], saved_us: float) -> Remark:
        first = chain[0].start
        assert first.comm is not None, "a start communicates"
        merged = [step for step in steps if len(step.ops) > 1]
        what = f"{counted(len(chain), first.comm.kind)} over {first.comm.group.name}"
        if saved_us == 0:
            return Remark(self.name, first.name, "refused", f"{what}: there is nothing to gain")
        how = f"{sum(len(step.ops) for step in merged)} of {what} in {counted(len(merged), 'bucket')}"
        if saved_us < 0:
            return Remark(self.name, first.name, "refused", f"{how} would take {-saved_us:,.1f} us more")
        return Remark(self.name, first.name, "done", f"{how}, all launched in time, save {saved_us:,.1f} us")


def _behind(members: Chain, position: int) -> int:
    """The place in the windows of all members that is nearest to a position."""
    return min(max(position, *(one.ready for one in members)), min(one.due for one in members) - 1)
