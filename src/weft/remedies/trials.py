"""How a change is tried: on the sketch of a step, in earnest, or on a machine with a faster link."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.cost.machine import Machine
from weft.errors import WeftWarning
from weft.ir.program import Program
from weft.optimizer import optimize
from weft.passes import Pass
from weft.passes.holdups import Knobs
from weft.passes.placing import best_placement
from weft.passes.schedule import prefetching
from weft.remedies.made import Made
from weft.sim.contract import contract
from weft.sim.inside import inside
from weft.sim.simulate import simulate
from weft.sim.timeline import Timeline

FASTER = 2  # times the bandwidth that a link has


@dataclass(frozen=True)
class Trial:
    """How the step would run, and for how long it would wait for each collective that it has then."""

    program: Program
    step_us: float
    peak_bytes: int
    held: Mapping[str, float]

    def left(self, program: Program, starts: Iterable[str]) -> Mapping[str, float]:
        """For how long it would wait for what became of these starts of a program: in the same program for each itself.
        Elsewhere buckets and chunks may be others: all that has a member in common counts."""
        if self.program is program:
            return {start: self.held.get(start, 0.0) for start in starts}
        heirs: dict[str, set[str]] = {}
        for name in self.held:
            for member in members(self.program, name):
                heirs.setdefault(member, set()).add(name)
        of = {start: {name for one in members(program, start) for name in heirs.get(one, ())} for start in starts}
        return {start: sum((self.held[name] for name in sorted(names)), 0.0) for start, names in of.items()}


def members(program: Program, name: str) -> tuple[str, ...]:
    """The ops of the first program that an op stands for."""
    return program[name].sources or (name,)


class Sketched:
    """A schedule tried on the sketch: compute stays where it is."""

    def __init__(self, made: Made) -> None:
        self._pinned = contract(made.timeline.program, made.timeline.prices, made.knobs.pinned(made.timeline.program))

    def __call__(self, made: Made, knobs: Knobs) -> Trial | None:
        """How the step would run with these knobs; None if nothing fits them."""
        timeline, sketch = made.timeline, self._pinned
        if knobs.options.pin != made.knobs.options.pin:
            sketch = contract(timeline.program, timeline.prices, knobs.pinned(timeline.program))
        sketch = prefetching(sketch, timeline.prices, knobs.options.max_compute_pre_fetch)
        found = best_placement(sketch, knobs.limits, knobs.options.rounds, knobs.options.rule)
        if found.over(knobs.limits):
            return None
        held = {piece.name: us for piece, us in zip(sketch.pieces, found.run.held, strict=True)}
        held |= {one.start: one.us for one in inside(timeline)}
        return Trial(timeline.program, found.run.step_us, found.peak, held)


def scheduled(made: Made, knobs: Knobs) -> Trial:
    """A schedule made in earnest, by the passes that made the step, with other knobs."""
    return optimized(made, made.with_knobs(knobs), knobs.memory_limit)


def optimized(made: Made, passes: Sequence[Pass], limit: int | None) -> Trial:
    """What other passes make of the step."""
    program = made.original if made.original is not None else made.timeline.program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        after = optimize(program, cost=made.timeline.cost, passes=passes, memory_limit=limit).after
    return _run(after)


def linked(made: Made, machine: Machine, links: Sequence[str]) -> Trial:
    """The step as it is, on a machine some of whose links have more bandwidth."""
    for link in links:
        machine = machine.faster(link, FASTER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        return _run(simulate(made.timeline.program, machine))


def _run(timeline: Timeline) -> Trial:
    held = {**timeline.exposed, **{one.start: one.us for one in inside(timeline)}}
    return Trial(timeline.program, timeline.step_us, timeline.peak_bytes, held)
