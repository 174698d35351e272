"""`schedule`: the order of the whole step, so that communication hides behind compute within the memory there is."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import inf
from operator import eq
from typing import ClassVar

from weft.analysis.orders import note_likely, reordered
from weft.analysis.pairs import pairs
from weft.analysis.windows import windows
from weft.cost.prices import Prices, note_prices
from weft.errors import OptionError, WeftWarning
from weft.ir.program import Program
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.fitting_in import Limits, Placed, stays
from weft.passes.keeping import Keeping
from weft.passes.listing import in_turn, listed, longest_tail
from weft.passes.moves import apply_moves, moves_to
from weft.passes.options import pass_text
from weft.passes.pinning import pins_of
from weft.passes.placing import RULES, best_placement
from weft.passes.polishing import polished
from weft.sim.contract import contract
from weft.sim.simulate import simulate
from weft.sim.sketch import Placement, Sketch
from weft.sim.timeline import Timeline
from weft.sim.units import size_text

_WORTH_IT = 0.01  # of the step: if less than this is exposed, compute is not reordered for it
_REACHES = (4, 16, 64)  # how far ahead compute is looked for, in times of the longest collective that is exposed
_LISTS = ((longest_tail, False), (in_turn, True))  # the rules by which it is listed; patient and feeding, or neither


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
    - `pin`: collectives that stay where they are, by their names or by modules such as `layers.*`; or, as `name@op`,
      one that is launched directly behind an op, whatever that costs
    - `keep_order`: the collectives of a group keep their order
    - `reorder_compute`: whether compute may move, too
    - `rule`: `in_time`, or `one_ahead`, as people do by hand: a gather is launched where the one before it is used
    - `rounds`: how often the times that were found are planned with once more
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
    rule: str = "in_time"
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
        if self.rule not in RULES:
            raise OptionError(f"schedule: there is no rule {self.rule!r}; there are: {', '.join(RULES)}")
        if self.rounds < 1:
            raise OptionError(f"schedule: rounds must be at least 1, not {self.rounds}")

    def plan(self, program: Program, context: Context) -> Plan:
        """The fewest moves to the best order that was found; a remark for each collective that is still exposed."""
        search = _Search(self, program, context)
        order, after = search.best()
        moves = moves_to(program, [search.pins.order[place] for place in order])
        note_likely(program, after.program)
        remarks = tuple(_remarks(self.name, search.original, after))
        return Plan(pass_text(self), fingerprint(program), tuple(moves), remarks)

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)

    def limits(self, peak: int, memory_limit: int | None) -> Limits:
        """What holds for a program with this peak. A limit that it breaks already is raised to what it needs."""
        known: list[float | None] = [memory_limit]
        if self.max_memory_increase_gb is not None:
            known.append(peak + self.max_memory_increase_gb * 1e9)
        if self.max_memory_increase_ratio is not None:
            known.append(peak * (1 + self.max_memory_increase_ratio))
        least = _whole(min((limit for limit in known if limit is not None), default=None))
        if least is not None and least < peak:
            message = f"the step needs {size_text(peak)} as it is, and may have {size_text(least)}: it will not grow"
            warnings.warn(message, WeftWarning, stacklevel=2)
            least = peak
        flying = _whole(None if self.max_in_flight_gb is None else self.max_in_flight_gb * 1e9)
        return Limits(least, flying, self.keep_order)


def _whole(limit: float | None) -> int | None:
    """A limit in bytes; one that is infinite is none."""
    return None if limit is None or limit == inf else round(limit)


class _Search:
    """Orders of compute, and for each the best places for its collectives."""

    def __init__(self, options: SchedulePass, program: Program, context: Context) -> None:
        self._options = options
        self.pins = pins_of(program, options.pin, options.keep_order)
        # With what is pinned in its place: nothing is better than what was asked for.
        self.original = _reordered(simulate(program, context.needed_cost(options.name)), self.pins.order)
        self._limits = options.limits(self.original.peak_bytes, context.memory_limit)
        self._pinned = self.pins.names
        self._keeping = Keeping(self.original.program, self._limits, self._pinned, options.max_compute_pre_fetch)

    def best(self) -> tuple[list[int], Timeline]:
        """The order that was found best, as positions of the program, and how it runs; the original if nothing is
        better."""
        same = list(range(len(self.original.program)))
        best, placed = self._candidate(same)
        held = [us for us in placed.run.held if us > 0]
        found = [best]
        if self._options.reorder_compute and sum(held) > _WORTH_IT * placed.run.step_us:
            program, priced = self.original.program, self.original.prices
            for times, (rule, looks_ahead) in product(_REACHES, _LISTS):
                reach_us = times * max(held)
                order = listed(
                    program, priced, rule, reach_us, self._keeping.order(), patient=looks_ahead, feeding=looks_ahead
                )
                found.append(self._candidate(order)[0])
        fitting = [(order, after) for order, after in found if self._keeping.allows(after)]
        order, after = min([(same, self.original), *fitting], key=lambda one: one[1].step_us)
        if not self._keeping.allows(after):
            message = "schedule: the step as it is breaks max_in_flight_gb or max_compute_pre_fetch, and stays as it is"
            warnings.warn(f"{message}: no order within them that was found is as short", WeftWarning, stacklevel=2)
        if self._options.reorder_compute:
            better = self._polished(order)
            if better != order:
                order, after = better, _reordered(self.original, better)
        return order, after

    def _candidate(self, order: list[int]) -> tuple[tuple[list[int], Timeline], Placed]:
        """This order with its collectives in the best places."""
        before = _reordered(self.original, order)
        sketch = contract(before.program, before.prices, self._pinned)
        sketch = prefetching(sketch, before.prices, self._options.max_compute_pre_fetch)
        placed = best_placement(sketch, self._limits, self._options.rounds, self._options.rule)
        moved = order_of(sketch, placed.placement)
        return ([order[place] for place in moved], _reordered(before, moved)), placed

    def _polished(self, order: list[int]) -> list[int]:
        program, priced = self.original.program, self.original.prices
        still = {program.index[wait] for start in self._pinned for wait in pairs(program).waits[start]}
        still |= {program.index[start] for start in self._pinned}

        def fits(order: list[int]) -> bool:
            return self._keeping.allows(_reordered(self.original, order))

        return polished(program, priced, order, still, fits)


def order_of(sketch: Sketch, placement: Placement) -> list[int]:
    """The positions of the program's ops in the order that a placement stands for."""
    program, known = sketch.program, windows(sketch.program)
    place: dict[int, tuple[int, int, int]] = {}
    for rank, number in enumerate(placement.order):
        window, piece = known.get(sketch.pieces[number].name), sketch.pieces[number]
        if window is None or stays(sketch, piece):
            continue
        launch, wait = sketch.slots[placement.launch[number]], sketch.slots[placement.wait[number]]
        place.update(dict.fromkeys(window.launched, (launch, 2, rank)))
        place.update(dict.fromkeys(window.waited, (wait, 3, rank)))
    return sorted(range(len(program)), key=lambda position: place.get(position, (position, 1, 0)))


def _reordered(timeline: Timeline, order: Sequence[int]) -> Timeline:
    """The same step in another order; ops cost what they did."""
    if all(map(eq, order, range(len(order)))):
        return timeline
    made, priced = reordered(timeline.program, order), timeline.prices.reordered(order)
    note_prices(made, timeline.cost, priced)
    return simulate(made, timeline.cost, priced=priced)


def prefetching(sketch: Sketch, priced: Prices, most: int | None) -> Sketch:
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
