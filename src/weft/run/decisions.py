"""What Weft makes of one graph, and what the other ranks must be told of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from torch.distributed.distributed_c10d import _get_default_store
from torch.fx import Graph

from weft.cost.model import CostModel
from weft.cost.times import Times
from weft.errors import OptionError, WeftError, WeftWarning
from weft.fx import from_fx
from weft.ir.program import Program
from weft.optimizer import Optimized, optimize
from weft.run.alignment import aligned
from weft.run.benchmark import benchmark
from weft.run.claims import Launches, launches
from weft.run.consent import alone, consent, this_rank
from weft.run.following import followed
from weft.run.reports import Report
from weft.run.session import SESSION
from weft.run.settings import Settings
from weft.sim import simulate


@dataclass(frozen=True)
class Decision:
    """What is to become of a graph: the program to run, what it launches, and what to report."""

    program: Program
    launches: Launches
    report: Report


def decide(graph: Graph, settings: Settings, role: str, agreed: Sequence[str] | None = None) -> Decision | None:
    """What becomes of a graph; None if it does not communicate.

    `agreed` are launches that other ranks go by, which this graph must then follow: AgreementError if it cannot. One
    that Weft cannot read or improve stays as it is, with a WeftWarning.
    """
    began = perf_counter()
    try:
        before = from_fx(graph)
    except WeftError as error:
        warnings.warn(f"weft: a {role} graph is left as it is: {error}", WeftWarning, stacklevel=2)
        return None
    if not before.communicating:
        return None
    cost = settings.cost(_benchmarks(before, settings, role) if settings.measures else None)
    if agreed is None:
        made = _optimized(before, settings, role, cost)
    else:
        made = followed(before, agreed, role, settings, cost)
    report = Report.of(role, made, perf_counter() - began)
    if agreed is not None:
        report = replace(report, why="it launches what other ranks decided")
    return Decision(made.program, launches(before, made.program, _name(role, settings)), report)


def decide_together(graph: Graph, settings: Settings, role: str) -> Decision | None:
    """What becomes of a graph once the other ranks were asked, which is reported; None if it stays as it is.

    AgreementError if it would have to follow what other ranks launch already, and cannot.
    """
    decision = decide(graph, settings, role)
    if decision is None:
        return None

    def follow(agreed: Sequence[str]) -> Launches:
        nonlocal decision
        decision = decide(graph, settings, role, agreed)
        assert decision is not None, "it communicated a moment ago"
        return decision.launches

    report = decision.report
    verdict = consent(decision.launches, settings, follow)
    if not verdict.agreed:
        SESSION.add(replace(report, used=False, why=verdict.why), this_rank())
        return None
    SESSION.add(decision.report, this_rank())
    return decision


def _optimized(before: Program, settings: Settings, role: str, cost: CostModel) -> Optimized:
    try:
        return optimize(before, cost=cost, memory_limit=settings.limit, passes=settings.pipeline)
    except OptionError:
        raise
    except WeftError as error:
        warnings.warn(f"weft: a {role} graph is left as it is: {error}", WeftWarning, stacklevel=2)
        timeline = simulate(before, cost)
        return Optimized(timeline, timeline, (), ())


def _benchmarks(before: Program, settings: Settings, role: str) -> Times:
    """What each op takes here; where there are several ranks, the median of what it takes on each."""
    times = benchmark(before)
    if alone():
        return times
    told = launches(before, before, _name(role, settings))
    key, limit_s = SESSION.told_apart(told.key, told.ranks), settings.agreement_timeout_s
    return Times(aligned(_get_default_store(), this_rank(), told.ranks, key, times.ops, timeout_s=limit_s))


def _name(role: str, settings: Settings) -> str:
    return f"{role} {settings.label}".strip()


def role_of(graph: Graph, is_inference: bool) -> str:
    """Whether a graph is a forward, a backward, or for inference."""
    if is_inference:
        return "inference"
    tangents = any(node.name.startswith("tangents_") for node in graph.find_nodes(op="placeholder"))
    return "backward" if tangents else "forward"
