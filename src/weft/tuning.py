"""`tune`: which knobs give which step for which memory. Nothing here depends on the machine but the prices.

Every way of bucketing is made once. The knobs of the schedule are then tried on its sketch, in milliseconds each. What
is on the front of step against peak, as far as the sketch can tell, is scheduled in earnest; and the best buckets with
less and less memory, since a schedule may also reorder compute, of which the sketch knows nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from weft.analysis.traffic import total_bytes
from weft.cost.model import CostModel
from weft.errors import WeftWarning
from weft.ir.program import Program
from weft.optimizer import PRESETS, Optimized, optimize, parse_bytes
from weft.passes import PASSES, Pass, parse_pipeline, pass_text
from weft.passes.holdups import Knobs
from weft.passes.placing import best_placement
from weft.passes.schedule import SchedulePass, prefetching
from weft.sim.contract import contract
from weft.sim.simulate import simulate
from weft.sim.timeline import Timeline
from weft.sim.units import amount

_BUCKETING = (
    "dedupe",
    "dedupe,bucket_auto{mode=coalesced}",
    "dedupe,bucket_auto{max_mb=100}",
    "dedupe,bucket_auto{max_mb=25}",
    "dedupe,bucket_auto",
)
_RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
_IN_FLIGHT = (1, 2, 4, 8)  # times the largest collective
_PRE_FETCH = (1, 4, 16, 64)
_SHORTER = 1e-4  # of the step: what is shorter by less is no shorter
_NEAR = 0.02  # a way of bucketing whose step is so near to the best is looked at closely


@dataclass(frozen=True, order=True)
class Row:
    """What a pipeline makes of the step within a memory limit, "" for none; an empty pipeline leaves it as it is."""

    step_us: float
    peak_bytes: int
    pipeline: str
    memory_limit: str = ""


@dataclass(frozen=True)
class Tuned:
    """The step as it is, the pipelines that no other beats in both step and peak, the fastest first, and how many
    settings were looked at."""

    before: Timeline
    rows: tuple[Row, ...]
    tried: int


def tune(
    program: Program,
    cost: CostModel,
    *,
    memory_limit: int | None = None,
    watch: Callable[[str], None] = lambda pipeline: None,
) -> Tuned:
    """Search the knobs for a program. What is over `memory_limit`, in bytes, is left out, unless everything is."""
    search = _Search(program, cost, memory_limit, watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        return search.tuned()


class _Search:
    """`rows` are pipelines that were run in earnest; `tried` counts the others, too."""

    def __init__(
        self, program: Program, cost: CostModel, memory_limit: int | None, watch: Callable[[str], None]
    ) -> None:
        self._cost, self._limit, self._watch = cost, memory_limit, watch
        self._before = simulate(program, cost)
        self._rows = {("", ""): Row(self._before.step_us, self._before.peak_bytes, "")}
        self._tried = 0

    def tuned(self) -> Tuned:
        given = self._bucketed()
        screened = {text: list(self._screened(one, text)) for text, one in given.items()}
        self._tried = sum(map(len, screened.values()))
        best = front(_allowed((row for rows in screened.values() for row, _ in rows), self._limit))
        for text, rows in screened.items():
            for row, options in rows:
                if row in best:
                    self._run(given[text], text, (options,), self._limit)
            if rows and min(row.step_us for row, _ in rows) <= best[0].step_us * (1 + _NEAR):
                self._tighten(text)
        self._run(self._before, "", parse_pipeline(PRESETS["safe"], PASSES), self._limit)
        return Tuned(self._before, front(_allowed(self._rows.values(), self._limit)), self._tried)

    def _bucketed(self) -> Mapping[str, Timeline]:
        """The step after each way of bucketing, by the passes that were kept."""
        found = {"": self._before}
        for text in _BUCKETING:
            self._watch(text)
            passes = parse_pipeline(text, PASSES)
            made = optimize(self._before.program, cost=self._cost, passes=passes, memory_limit=self._limit)
            found.setdefault(_joined("", made), made.after)
        return found

    def _screened(self, given: Timeline, bucketing: str) -> Iterator[tuple[Row, SchedulePass]]:
        """What each setting gives on the sketch; settings that break their own limit are left out."""
        sketch = contract(given.program, given.prices)
        for options in _settings(given.program):
            limits = Knobs(options, given.peak_bytes).limits
            placed = best_placement(prefetching(sketch, given.prices, options.max_compute_pre_fetch), limits)
            if not placed.over(limits):
                yield Row(placed.run.step_us, placed.peak, f"{bucketing},{pass_text(options)}"), options

    def _tighten(self, bucketing: str) -> None:
        """Buckets and schedule together, with less and less memory. A limit that has been kept anyway is left out."""
        passes = parse_pipeline(",".join(filter(None, (bucketing, SchedulePass.name))), PASSES)
        row = self._run(self._before, "", passes, self._limit)
        for ratio in reversed(_RATIOS):
            limit = parse_bytes(amount(self._before.peak_bytes * (1 + ratio)))
            if row.peak_bytes > limit:
                row = self._run(self._before, "", passes, limit)

    def _run(self, given: Timeline, bucketing: str, passes: Sequence[Pass], limit: int | None) -> Row:
        within = amount(limit) if limit is not None else ""
        wanted = ",".join(filter(None, (bucketing, *map(pass_text, passes))))
        if (wanted, within) not in self._rows:
            self._watch(f"{wanted} within {within}" if within else wanted)
            self._tried += 1
            made = optimize(given.program, cost=self._cost, passes=passes, memory_limit=limit)
            row = Row(made.after.step_us, made.after.peak_bytes, _joined(bucketing, made), within)
            self._rows[wanted, within] = row
        return self._rows[wanted, within]


def front(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that no other one beats, the fastest first; of equal ones that with the shortest pipeline."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.peak_bytes, row.step_us, len(row.pipeline), row)):
        if not found or row.step_us < found[-1].step_us * (1 - _SHORTER):
            found.append(row)
    return tuple(reversed(found))


def _allowed(rows: Iterable[Row], limit: int | None) -> list[Row]:
    found = list(rows)
    return [row for row in found if limit is None or row.peak_bytes <= limit] or found


def _joined(bucketing: str, made: Optimized) -> str:
    """The pipeline of those passes that were kept."""
    return ",".join(filter(None, (bucketing, *(plan.pass_text for plan in made.plans))))


def _settings(program: Program) -> Iterator[SchedulePass]:
    """One limit at a time, with and without the order of collectives kept."""
    largest = max(map(total_bytes, program.starts), default=0)
    for keep_order in (False, True):
        for ratio in (None, *_RATIOS):
            yield SchedulePass(max_memory_increase_ratio=ratio, keep_order=keep_order)
        for times in _IN_FLIGHT if largest else ():
            yield SchedulePass(max_in_flight_gb=float(f"{times * largest / 1e9:.3g}"), keep_order=keep_order)
        for kernels, ratio in product(_PRE_FETCH, (None, 0.0)):
            yield SchedulePass(max_compute_pre_fetch=kernels, max_memory_increase_ratio=ratio, keep_order=keep_order)
