"""`bucket_auto`: chooses the buckets by what they cost and save."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import ClassVar

from weft.analysis.windows import Window, sent_on, windows
from weft.cost.model import CostModel, HardwareModel
from weft.cost.prices import prices
from weft.errors import OptionError, WeftWarning
from weft.ir.program import Collective, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.chains import Link, Stream, best_buckets
from weft.passes.converting import SavedByPacks
from weft.passes.fitting_in import Limits, Placed
from weft.passes.joining import joint_ops
from weft.passes.members import (
    COALESCED,
    KINDS,
    apply_buckets,
    bucket_step,
    check_options,
    copies_us,
    key_of,
    mergeable,
)
from weft.passes.merging import REDUCTIONS
from weft.passes.options import pass_text
from weft.passes.placing import best_placement, times_without_waiting
from weft.passes.reaching import Room, reaches
from weft.sim.contract import contract
from weft.sim.merged import merged
from weft.sim.simulate import simulate
from weft.sim.sketch import Piece, Placement, Sketch

_SHORT = 48  # a chain of no more collectives is also cut without slack; the simulator, which sees more, chooses
_SLACK = 0.001  # of the step: for a delay of compute by less than that no other cut of a longer chain is looked for
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of a chain, for a bucket: the next one if memory does not allow more
# To double a bucket that saves no more than this share of its time is not worth a thought; where a group has more to
# send than there is to compute, less is worth it: least if memory is limited, for a larger bucket is held for longer.
_SATURATED, _CROWDED, _CROWDED_AND_LIMITED = 0.01, 0.001, 0.005


@dataclass(frozen=True)
class BucketAuto:
    """Merge collectives where that makes the step shorter.

    The collectives of one key are a chain on their group's stream. Reductions start when their inputs are there; for
    gathers it is the other way round, seen from the end: they must be there when they are used. Each chain is cut into
    buckets in the best way there is, given the times of collectives by size, what the copies cost, and how much compute
    is slowed while anything is under way; and each is launched when its time has come: a reduction as soon, a gather as
    late as it can. What the simulator does not confirm is left as it was.

    - `kinds`: which kinds of collectives
    - `mode`: how they are merged, as in `bucket`; `auto` takes for each chain what is better, `coalesced_pack` or
      `default`, and mere `coalesced` for a bucket in which no conversions can be done together
    - `max_mb`: how many megabytes a bucket may have at most
    """

    name: ClassVar[str] = "bucket_auto"
    exact: ClassVar[bool] = False  # merged reductions may be summed in another order
    reorders: ClassVar[bool] = True

    kinds: tuple[str, ...] = KINDS[:3]
    mode: str = "auto"
    max_mb: float = 1000.0

    def __post_init__(self) -> None:
        check_options(self.name, self.kinds, self.mode if self.mode != "auto" else "default")
        if not self.max_mb >= 0:
            raise OptionError(f"bucket_auto: max_mb must be at least 0, not {self.max_mb}")

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each bucket that the simulator confirms; a remark for each chain and each that is in none."""
        cost = context.needed_cost(self.name)
        able, others = mergeable(program, self.kinds, self.modes[0])
        remarks = [Remark(self.name, name, "refused", why) for name, why in others.items()]
        with warnings.catch_warnings():
            # To look at a bucket that is larger than anything measured is not yet to make it.
            warnings.simplefilter("ignore", WeftWarning)
            search = _Search(self, program, cost, Limits(context.memory_limit), able)
            chains = search.chains(able)
            remarks += map(search.in_time, chains[:1])
            remarks += search.try_all(chains)
        steps = search.steps(able)
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        return apply_buckets(program, plan)

    @property
    def modes(self) -> tuple[str, ...]:
        return ("coalesced_pack", "default") if self.mode == "auto" else (self.mode,)


@dataclass(frozen=True)
class _Trial:
    """The buckets of one chain, with those that were chosen before, and what becomes of the step."""

    cut: list[tuple[int, ...]]
    buckets: dict[tuple[int, ...], str]
    placed: Placed


class _Search:
    """Buckets, chain by chain, as long as the step becomes shorter."""

    def __init__(
        self, options: BucketAuto, program: Program, cost: CostModel, limits: Limits, able: Sequence[Window]
    ) -> None:
        """`able` are those that can be in a bucket of the first mode."""
        self._options, self._program, self._cost, self._limits = options, program, cost, limits
        priced = prices(program, cost)
        self._original_us = simulate(program, cost, priced=priced).step_us
        self._sketch = contract(program, priced)
        self._times = times_without_waiting(self._sketch)
        self._number: Mapping[str, int] = {piece.name: number for number, piece in enumerate(self._sketch.pieces)}
        self._able = {options.modes[0]: _names(able)}
        for mode in options.modes[1:]:
            self._able[mode] = _names(mergeable(program, options.kinds, mode)[0])
        self._reaches: dict[tuple[tuple[str, ...], float], list[int]] = {}  # those that were asked for
        self._saved: dict[tuple[int, ...], SavedByPacks] = {}  # by packs, of those buckets that were asked for
        self._buckets: dict[tuple[int, ...], str] = {}  # the numbers of the members, and how they are merged
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

    def try_all(self, chains: Sequence[Sequence[int]]) -> list[Remark]:
        """Put all chains into buckets where that helps; remarks say so.

        Chains that send on what others have received, and these others, come last if they have buckets in common: they
        are tried at once, since merging one of them alone only delays the other.
        """
        relays = self._relays()
        linked = {number for bucket in relays for number in bucket}
        remarks = [self.try_chain(chain) for chain in chains if linked.isdisjoint(chain)]
        if relays:
            remarks.append(self._try_relays(relays))
            if remarks[-1].verdict == "refused":
                remarks += [self.try_chain(chain) for chain in chains if not linked.isdisjoint(chain)]
        return remarks

    def _try_relays(self, relays: list[tuple[int, ...]]) -> Remark:
        trial = self._trial(relays, self._options.modes[0])
        name, count = self._sketch.pieces[relays[0][0]].name, sum(map(len, relays))
        how = f"{count} collectives in {counted(len(relays), 'bucket')}, of which some send on what the others received"
        saved = self._placed.run.step_us - trial.placed.run.step_us
        if trial.placed.over(self._limits) > self._placed.over(self._limits):
            why = f"would need {trial.placed.peak / 1e9:,.2f} GB, and may have {(self._limits.memory or 0) / 1e9:,.2f}"
            return Remark(self._options.name, name, "refused", f"{how}, {why}")
        if saved <= 0:
            return Remark(self._options.name, name, "refused", f"{how}, would take {-saved:,.1f} us more")
        self._buckets, self._placed = trial.buckets, trial.placed
        return Remark(self._options.name, name, "done", f"{how}, save {saved:,.1f} us")

    def _relays(self) -> list[tuple[int, ...]]:
        """Buckets of those that send on what others have received, where nothing is computed between them, and of those
        others."""
        mode, pieces, known = self._options.modes[0], self._sketch.pieces, windows(self._program)
        clock = [*accumulate(self._sketch.us)]
        found: dict[Hashable, dict[int, None]] = {}
        taken: set[int] = set()
        for name, givers in sent_on(self._program).items():
            numbers = [self._number[one] for one in (name, *givers)]
            if self._able[mode].issuperset((name, *givers)) and taken.isdisjoint(numbers):
                taken.update(numbers)
                us = clock[pieces[numbers[0]].ready]
                for number in numbers:
                    key = key_of(self._program, known[pieces[number].name], mode)
                    found.setdefault((us, key), {})[number] = None
        return [tuple(sorted(bucket)) for bucket in found.values() if self._is_one([pieces[one] for one in bucket])]

    def _is_one(self, pieces: Sequence[Piece]) -> bool:
        """Whether these are several, and can be a bucket."""
        return len(pieces) > 1 and reaches(pieces, Room(self._options.max_mb * 1e6))[-1] == 0

    def try_chain(self, chain: Sequence[int]) -> Remark:
        """Put a chain into buckets if that helps; a remark says so."""
        first = self._sketch.pieces[chain[0]]
        what = f"{counted(len(chain), first.comm.kind)} over {first.group}"
        for share in _SHARES:
            trials = [
                self._trial(self._cut(chain, mode, share, slack), mode)
                for mode in self._modes(chain)
                for slack in ((_SLACK, 0.0) if len(chain) <= _SHORT else (_SLACK,))
            ]
            best = min(trials, key=lambda one: (one.placed.over(self._limits), one.placed.run.step_us))
            if not best.placed.over(self._limits):
                break
        if not best.cut:
            return Remark(self._options.name, first.name, "refused", f"{what}: there is nothing to gain")
        trial, cut = best.placed, best.cut
        ways = ", ".join(sorted({best.buckets[bucket] for bucket in cut}))
        how = f"{sum(map(len, cut))} of {what} in {counted(len(cut), 'bucket')} ({ways})"
        saved = self._placed.run.step_us - trial.run.step_us
        if trial.over(self._limits) > self._placed.over(self._limits):
            why = f"{how} would need {trial.peak / 1e9:,.2f} GB, and may have {(self._limits.memory or 0) / 1e9:,.2f}"
            return Remark(self._options.name, first.name, "refused", why)
        if saved <= 0:
            return Remark(self._options.name, first.name, "refused", f"{how} would take {-saved:,.1f} us more")
        self._buckets, self._placed = best.buckets, trial
        return Remark(self._options.name, first.name, "done", f"{how} save {saved:,.1f} us")

    def _modes(self, chain: Sequence[int]) -> tuple[str, ...]:
        """The modes that are worth a trial: in a long chain, to copy what can be coalesced only where members are
        joined."""
        if len(chain) <= _SHORT or self._joint_launches(chain):
            return self._options.modes
        return self._options.modes[:1]

    def _trial(self, cut: list[tuple[int, ...]], mode: str) -> _Trial:
        buckets = {**self._buckets, **{bucket: self._way(bucket, mode) for bucket in cut}}
        placed = best_placement(self._merged(buckets), self._limits) if cut else self._placed
        return _Trial(cut, buckets, placed)

    def _way(self, bucket: tuple[int, ...], mode: str) -> str:
        """How a bucket is merged in a mode: conversions are done together where that saves anything."""
        return "coalesced" if mode == "coalesced_pack" and self._saved_by_packs(bucket).us <= 0 else mode

    def _saved_by_packs(self, bucket: Sequence[int]) -> SavedByPacks:
        key = tuple(bucket)
        if key not in self._saved:
            self._saved[key] = SavedByPacks.of(self._program, self._windows(bucket), self._cost)
        return self._saved[key]

    def _windows(self, bucket: Sequence[int]) -> list[Window]:
        return [windows(self._program)[self._sketch.pieces[number].name] for number in bucket]

    def steps(self, able: Sequence[Window]) -> list[Step]:
        """Everything that is merged or launched elsewhere; nothing if the original is as good."""
        if self._placed.run.step_us >= self._original_us:
            return []
        sketch, found = self._merged(self._buckets), []
        way = {sketch.bucket[bucket[0]]: mode for bucket, mode in self._buckets.items()}
        members: dict[int, list[Window]] = {}
        for window in able:
            members.setdefault(sketch.bucket[self._number[window.start.name]], []).append(window)
        for number in self._placed.placement.order:
            if number in members:
                where = sketch.slots[self._placed.placement.launch[number]]
                found.append(bucket_step(self._program, members[number], way.get(number, "alone"), where))
        return found

    def _merged(self, buckets: Mapping[tuple[int, ...], str]) -> Sketch:
        def copies(bucket: Sequence[int], piece: Piece) -> float | None:
            mode = buckets[tuple(bucket)]
            return None if mode in COALESCED else self._copies(bucket, piece, mode)

        def saved(bucket: Sequence[int]) -> tuple[float, float]:
            by_packs = self._saved_by_packs(bucket)
            return (
                (by_packs.before_us, by_packs.behind_us) if buckets[tuple(bucket)] == "coalesced_pack" else (0.0, 0.0)
            )

        return merged(self._sketch, list(buckets), self._cost, copies, saved) if buckets else self._sketch

    def _copies(self, bucket: Sequence[int], piece: Piece, mode: str) -> float:
        """What the copies cost, less the launches that are saved where all members do the same first."""
        us = copies_us(piece.comm, mode, self._cost)(piece.nbytes)
        saved = self._joint_launches(bucket) * self._cost.launch_us if isinstance(self._cost, HardwareModel) else 0.0
        return us - saved

    def _joint_launches(self, bucket: Sequence[int]) -> int:
        """How many launches are saved because all members do the same first."""
        if self._sketch.pieces[bucket[0]].comm.kind not in REDUCTIONS:
            return 0
        return max(0, len(joint_ops(self._program, self._windows(bucket))) - 1)

    def _cut(self, chain: Sequence[int], mode: str, share: float, slack: float) -> list[tuple[int, ...]]:
        """The best buckets of a chain, those of several, none with more than a share of the chain. A chain of gathers
        is seen from the end."""
        pieces, times = self._sketch.pieces, self._times
        comm, mirrored = pieces[chain[0]].comm, pieces[chain[0]].grows
        able = [number for number in chain if pieces[number].name in self._able[mode]]
        ordered = sorted(able, key=lambda n: (-pieces[n].used, -n) if mirrored else (pieces[n].ready, n))
        ready = [times[-1] - times[pieces[n].used] if mirrored else times[pieces[n].ready] for n in ordered]
        reach = self._reach([pieces[n] for n in ordered], comm, share)
        links = [Link(time, pieces[n].nbytes, far) for time, n, far in zip(ready, ordered, reach, strict=True)]
        copies = copies_us(comm, mode, self._cost)
        drag = 1 - 1 / self._sketch.slowdown
        stream = Stream(partial(self._cost.collective_us, comm), copies, times[-1], drag)
        found = [tuple(sorted(ordered[one.first : one.last])) for one in best_buckets(links, stream, slack)]
        return [bucket for bucket in found if len(bucket) > 1]

    def _reach(self, pieces: Sequence[Piece], comm: Collective, share: float) -> list[int]:
        """For each piece of a chain, the first that it can be in a bucket with."""
        key = tuple([piece.name for piece in pieces]), share
        if key not in self._reaches:  # modes and slacks have it in common
            whole = sum([piece.nbytes for piece in pieces])
            most = min(self._options.max_mb * 1e6, self._enough(comm, whole), share * whole)
            limited = self._limits.memory is not None and bool(pieces) and pieces[0].grows
            room = Room(most, self._limits.memory, self._least) if limited else Room(most)
            self._reaches[key] = reaches(pieces, room)
        return self._reaches[key]

    @cached_property
    def _least(self) -> list[int]:
        """Memory in each half-slot if gathers are launched where they are used and everything else when it is
        ready."""
        pieces = self._sketch.pieces
        launch = tuple(piece.due if piece.grows else piece.ready for piece in pieces)
        wait = tuple(max(slot, piece.settled) for slot, piece in zip(launch, pieces, strict=True))
        return self._sketch.memory(Placement(launch, wait, ()))

    def _enough(self, comm: Collective, most: int) -> float:
        """The bytes beyond which a bucket gains nothing by being larger."""
        nbytes = 1 << 20
        busy_us = sum(piece.us for piece in self._sketch.pieces if piece.comm.group == comm.group)
        crowded = _CROWDED if self._limits.memory is None else _CROWDED_AND_LIMITED
        saturated = crowded if busy_us > sum(self._sketch.us) else _SATURATED
        while nbytes < most:
            once, twice = self._cost.collective_us(comm, nbytes), self._cost.collective_us(comm, 2 * nbytes)
            if twice > 2 * once * (1 - saturated):
                break
            nbytes *= 2
        return nbytes


def _names(able: Sequence[Window]) -> frozenset[str]:
    return frozenset(window.start.name for window in able)
