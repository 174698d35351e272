"""`schedule`: the order of the whole step, so that communication hides behind compute within the memory there is."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from weft.analysis.pairs import pairs
from weft.analysis.windows import windows
from weft.cost.prices import Prices
from weft.errors import OptionError, WeftWarning
from weft.ir.program import Program
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.fitting_in import Limits, Placed
from weft.passes.listing import listed, longest_tail
from weft.passes.moves import apply_moves, moves_to
from weft.passes.options import pass_text
from weft.passes.placing import best_placement
from weft.passes.polishing import polished
from weft.sim.contract import contract
from weft.sim.simulate import simulate
from weft.sim.sketch import Placement, Sketch
from weft.sim.timeline import Timeline

_WORTH_IT = 0.002  # of the step: if less than this is exposed, compute is not reordered for it
_REACHES = (1, 4)  # how far ahead compute is looked for, in times of the longest collective that is exposed


@dataclass(frozen=True)
class SchedulePass:
    """Move starts, waits and compute so that the step is short, within limits.

    Starts move up and waits down; what makes memory (gathers) is launched as late as it comes in time, what frees it
    (reductions) as soon as it can. Where that leaves something exposed, compute is reordered to hide it. The simulator
    decides what is kept, and the step is never longer than it was.

    - `max_memory_increase_gb`, `max_memory_increase_ratio`: how far the peak may grow, in gigabytes or as a share of
      the original; the stricter one counts, as does a limit for the whole run. None means no limit
    - `max_in_flight_gb`: how many gigabytes may be in flight at a time
    - `max_compute_pre_fetch`: how many compute kernels a gather may be launched ahead of its use
    - `pin`: collectives that stay where they are, or, as `name@op`, are launched directly behind an op
    - `keep_order`: the collectives of a group keep their order
    - `reorder_compute`: whether compute may move, too
    """

    name: ClassVar[str] = "schedule"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = True

    max_memory_increase_gb: float | None = None
    max_memory_increase_ratio: float | None = None
    max_in_flight_gb: float | None = None
    max_compute_pre_fetch: int | None = None
    pin: tuple[str, ...] = ()
    keep_order: bool = False
    reorder_compute: bool = True
    rounds: int = 4

    def __post_init__(self) -> None:
        for name in (
            "max_memory_increase_gb",
            "max_memory_increase_ratio",
            "max_in_flight_gb",
            "max_compute_pre_fetch",
        ):
            value = getattr(self, name)
            if value is not None and not value >= 0:  # NaN is not either
                raise OptionError(f"schedule: {name} must be at least 0, or none for no limit, not {value}")
        if self.rounds < 1:
            raise OptionError(f"schedule: rounds must be at least 1, not {self.rounds}")

    def plan(self, program: Program, context: Context) -> Plan:
        """The fewest moves to the best order that was found; a remark for each collective that is still exposed."""
        search = _Search(self, program, context)
        order, after = search.best()
        remarks = tuple(_remarks(self.name, search.original, after))
        return Plan(pass_text(self), fingerprint(program), tuple(moves_to(program, order)), remarks)

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)

    def limits(self, peak: int, memory_limit: int | None) -> Limits:
        """What holds for a program with this peak. A limit that it breaks already is raised to what it needs."""
        known = [memory_limit]
        if self.max_memory_increase_gb is not None:
            known.append(peak + round(self.max_memory_increase_gb * 1e9))
        if self.max_memory_increase_ratio is not None:
            known.append(round(peak * (1 + self.max_memory_increase_ratio)))
        least = min((limit for limit in known if limit is not None), default=None)
        if least is not None and least < peak:
            message = (
                f"the step needs {peak / 1e9:.2f} GB as it is, and may have {least / 1e9:.2f} GB: it will not grow"
            )
            warnings.warn(message, WeftWarning, stacklevel=2)
            least = peak
        flying = None if self.max_in_flight_gb is None else round(self.max_in_flight_gb * 1e9)
        return Limits(least, flying, self.keep_order)


class _Search:
    """Orders of compute, and for each the best places for its collectives."""

    def __init__(self, options: SchedulePass, program: Program, context: Context) -> None:
        self._options = options
        self.original = simulate(program, context.needed_cost(options.name))
        self._limits = options.limits(self.original.peak_bytes, context.memory_limit)
        self._pinned = pinned(program, options.pin)

    def best(self) -> tuple[list[int], Timeline]:
        """The order that was found best, as positions of the program, and how it runs; the original if nothing is
        better."""
        same = list(range(len(self.original.program)))
        best, placed = self._candidate(same)
        held = [us for us in placed.run.held if us > 0]
        found = [(same, self.original), best]
        if self._options.reorder_compute and sum(held) > _WORTH_IT * placed.run.step_us:
            program, priced = self.original.program, self.original.prices
            for times in _REACHES:
                order = listed(program, priced, longest_tail, times * max(held))
                found.append(self._candidate(order)[0])
        fitting = [(order, after) for order, after in found if self._fits(after)]
        order, after = min(fitting, key=lambda one: one[1].step_us)
        if self._options.reorder_compute and not self._limits.in_flight and not self._limits.keep_order:
            order = self._polished(order)
            after = _reordered(self.original, order)
        return order, after

    def _candidate(self, order: list[int]) -> tuple[tuple[list[int], Timeline], Placed]:
        """This order with its collectives in the best places."""
        before = _reordered(self.original, order)
        sketch = contract(before.program, before.prices, self._pinned)
        sketch = _prefetching(sketch, before.prices, self._options.max_compute_pre_fetch)
        placed = best_placement(sketch, self._limits, self._options.rounds)
        moved = order_of(sketch, placed.placement)
        return ([order[place] for place in moved], _reordered(before, moved)), placed

    def _polished(self, order: list[int]) -> list[int]:
        program, priced = self.original.program, self.original.prices
        still = {program.index[wait] for start in self._pinned for wait in pairs(program).waits[start]}
        still |= {program.index[start] for start in self._pinned}
        return polished(program, priced, order, still, lambda order: self._fits(_reordered(self.original, order)))

    def _fits(self, timeline: Timeline) -> bool:
        return self._limits.memory is None or timeline.peak_bytes <= self._limits.memory


def order_of(sketch: Sketch, placement: Placement) -> list[int]:
    """The positions of the program's ops in the order that a placement stands for."""
    program, known = sketch.program, windows(sketch.program)
    place: dict[int, tuple[int, int, int]] = {}
    for rank, number in enumerate(placement.order):
        window, piece = known.get(sketch.pieces[number].name), sketch.pieces[number]
        if window is None or piece.fixed:
            continue
        launch, wait = sketch.slots[placement.launch[number]], sketch.slots[placement.wait[number]]
        place.update(dict.fromkeys(window.launched, (launch, 2, rank)))
        place.update(dict.fromkeys(window.waited, (wait, 3, rank)))
    return sorted(range(len(program)), key=lambda position: (place.get(position, (position, 1, 0)), position))


def _reordered(timeline: Timeline, order: Sequence[int]) -> Timeline:
    """The same step in another order; ops cost what they did."""
    program, known = timeline.program, timeline.prices
    ops = tuple(program.ops[place] for place in order)
    priced = replace(
        known,
        us=tuple(known.us[place] for place in order),
        comm_us=tuple(known.comm_us[place] for place in order),
        links={now: known.links[place] for now, place in enumerate(order) if place in known.links},
    )
    return simulate(replace(program, ops=ops), timeline.cost, priced=priced)


def _prefetching(sketch: Sketch, priced: Prices, most: int | None) -> Sketch:
    """The sketch with gathers that are launched no more than so many kernels ahead of their use."""
    if most is None:
        return sketch
    busy = [0, *accumulate(int(us > 0) for us in priced.us)]
    kernels = [busy[position + 1] for position in sketch.slots]  # up to each slot
    pieces = []
    for piece in sketch.pieces:
        first = bisect_left(kernels, kernels[piece.used] - most)
        pieces.append(replace(piece, ready=min(max(piece.ready, first), piece.due)) if piece.grows else piece)
    return replace(sketch, pieces=tuple(pieces))


def pinned(program: Program, pins: Sequence[str]) -> Collection[str]:
    """The starts that pins name. OptionError if there is no such collective."""
    known = {op.name for op in program.starts}
    for pin in pins:
        if pin not in known:
            raise OptionError(f"schedule: pin names %{pin}, and this program has no such collective")
    return frozenset(pins)


def _remarks(name: str, before: Timeline, after: Timeline) -> Iterator[Remark]:
    """What each collective that was exposed, or still is, gained; with the reason for what is left."""
    left = {exposure.start: exposure for exposure in after.exposures}
    for op in after.program.starts:
        was, still = before.exposed.get(op.name, 0.0), left.get(op.name)
        if still is not None:
            why = "; ".join(f"{cause.us:,.1f} us: {cause.message}" for cause in still.causes)
            yield Remark(name, op.name, "note", f"exposed for {still.us:,.1f} us, before {was:,.1f} us: {why}")
        elif was > 0:
            yield Remark(name, op.name, "done", f"hidden; it was exposed for {was:,.1f} us")
