"""The results of `bench.quality` as data, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from weft.sim import Timeline

_ROUNDING = 1e-9  # a step may be so much below the bound by arithmetic alone


@dataclass(frozen=True)
class Figures:
    """What one schedule of a step comes to. `pass_s` are the CPU seconds spent on making it."""

    step_us: float
    compute_us: float
    exposed_us: float
    collectives: int
    peak_bytes: int
    pass_s: float

    @staticmethod
    def of(timeline: Timeline, pass_s: float) -> Figures:
        return Figures(
            step_us=timeline.step_us,
            compute_us=timeline.compute_us,
            exposed_us=timeline.exposed_us,
            collectives=len(timeline.program.starts),
            peak_bytes=timeline.peak_bytes,
            pass_s=pass_s,
        )


@dataclass(frozen=True)
class Row:
    """One way to schedule a step: its figures, or the error for which there are none."""

    name: str
    figures: Figures | None
    error: str = ""


@dataclass(frozen=True)
class Case:
    """A workload on a machine under a memory limit, the rows beginning with the original order.

    `limit` is the limit as it was asked for, `limit_bytes` what that is here. No row's step is below `bound_us`.
    """

    workload: str
    layers: int
    machine: str
    limit: str
    limit_bytes: int | None
    bound_us: float
    bound_by: str
    rows: tuple[Row, ...]

    def over_limit(self, figures: Figures) -> bool:
        return self.limit_bytes is not None and figures.peak_bytes > self.limit_bytes

    def below_bound(self, figures: Figures) -> bool:
        """Whether the bound does not hold, which is an error in the bound or in the row."""
        return figures.step_us < self.bound_us * (1 - _ROUNDING)


_HEADINGS = ("", "step ms", "exposed ms", "collectives", "peak GB", "pass s", "÷ bound")


def table(case: Case) -> str:
    """A case as a heading and a table, which reads as text and as Markdown."""
    limit = "no memory limit" if case.limit_bytes is None else f"at most {case.limit_bytes / 1e9:.2f} GB ({case.limit})"
    cells = [_HEADINGS, *(_cells(case, row) for row in case.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "|".join(
        "-" * (widths[0] + 2) if not place else "-" * (width + 1) + ":" for place, width in enumerate(widths)
    )
    lines = [_line(row, widths) for row in cells]
    errors = [f"{row.name}: {row.error}" for row in case.rows if row.error]
    return "\n".join(
        [
            f"**{case.workload}** ({case.layers} layers) on {case.machine}, {limit}; "
            f"bound {case.bound_us / 1e3:,.2f} ms by {case.bound_by}",
            "",
            lines[0],
            f"|{rule}|",
            *lines[1:],
            *([""] if errors else []),
            *errors,
        ]
    )


def _cells(case: Case, row: Row) -> tuple[str, ...]:
    if row.figures is None:
        return (row.name, "failed", *[""] * (len(_HEADINGS) - 2))
    found = row.figures
    return (
        row.name,
        f"{found.step_us / 1e3:,.2f}",
        f"{found.exposed_us / 1e3:,.2f}",
        f"{found.collectives:,}",
        f"{found.peak_bytes / 1e9:,.2f}" + (" OVER" if case.over_limit(found) else ""),
        f"{found.pass_s:,.2f}",
        f"{found.step_us / case.bound_us:.3f}" + (" BELOW" if case.below_bound(found) else ""),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {cells[0].ljust(len(first))} | {' | '.join(rest)} |"


def to_json(cases: Sequence[Case]) -> str:
    return json.dumps([asdict(case) for case in cases], indent=1)


def from_json(text: str) -> list[Case]:
    """The cases that `to_json` wrote."""
    return [Case(**{**case, "rows": tuple(map(_row, case["rows"]))}) for case in json.loads(text)]


def _row(row: dict[str, object]) -> Row:
    figures = row["figures"]
    return Row(str(row["name"]), Figures(**figures) if isinstance(figures, dict) else None, str(row["error"]))
