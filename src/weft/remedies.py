"""Remedies: the smallest change of a knob that hides a collective, found by trying it.

One trial serves all collectives. A large step is tried on its sketch, in milliseconds; a small one, and changes of
buckets, in earnest. What takes long comes last, and only if something is still without a remedy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from weft.analysis.traffic import total_bytes
from weft.cost.model import CostModel
from weft.errors import OptionError, ParseError, WeftWarning
from weft.ir.program import Program
from weft.optimize import PRESETS, optimize, parse_bytes
from weft.passes import PASSES, Pass, parse_pipeline, pass_text
from weft.passes.bucket_auto import BucketAuto
from weft.passes.holdups import Knobs, held_up
from weft.passes.placing import best_placement
from weft.passes.schedule import SchedulePass, prefetching
from weft.sim.contract import contract
from weft.sim.explanation import Explanation, Remedy
from weft.sim.simulate import simulate
from weft.sim.timeline import Timeline
from weft.sim.units import amount

_MORE_MEMORY = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # shares of the limit
_HIDDEN = 0.01  # of what is exposed: with less than this left it is hidden
_SMALL = 300  # ops: up to this a schedule is made in earnest in no time
_SHORTER = 1e-9  # of the step: with less than this gained it is not shorter


@dataclass(frozen=True)
class Made:
    """A step that is to be explained: how it runs, and how it came about.

    `knobs` are those of its schedule. `passes` are what made it of `original`; both are empty if nobody knows.
    """

    timeline: Timeline
    knobs: Knobs
    original: Program | None = None
    passes: tuple[Pass, ...] = ()


@dataclass(frozen=True)
class _Trial:
    """How the step would run, and for how long it would wait for each start that it has then."""

    program: Program
    step_us: float
    peak_bytes: int
    held: Mapping[str, float]


@dataclass(frozen=True)
class _Attempt:
    """A change, how to try it (None if nothing fits), and the starts that it may help; all if it does not say."""

    change: str
    trial: Callable[[], _Trial | None]
    helps: frozenset[str] | None = None


def as_it_is(program: Program, cost: CostModel, memory_limit: int | None = None) -> Made:
    """A program whose history says what its schedule was asked for, if it has one.

    By how much its memory was allowed to grow cannot be told any more: it is taken to be as high as it may be.
    """
    timeline = simulate(program, cost)
    options = _schedule_in([one for text in program.history for one in _passes_in(text)]) or SchedulePass()
    if options.max_memory_increase_gb is not None or options.max_memory_increase_ratio is not None:
        options = replace(options, max_memory_increase_gb=0.0, max_memory_increase_ratio=None)
    return Made(timeline, Knobs(options, timeline.peak_bytes, memory_limit))


def made_by(program: Program, cost: CostModel, passes: Sequence[Pass], memory_limit: int | None = None) -> Made:
    """What passes make of a program, as `optimize` does it."""
    last = max((place for place, one in enumerate(passes) if isinstance(one, SchedulePass)), default=len(passes))
    given = optimize(program, cost=cost, passes=passes[:last], memory_limit=memory_limit).after
    after = optimize(given.program, cost=cost, passes=passes[last:], memory_limit=memory_limit).after
    options = _schedule_in(passes) or SchedulePass()
    return Made(after, Knobs(options, given.peak_bytes, memory_limit), program, tuple(passes))


def explain(made: Made, most: int = 20, watch: Callable[[str], None] = lambda change: None) -> tuple[Explanation, ...]:
    """The collectives that are exposed longest, at most so many, each with its causes and a remedy, if one was found.

    A remedy makes the step shorter, too: to hide one collective and expose another does not help. `watch` is told what
    is tried.
    """
    found = held_up(made.timeline, made.knobs, most)
    remedies: dict[str, Remedy] = {}
    tried = 0
    for attempt in _attempts(made):
        exposed = {one.start: one.us for one in found if one.start not in remedies}
        if not exposed or (attempt.helps is not None and attempt.helps.isdisjoint(exposed)):
            continue
        watch(attempt.change)
        tried += 1
        trial = attempt.trial()
        if trial is None or trial.step_us >= made.timeline.step_us * (1 - _SHORTER):
            continue
        saved = made.timeline.step_us - trial.step_us
        for start in _hidden(made.timeline.program, trial, exposed):
            remedies[start] = Remedy(attempt.change, saved, trial.peak_bytes)
    return tuple(Explanation(one, remedies.get(one.start), tried) for one in found)


def _schedule_in(passes: Sequence[Pass]) -> SchedulePass | None:
    return next((one for one in reversed(passes) if isinstance(one, SchedulePass)), None)


def _passes_in(text: str) -> tuple[Pass, ...]:
    """The passes that an entry of a history names; none if another Weft wrote it, or a person."""
    try:
        return parse_pipeline(text, PASSES)
    except (ParseError, OptionError):
        return ()


def _hidden(program: Program, trial: _Trial, exposed: Mapping[str, float]) -> Iterator[str]:
    """Those that are no longer waited for, neither they nor what they became: buckets may be others."""
    left: dict[str, float] = {}
    for start, us in trial.held.items():
        for member in _members(trial.program, start):
            left[member] = left.get(member, 0.0) + us
    for start, us in exposed.items():
        if sum(left.get(member, 0.0) for member in _members(program, start)) <= _HIDDEN * us:
            yield start


def _members(program: Program, start: str) -> tuple[str, ...]:
    return program[start].sources or (start,)


# What is tried, the smallest change of each knob first


def _attempts(made: Made) -> Iterator[_Attempt]:
    trial = _scheduled if len(made.timeline.program) <= _SMALL else _Sketched(made)
    for change, knobs in (*_again(made), *_memory(made.knobs), *_others(made.knobs)):
        yield _Attempt(change, partial(trial, made, knobs))
    yield from _other_buckets(made)
    if made.passes != (default := parse_pipeline(PRESETS["default"], PASSES)):
        yield _Attempt("the preset default", partial(_optimized, made, default, made.knobs.memory_limit))


def _again(made: Made) -> Iterator[tuple[str, Knobs]]:
    """The schedule itself, unless the step has just come from it."""
    if made.knobs.options not in made.passes:
        yield pass_text(made.knobs.options), made.knobs


def _memory(knobs: Knobs) -> Iterator[tuple[str, Knobs]]:
    """A higher limit: of the memory limits that there are, the one that is reached first."""
    limit, options, peak = knobs.limits.memory, knobs.options, knobs.peak
    if limit is None:
        return
    for part in _MORE_MEMORY:
        more = limit * (1 + part)
        if options.max_memory_increase_gb is not None and limit == peak + round(options.max_memory_increase_gb * 1e9):
            gb = _short((more - peak) / 1e9)
            yield f"max_memory_increase_gb={gb}", _with(knobs, max_memory_increase_gb=gb)
        elif options.max_memory_increase_ratio is not None and limit != knobs.memory_limit:
            ratio = _short(more / peak - 1)
            yield f"max_memory_increase_ratio={ratio}", _with(knobs, max_memory_increase_ratio=ratio)
        else:
            text = amount(more)
            yield f"memory_limit={text}", replace(knobs, memory_limit=parse_bytes(text))
    free = _with(knobs, max_memory_increase_gb=None, max_memory_increase_ratio=None)
    yield "no memory limit", replace(free, memory_limit=None)


def _others(knobs: Knobs) -> Iterator[tuple[str, Knobs]]:
    flying, ahead = knobs.options.max_in_flight_gb, knobs.options.max_compute_pre_fetch
    if flying is not None:
        if flying > 0:
            yield f"max_in_flight_gb={_short(2 * flying)}", _with(knobs, max_in_flight_gb=_short(2 * flying))
        yield "max_in_flight_gb=none", _with(knobs, max_in_flight_gb=None)
    if ahead is not None:
        more = max(1, 2 * ahead)
        yield f"max_compute_pre_fetch={more}", _with(knobs, max_compute_pre_fetch=more)
        yield "max_compute_pre_fetch=none", _with(knobs, max_compute_pre_fetch=None)
    if knobs.options.keep_order:
        yield "keep_order=false", _with(knobs, keep_order=False)
    if knobs.options.pin:
        yield "pin=[]", _with(knobs, pin=())
    if sum((knobs.limits.memory is not None, flying is not None, ahead is not None, knobs.options.keep_order)) > 1:
        free = _with(knobs, max_memory_increase_gb=None, max_memory_increase_ratio=None, keep_order=False)
        free = _with(free, max_in_flight_gb=None, max_compute_pre_fetch=None)
        yield "no limit at all", replace(free, memory_limit=None)


def _with(knobs: Knobs, **changes: float | int | bool | tuple[str, ...] | None) -> Knobs:
    return replace(knobs, options=replace(knobs.options, **changes))  # type: ignore[arg-type]  # names of its fields


def _other_buckets(made: Made) -> Iterator[_Attempt]:
    """Without the buckets, and with buckets of half the size."""
    bucketing = next((one for one in made.passes if isinstance(one, BucketAuto)), None)
    buckets = [op for op in made.timeline.program.starts if op.sources and op.name in made.timeline.exposed]
    helps = frozenset(op.name for op in buckets)
    if bucketing is None or not buckets:
        return
    half = replace(bucketing, max_mb=_short(max(map(total_bytes, buckets)) / 2e6))
    halved = tuple(half if one is bucketing else one for one in made.passes)
    limit = made.knobs.memory_limit
    yield _Attempt(pass_text(half), partial(_optimized, made, halved, limit), helps)
    rest = tuple(one for one in made.passes if one is not bucketing)
    yield _Attempt(",".join(map(pass_text, rest)), partial(_optimized, made, rest, limit), helps)


# How it is tried


class _Sketched:
    """A schedule tried on the sketch: compute stays where it is."""

    def __init__(self, made: Made) -> None:
        self._pinned = contract(made.timeline.program, made.timeline.prices, made.knobs.pinned)

    def __call__(self, made: Made, knobs: Knobs) -> _Trial | None:
        timeline, sketch = made.timeline, self._pinned
        if knobs.pinned != made.knobs.pinned:
            sketch = contract(timeline.program, timeline.prices, knobs.pinned)
        sketch = prefetching(sketch, timeline.prices, knobs.options.max_compute_pre_fetch)
        found = best_placement(sketch, knobs.limits, knobs.options.rounds)
        if found.over(knobs.limits):
            return None
        held = {piece.name: us for piece, us in zip(sketch.pieces, found.run.held, strict=True)}
        return _Trial(timeline.program, found.run.step_us, found.peak, held)


def _scheduled(made: Made, knobs: Knobs) -> _Trial:
    """A schedule made in earnest, by the passes that made the step, with other knobs."""
    passes = [one for one in made.passes if one != made.knobs.options]
    place = made.passes.index(made.knobs.options) if made.knobs.options in made.passes else len(passes)
    return _optimized(made, [*passes[:place], knobs.options, *passes[place:]], knobs.memory_limit)


def _optimized(made: Made, passes: Sequence[Pass], limit: int | None) -> _Trial:
    program = made.original if made.original is not None else made.timeline.program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        after = optimize(program, cost=made.timeline.cost, passes=passes, memory_limit=limit).after
    return _Trial(after.program, after.step_us, after.peak_bytes, after.exposed)


def _short(number: float) -> float:
    """A number with three digits, as people would set a knob."""
    return float(f"{number:.3g}")
