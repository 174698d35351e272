"""Which of the graphs that Weft compiled run in a step that was traced, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.analysis.traffic import total_bytes
from weft.cost.kineto import Trace
from weft.cost.times import CollectiveKey, layout
from weft.ir.program import Op
from weft.run.reports import Figures, Report
from weft.sim import Timeline, simulate


@dataclass(frozen=True)
class Graph:
    """A graph that runs in the step, how often, and what was predicted.

    Of one that came out of Inductor's cache only the figures are known: its timeline is None.
    """

    report: Report
    timeline: Timeline | None
    runs: float

    @property
    def figures(self) -> Figures:
        """The prediction for what runs."""
        return self.report.after if self.report.used else self.report.before

    def __str__(self) -> str:
        often = "" if self.runs == 1 else f", {self.runs:g} times"
        return f"{self.report.role} graph{often}"


def graphs_that_ran(reports: Sequence[Report], trace: Trace, steps: int) -> tuple[Graph, ...]:
    """The graphs whose collectives are in the trace of so many steps; each ran as often as all of them are found.

    Reports, of which the newest comes first, are also there for graphs of another length. What one graph explains is
    not there for the next. A forward and an inference may communicate the same: it was a forward if a backward ran.
    """
    left = Counter(transfer.key for transfer in trace.transfers)
    by_role = {role: [one for one in reports if one.role == role] for role in ("backward", "forward", "inference")}
    backward = [*_fitting(by_role["backward"], left, trace, steps)]
    first, second = ("forward", "inference") if backward else ("inference", "forward")
    forward = [*_fitting(by_role[first], left, trace, steps)]
    forward += _fitting(by_role[second], left, trace, steps)
    return (*forward, *backward)


def _fitting(reports: Sequence[Report], left: Counter[CollectiveKey], trace: Trace, steps: int) -> Iterator[Graph]:
    """The graphs of one role that ran. What they communicated is taken from what is left."""
    found = False
    for report in reports:
        timeline = _timeline(report)
        if timeline is None:
            continue
        needed = Counter(map(_key, timeline.program.starts))
        runs = _runs(needed, left, trace.unplaced > 0, steps)
        if runs:
            found = True
            left.subtract({key: min(left[key], count * runs) for key, count in needed.items()})
            yield Graph(report, timeline, runs / steps)
    if reports and reports[0].cached and not found:
        yield Graph(reports[0], None, 1.0)


def _runs(needed: Counter[CollectiveKey], left: Counter[CollectiveKey], unplaced: bool, steps: int) -> int:
    """How often a graph with these collectives ran in all steps.

    Where the trace could not place them all, those of which it has none do not count.
    """
    known = {key: count for key, count in needed.items() if left[key] or not unplaced}
    if not known:
        return steps if unplaced else 0
    return min(left[key] // count for key, count in known.items())


def _timeline(report: Report) -> Timeline | None:
    """The prediction for what runs."""
    if report.used or report.timeline is None or report.program_before is None:
        return report.timeline
    return simulate(report.program_before, report.timeline.cost)


def _key(start: Op) -> CollectiveKey:
    assert start.comm is not None, "a start communicates"
    group = start.comm.group
    return CollectiveKey(start.comm.kind, group.size, layout(group.ranks), total_bytes(start))
