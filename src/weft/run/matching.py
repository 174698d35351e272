"""The ops and collectives of graphs, each with what it was predicted to take and what it took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.analysis.kernels import Kernel, input_specs, kernel
from weft.analysis.traffic import total_bytes
from weft.cost import Profile
from weft.ir.printer import print_spec
from weft.ir.program import Op
from weft.run.comparison import COLLECTIVE, OP, Difference
from weft.run.ran import Graph
from weft.sim import Timeline
from weft.sim.units import size_text


@dataclass(frozen=True)
class Matched:
    """What was found in a trace, and what was not.

    - `found`: the ops and collectives that are alike, together
    - `fused`, `fused_us`: how many ops Inductor puts into kernels of its own, and what was predicted for them in a step
    - `missing`: what has no time in the trace, and how often it runs in a step
    """

    found: tuple[Difference, ...]
    fused: float
    fused_us: float
    missing: Mapping[str, float]

    def us(self, kind: str) -> float:
        """What a step took in all that is of a kind."""
        return sum(one.times * one.measured_us for one in self.found if one.kind == kind)


class _One(NamedTuple):
    """An op or a collective: how often it runs, what was predicted, what was measured, where it is from."""

    kind: str
    what: str
    runs: float
    predicted_us: float
    measured_us: float | None
    origin: str


def match(graphs: Iterable[Graph], profile: Profile, *, inductor: bool) -> Matched:
    """Look for all that takes time. Where Inductor made the code, what it fuses is one sum; otherwise it ran alone."""
    seen: list[_One] = []
    fused = fused_us = 0.0
    for graph in graphs:
        if graph.timeline is None:
            continue
        for position, op in _working(graph.timeline):
            if inductor and _fuses(graph.timeline, op):
                fused += graph.runs
                fused_us += graph.runs * _spent_us(graph.timeline, position)
            else:
                seen.append(_looked_up(graph.timeline, position, graph.runs, profile))
    return Matched(tuple(_alike(seen)), fused, fused_us, _missing(seen))


def _working(timeline: Timeline) -> Iterator[tuple[int, Op]]:
    """The collectives, and the ops that run a kernel."""
    program = timeline.program
    for position, op in enumerate(program.ops):
        if op.comm is not None or kernel(op, input_specs(program, op)) is not Kernel.FREE:
            yield position, op


def _fuses(timeline: Timeline, op: Op) -> bool:
    return op.comm is None and kernel(op, input_specs(timeline.program, op)) is not Kernel.ALONE


def _spent_us(timeline: Timeline, position: int) -> float:
    return timeline.ends[position] - timeline.begins[position]


def _looked_up(timeline: Timeline, position: int, runs: float, profile: Profile) -> _One:
    op = timeline.program.ops[position]
    if op.comm is not None:
        nbytes = total_bytes(op)
        what = f"{op.comm.kind} of {size_text(nbytes)} over group {op.comm.group.name}"
        measured = profile.collective_us(op.comm, nbytes)
        return _One(COLLECTIVE, what, runs, timeline.flights[position].us, measured, op.origin)
    inputs = input_specs(timeline.program, op)
    what = " ".join((op.target, *map(print_spec, inputs)))
    return _One(OP, what, runs, _spent_us(timeline, position), profile.op_us(op, inputs), op.origin)


def _missing(seen: Iterable[_One]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in seen:
        if one.measured_us is None:
            found[one.what] = found.get(one.what, 0.0) + one.runs
    return found


def _alike(seen: Iterable[_One]) -> Iterator[Difference]:
    """Those that have a time, the ones that are alike together."""
    by_what: dict[tuple[str, str], list[_One]] = {}
    for one in seen:
        if one.measured_us is not None:
            by_what.setdefault((one.kind, one.what), []).append(one)
    for (kind, what), found in by_what.items():
        yield _together(kind, what, found)


def _together(kind: str, what: str, found: Sequence[_One]) -> Difference:
    times = sum(one.runs for one in found)
    predicted, measured = (
        sum(one.runs * us for one, us in zip(found, values, strict=True)) / times
        for values in ([one.predicted_us for one in found], [one.measured_us or 0.0 for one in found])
    )
    return Difference(kind, what, times, predicted, measured, found[0].origin)
