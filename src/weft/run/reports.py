"""What Weft did to a graph that was compiled: kept for `weft.last_report`, told in one line, and put on record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch._logging._internal import trace_structured

from weft.ir.program import Program
from weft.ir.text import counted, print_program
from weft.optimizer import Optimized
from weft.passes import Remark
from weft.sim import Timeline
from weft.sim.units import time_text

log = logging.getLogger("weft")


@dataclass(frozen=True)
class Figures:
    """How a graph runs, as predicted."""

    collectives: int
    step_us: float
    exposed_us: float
    peak_bytes: int

    @staticmethod
    def of(timeline: Timeline) -> Figures:
        """Those of a timeline."""
        count = len(timeline.program.communicating)
        return Figures(count, timeline.step_us, timeline.exposed_us, timeline.peak_bytes)


@dataclass(frozen=True)
class Report:
    """What became of a graph.

    - `role`: "forward", "backward" or "inference"
    - `before`, `after`: predictions
    - `used`: whether the optimised graph is the one that runs; `why` says why not, or whose choice it is
    - `program_before`, `program_after`, and `timeline`, the prediction for the latter: None if the graph came out of
      Inductor's cache
    """

    role: str
    before: Figures
    after: Figures
    plan: str = field(repr=False)
    remarks: tuple[Remark, ...] = field(repr=False)
    seconds: float
    used: bool = True
    why: str = ""
    cached: bool = False
    program_before: Program | None = field(default=None, repr=False, compare=False)
    program_after: Program | None = field(default=None, repr=False, compare=False)
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(role: str, optimized: Optimized, seconds: float) -> Report:
        """Of a graph that was optimised just now. It keeps no torch graph alive."""
        was, now = (replace(one.program, source=None) for one in (optimized.before, optimized.after))
        timeline = replace(optimized.after, program=now)
        before, after = Figures.of(optimized.before), Figures.of(optimized.after)
        return Report(
            role,
            before,
            after,
            optimized.plan,
            optimized.remarks,
            seconds,
            program_before=was,
            program_after=now,
            timeline=timeline,
        )

    def __str__(self) -> str:
        was, now = self.before, self.after
        count = f"{was.collectives} → {counted(now.collectives, 'collective')}"
        exposed = f"exposed {time_text(was.exposed_us)} → {time_text(now.exposed_us)} predicted"
        more = (now.peak_bytes / was.peak_bytes - 1) * 100 if was.peak_bytes else 0.0
        peak = f"peak {more:+.0f}%" if round(more) else "same peak"
        end = f"; {'' if self.used else 'not used: '}{self.why}" if self.why else ""
        took = "from the cache" if self.cached else f"{self.seconds:.1f} s"
        return f"weft: {self.role} graph: {count}, {exposed}, {peak}, {took}{end}"

    def to_json(self) -> str:
        """All but the programs and the timeline."""
        kept = asdict(replace(self, program_before=None, program_after=None, timeline=None))
        return json.dumps(kept, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Report:
        """What `to_json` wrote. ValueError or TypeError or KeyError if it did not."""
        content: Mapping[str, Any] = json.loads(text)
        figures = {name: Figures(**content[name]) for name in ("before", "after")}
        remarks = tuple(Remark(**remark) for remark in content["remarks"])
        return Report(**{**content, **figures, "remarks": remarks})


def put_on_record(report: Report) -> None:
    """Give torch's structured trace, which tlparse shows, what there is to see."""
    _artefact(report, "before", lambda: _text(report.program_before))
    _artefact(report, "after", lambda: _text(report.program_after))
    _artefact(report, "plan", lambda: report.plan)
    _artefact(report, "remarks", lambda: "\n".join([str(report), *map(str, report.remarks)]))


def _artefact(report: Report, name: str, text: Callable[[], str]) -> None:
    about = {"name": f"weft_{report.role}_{name}", "encoding": "string"}
    trace_structured("artifact", metadata_fn=lambda: about, payload_fn=text)


def _text(program: Program | None) -> str:
    return "the graph came out of Inductor's cache" if program is None else print_program(program)
