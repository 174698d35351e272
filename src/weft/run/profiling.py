"""`weft.profile`: some steps under torch.profiler, and where they differ from what Weft predicted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from weft.cost import Profile
from weft.cost.kineto import read_trace
from weft.cost.spent import Spent, spent
from weft.errors import OptionError
from weft.ir.text import counted
from weft.run.comparison import COLLECTIVE, FUSED, LAUNCHING, OP, Comparison, Difference, Row, sorted_by_cost
from weft.run.matching import Matched, match
from weft.run.ran import Graph, graphs_that_ran
from weft.run.reports import Report
from weft.run.session import SESSION

_SHOWN = 3  # kinds of ops without a time that are worth naming


def profile(
    step: Callable[[], object], *, steps: int = 3, warm_up: int = 1, trace: str | Path | None = None
) -> Comparison:
    """Run a training step some times, and compare what it took with what Weft predicted for its graphs.

    `step()` is called `warm_up` times, in which it is compiled, `steps` times to see how long it takes, and as often
    again under torch.profiler, to see why. All ranks must call this, with the same numbers. The trace is kept in the
    file `trace`, if one is named; with those of all ranks, `weft.Profile.load` takes out the time that ranks wait for
    each other, which one alone cannot. Raises OptionError if the step runs no graph that Weft compiled.
    """
    for name, value in {"steps": steps, "warm_up": warm_up}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be a number of steps, at least 1, not {value!r}")
    for _ in range(warm_up):
        step()
    us = median(_times_us(step, steps))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(trace) if trace is not None else Path(scratch) / "trace.json"
        traced_us = _record(step, steps, path)
        return compare(SESSION.reports, path, Steps(steps, us, traced_us))


@dataclass(frozen=True)
class Steps:
    """How many steps were traced, how long one takes, and how long it takes while it is traced."""

    count: int
    us: float
    traced_us: float


def compare(reports: Sequence[Report], path: Path, steps: Steps) -> Comparison:
    """What reports, the newest first, predicted for steps, against what their trace says."""
    trace, totals = read_trace(path), spent(path)
    graphs = graphs_that_ran(reports, trace, steps.count)
    if not graphs:
        raise OptionError(
            "this step runs no graph with collectives that Weft compiled; compile the model with weft.compile or "
            'torch.compile(backend="weft"), and call it in the step'
        )
    known = Profile.of([trace])
    matched = match(graphs, known, inductor=totals.generated_us is not None)
    return Comparison(
        steps.count,
        tuple(map(str, graphs)),
        tuple(_rows(graphs, matched, totals, steps)),
        sorted_by_cost([*matched.found, *_sums(matched, totals, steps.count)]),
        (*_remarks(graphs, matched), *known.remarks),
        known,
    )


# Running


def _times_us(step: Callable[[], object], steps: int) -> list[float]:
    times = []
    for _ in range(steps):
        began = perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((perf_counter() - began) * 1e6)
    return times


def _record(step: Callable[[], object], steps: int, path: Path) -> float:
    """Trace some steps into a file; how long they took on average, as what the trace says of them is added up."""
    devices = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with torch_profile(activities=[ProfilerActivity.CPU, *devices], record_shapes=True) as recorded:
        us = fmean(_times_us(step, steps))
    recorded.export_chrome_trace(str(path))
    return us


# Telling


def _rows(graphs: Sequence[Graph], matched: Matched, totals: Spent, steps: Steps) -> Iterator[Row]:
    """The step, and what it consists of: compute, exposed, launching and elsewhere are the traced step."""
    predicted = {
        "step": sum(one.runs * one.figures.step_us for one in graphs),
        "exposed": sum(one.runs * one.figures.exposed_us for one in graphs),
    }
    flights = [one.runs * one.timeline.comm_us for one in graphs if one.timeline is not None]
    compute = matched.us(OP) + (totals.generated_us or 0.0) / steps.count
    exposed, launching = totals.waiting_us / steps.count, totals.launching_us / steps.count
    yield Row("step", predicted["step"], steps.us)
    yield Row("· while traced", None, steps.traced_us)
    yield Row("compute", predicted["step"] - predicted["exposed"], compute)
    yield Row("communication", sum(flights) if len(flights) == len(graphs) else None, matched.us(COLLECTIVE))
    yield Row("exposed", predicted["exposed"], exposed)
    yield Row("launching", 0.0, launching)
    yield Row("elsewhere", None, steps.traced_us - compute - exposed - launching)


def _sums(matched: Matched, totals: Spent, steps: int) -> Iterator[Difference]:
    """What cannot be told op by op."""
    if totals.generated_us is not None and matched.fused:
        what = f"the kernels that Inductor made of {counted(round(matched.fused), 'op')}"
        yield Difference(FUSED, what, 1, matched.fused_us, totals.generated_us / steps)
    if totals.launching_us:
        yield Difference(LAUNCHING, "the launches of all collectives", 1, 0.0, totals.launching_us / steps)


def _remarks(graphs: Sequence[Graph], matched: Matched) -> Iterator[str]:
    for one in graphs:
        if one.timeline is None:
            yield (
                f"the {one.report.role} graph came out of Inductor's cache, and its ops are not compared; for one run, "
                "set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"
            )
    if matched.missing:
        names = sorted(matched.missing, key=lambda what: (-matched.missing[what], what))
        more = f" and {len(names) - _SHOWN} more kinds" if len(names) > _SHOWN else ""
        yield f"not found in the trace: {', '.join(names[:_SHOWN])}{more}"
