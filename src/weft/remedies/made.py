"""A step that is to be explained, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.analysis.memory import memory
from weft.cost.model import CostModel
from weft.errors import OptionError, ParseError
from weft.ir.program import Program
from weft.optimizer import Optimized, optimize
from weft.passes import PASSES, Pass, parse_pipeline, pass_text
from weft.passes.base import fingerprint
from weft.passes.holdups import Knobs
from weft.passes.schedule import SchedulePass
from weft.pipeline import Stage
from weft.sim.simulate import simulate
from weft.sim.timeline import Timeline


@dataclass(frozen=True)
class Made:
    """A step that is to be explained: how it runs, and how it came about.

    `knobs` are those of its schedule. `passes` are what made it of `original`; both are empty if nobody knows.
    """

    timeline: Timeline
    knobs: Knobs
    original: Program | None = None
    passes: tuple[Pass, ...] = ()

    def with_knobs(self, knobs: Knobs) -> tuple[Pass, ...]:
        """The passes that made it, with other knobs for its schedule; if there was none, with one in the end."""
        if self.knobs.options not in self.passes:
            return *self.passes, knobs.options
        return tuple(knobs.options if one == self.knobs.options else one for one in self.passes)


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
    stages: list[Stage] = []
    found = optimize(program, cost=cost, passes=passes, memory_limit=memory_limit, watch=stages.append)
    return made_of(found, stages, passes, memory_limit)


def made_of(found: Optimized, stages: Sequence[Stage], passes: Sequence[Pass], memory_limit: int | None) -> Made:
    """What `optimize` found, while `stages` were what it told of the passes."""
    options = _schedule_in(passes) or SchedulePass()
    knobs = Knobs(options, _given_peak(found, stages, options), memory_limit)
    return Made(found.after, knobs, found.before.program, tuple(passes))


def _given_peak(found: Optimized, stages: Sequence[Stage], options: SchedulePass) -> int:
    """The peak of the program that the schedule was given; that of the step itself if no schedule was kept."""
    original = found.before.program
    wanted = next((plan.program for plan in reversed(found.plans) if plan.pass_text == pass_text(options)), None)
    programs = (original, *(stage.program for stage in stages))
    return memory(next((one for one in programs if fingerprint(one) == wanted), original)).peak_bytes


def _schedule_in(passes: Sequence[Pass]) -> SchedulePass | None:
    return next((one for one in reversed(passes) if isinstance(one, SchedulePass)), None)


def _passes_in(text: str) -> tuple[Pass, ...]:
    """The passes that an entry of a history names; none if another Weft wrote it, or a person."""
    try:
        return parse_pipeline(text, PASSES)
    except (ParseError, OptionError):
        return ()
