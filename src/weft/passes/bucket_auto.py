"""`bucket_auto`: chooses the buckets by what they cost and save."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from weft.analysis.windows import Window
from weft.cost.model import CostModel
from weft.cost.prices import prices
from weft.errors import OptionError
from weft.ir.program import Collective, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.chains import Link, Stream, best_buckets
from weft.passes.fitting_in import Limits, Placed
from weft.passes.members import KINDS, apply_buckets, bucket_step, check_options, copies_us, key_of, mergeable
from weft.passes.options import pass_text
from weft.passes.placing import best_placement, times_without_waiting
from weft.sim.contract import contract
from weft.sim.merged import merged
from weft.sim.simulate import simulate
from weft.sim.sketch import Piece, Sketch

_SLACK = 0.001  # of the step: for less than that no other cut of a chain is looked for
_SATURATED = 0.01  # to double a bucket that saves no more than this share of its time is not worth a thought


@dataclass(frozen=True)
class BucketAuto:
    """Merge collectives where that makes the step shorter.

    The collectives of one key are a chain on their group's stream. Reductions start when their inputs are there; for
    gathers it is the other way round, seen from the end: they must be there when they are used. Each chain is cut into
    buckets in the best way there is, given the times of collectives by size, what the copies cost, and how much compute
    is slowed while anything is under way; and each is launched when its time has come: a reduction as soon, a gather as
    late as it can. What the simulator does not confirm is left as it was.

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
        if not self.max_mb >= 0:
            raise OptionError(f"bucket_auto: max_mb must be at least 0, not {self.max_mb}")

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each bucket that the simulator confirms; a remark for each chain and each that is in none."""
        cost = context.needed_cost(self.name)
        able, others = mergeable(program, self.kinds, self.mode)
        remarks = [Remark(self.name, name, "refused", why) for name, why in others.items()]
        search = _Search(self, program, cost, Limits(context.memory_limit))
        chains = search.chains(able)
        if chains:
            remarks.append(search.in_time(chains[0]))
        remarks += map(search.try_chain, chains)
        steps = search.steps(able)
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        return apply_buckets(program, plan)


class _Search:
    """Buckets, chain by chain, as long as the step becomes shorter."""

    def __init__(self, options: BucketAuto, program: Program, cost: CostModel, limits: Limits) -> None:
        self._options, self._program, self._cost, self._limits = options, program, cost, limits
        priced = prices(program, cost)
        self._original_us = simulate(program, cost, priced=priced).step_us
        self._sketch = contract(program, priced)
        self._times = times_without_waiting(self._sketch)
        self._number: Mapping[str, int] = {piece.name: number for number, piece in enumerate(self._sketch.pieces)}
        self._buckets: list[list[int]] = []
        self._placed = best_placement(self._sketch, limits)

    def chains(self, able: Sequence[Window]) -> list[list[int]]:
        """The numbers of those that have a key in common, the chain that takes longest first."""
        found: dict[Hashable, list[int]] = {}
        for window in able:
            key = key_of(self._program, window, self._options.mode)
            found.setdefault(key, []).append(self._number[window.start.name])
        pieces = self._sketch.pieces
        return sorted(found.values(), key=lambda chain: (-sum(pieces[number].us for number in chain), chain))

    def in_time(self, chain: Sequence[int]) -> Remark:
        """What it saves that everything is launched when its time has come; said of a chain, before anything else."""
        saved = self._original_us - self._placed.run.step_us
        verdict, how = ("done", f"saves {saved:,.1f} us") if saved > 0 else ("refused", "saves nothing")
        what = f"to launch {counted(len(self._sketch.pieces), 'collective')} when their time has come {how}"
        return Remark(self._options.name, self._sketch.pieces[chain[0]].name, verdict, what)

    def try_chain(self, chain: Sequence[int]) -> Remark:
        """Put a chain into buckets if that helps; a remark says so."""
        found = self._cut(chain)
        several = [bucket for bucket in found if len(bucket) > 1]
        first = self._sketch.pieces[chain[0]]
        what = f"{counted(len(chain), first.comm.kind)} over {first.group}"
        if not several:
            return Remark(self._options.name, first.name, "refused", f"{what}: there is nothing to gain")
        how = f"{sum(map(len, several))} of {what} in {counted(len(several), 'bucket')}"
        trial = self._placement([*self._buckets, *several])
        saved = self._placed.run.step_us - trial.run.step_us
        if saved <= 0 or trial.over(self._limits) > self._placed.over(self._limits):
            return Remark(self._options.name, first.name, "refused", f"{how} would take {-saved:,.1f} us more")
        self._buckets += several
        self._placed = trial
        return Remark(self._options.name, first.name, "done", f"{how} save {saved:,.1f} us")

    def steps(self, able: Sequence[Window]) -> list[Step]:
        """Everything that is merged or launched elsewhere; nothing if the original is as good."""
        if self._placed.run.step_us >= self._original_us:
            return []
        sketch, found = self._merged(self._buckets), []
        members: dict[int, list[Window]] = {}
        for window in able:
            members.setdefault(sketch.bucket[self._number[window.start.name]], []).append(window)
        for number in self._placed.placement.order:
            if number in members:
                where = sketch.slots[self._placed.placement.launch[number]]
                way = self._options.mode if len(members[number]) > 1 else "alone"
                found.append(bucket_step(self._program, members[number], way, where))
        return found

    def _merged(self, buckets: Sequence[Sequence[int]]) -> Sketch:
        if not buckets:
            return self._sketch
        copies = self._copies if self._options.mode != "coalesced" else None
        return merged(self._sketch, buckets, self._cost, copies)

    def _placement(self, buckets: Sequence[Sequence[int]]) -> Placed:
        return best_placement(self._merged(buckets), self._limits)

    def _copies(self, piece: Piece) -> float:
        return copies_us(piece.comm, self._options.mode, self._cost)(piece.nbytes)

    def _cut(self, chain: Sequence[int]) -> list[list[int]]:
        """A chain in its best buckets. That of gathers is seen from the end."""
        pieces, times = self._sketch.pieces, self._times
        comm, mirrored = pieces[chain[0]].comm, pieces[chain[0]].grows
        ordered = sorted(chain, key=lambda n: (-pieces[n].used, -n) if mirrored else (pieces[n].ready, n))
        ready = [times[-1] - times[pieces[n].used] if mirrored else times[pieces[n].ready] for n in ordered]
        reach = self._reach([pieces[n] for n in ordered], comm)
        links = [Link(time, pieces[n].nbytes, far) for time, n, far in zip(ready, ordered, reach, strict=True)]
        copies = copies_us(comm, self._options.mode, self._cost)
        drag = 1 - 1 / self._sketch.slowdown
        stream = Stream(partial(self._cost.collective_us, comm), copies, times[-1], drag)
        return [sorted(ordered[one.first : one.last]) for one in best_buckets(links, stream, _SLACK)]

    def _reach(self, pieces: Sequence[Piece], comm: Collective) -> list[int]:
        """For each piece of a chain, the first that it can be in a bucket with."""
        most = min(self._options.max_mb * 1e6, self._enough(comm, sum(piece.nbytes for piece in pieces)))
        found = []
        for last, piece in enumerate(pieces):
            ready, due, settled, used, nbytes = piece.ready, piece.due, piece.settled, piece.used, piece.nbytes
            first = last
            while first > 0:
                one = pieces[first - 1]
                ready, due, settled = max(ready, one.ready), min(due, one.due), max(settled, one.settled)
                used, nbytes = min(used, one.used), nbytes + one.nbytes
                if ready > due or settled > used or nbytes > most:
                    break
                first -= 1
            found.append(first)
        return found

    def _enough(self, comm: Collective, most: int) -> float:
        """The bytes beyond which a bucket gains nothing by being larger."""
        nbytes = 1 << 20
        while nbytes < most:
            once, twice = self._cost.collective_us(comm, nbytes), self._cost.collective_us(comm, 2 * nbytes)
            if twice > 2 * once * (1 - _SATURATED):
                break
            nbytes *= 2
        return nbytes
