"""The results of `bench.quality` as data, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean

from bench.liveness import live_bytes
from bench.rows import aligned
from weft.sim import Timeline

_ROUNDING = 1e-9  # a step may be so much below the bound by arithmetic alone


@dataclass(frozen=True)
class Figures:
    """What one schedule of a step comes to. `pass_s` are the CPU seconds spent on making it; `bound_us` is the bound of
    what it does, if it leaves out work that the step as it was has; `counted_bytes` is the peak once more, counted
    independently."""

    step_us: float
    compute_us: float
    exposed_us: float
    collectives: int
    peak_bytes: int
    pass_s: float
    bound_us: float | None = None
    counted_bytes: int | None = None

    @staticmethod
    def of(timeline: Timeline, pass_s: float, bound_us: float | None = None) -> Figures:
        return Figures(
            step_us=timeline.step_us,
            compute_us=timeline.compute_us,
            exposed_us=timeline.exposed_us,
            collectives=len(timeline.program.starts),
            peak_bytes=timeline.peak_bytes,
            pass_s=pass_s,
            bound_us=bound_us,
            counted_bytes=live_bytes(timeline.program),
        )

    @property
    def miscounted(self) -> bool:
        """Whether the two counts of the peak differ."""
        return self.counted_bytes is not None and self.counted_bytes != self.peak_bytes


@dataclass(frozen=True)
class Row:
    """One way to schedule a step: its figures, or the error for which there are none."""

    name: str
    figures: Figures | None
    error: str = ""


@dataclass(frozen=True)
class Case:
    """A workload on a machine under a memory limit, the rows beginning with the original order.

    `limit` is the limit as it was asked for, `limit_bytes` what that is here. No row's step is below `bound_us`, or
    below its own bound if it has one.
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
        """Whether more lives at some op than may, by either count."""
        return self.limit_bytes is not None and max(figures.peak_bytes, figures.counted_bytes or 0) > self.limit_bytes

    def over_bound(self, figures: Figures) -> float:
        """How many times as long as the bound a step takes."""
        return figures.step_us / (figures.bound_us if figures.bound_us is not None else self.bound_us)

    def below_bound(self, figures: Figures) -> bool:
        """Whether the bound does not hold, which is an error in the bound or in the row."""
        return self.over_bound(figures) < 1 - _ROUNDING


_HEADINGS = ("", "step ms", "exposed ms", "collectives", "peak GB", "pass s", "÷ bound")


def table(case: Case) -> str:
    """A case as a heading and a table, which reads as text and as Markdown."""
    limit = "no memory limit" if case.limit_bytes is None else f"at most {case.limit_bytes / 1e9:.2f} GB ({case.limit})"
    cells = [_HEADINGS, *(_cells(case, row) for row in case.rows)]
    errors = [f"{row.name}: {row.error}" for row in case.rows if row.error]
    return "\n".join(
        [
            f"**{case.workload}** ({case.layers} layers) on {case.machine}, {limit}; "
            f"bound {case.bound_us / 1e3:,.2f} ms by {case.bound_by}",
            "",
            *aligned(cells),
            *([""] if errors else []),
            *errors,
        ]
    )


def summary(cases: Sequence[Case]) -> str:
    """The geometric mean of step ÷ bound of each row, and where Weft is behind another row that is within the limit."""
    lines = []
    for name in dict.fromkeys(row.name for case in cases for row in case.rows):
        known = [(case, row.figures) for case in cases for row in case.rows if row.name == name and row.figures]
        ratios = [case.over_bound(figures) for case, figures in known]
        over = sum(case.over_limit(figures) for case, figures in known)
        mean = f"{geometric_mean(ratios):.3f}" if ratios else "-"
        lines.append(f"{name}: step ÷ bound {mean} over {len(ratios)} of {len(cases)} cases, {over} over the limit")
    counted = [
        row.figures for case in cases for row in case.rows if row.figures and row.figures.counted_bytes is not None
    ]
    agree = sum(not figures.miscounted for figures in counted)
    lines.append(f"peak memory counted once more, as an allocator would: {agree} of {len(counted)} agree")
    behind = [line for case in cases for line in _behind(case)]
    return "\n".join([*lines, *(behind or ["weft is behind no other row in any case"])])


def _behind(case: Case) -> Iterator[str]:
    known = {row.name: row.figures for row in case.rows if row.figures is not None}
    ours = known.get("weft")
    for name, theirs in known.items():
        if ours is None or name.startswith("weft") or case.over_limit(theirs):
            continue
        if ours.step_us > theirs.step_us * (1 + _ROUNDING):
            share = ours.step_us / theirs.step_us - 1
            yield f"{case.workload} on {case.machine}, limit {case.limit}: weft is {share:.2%} behind {name}"


def _cells(case: Case, row: Row) -> tuple[str, ...]:
    if row.figures is None:
        return (row.name, "failed", *[""] * (len(_HEADINGS) - 2))
    found = row.figures
    return (
        row.name,
        f"{found.step_us / 1e3:,.2f}",
        f"{found.exposed_us / 1e3:,.2f}",
        f"{found.collectives:,}",
        _peak(case, found),
        f"{found.pass_s:,.2f}",
        f"{case.over_bound(found):.3f}" + (" BELOW" if case.below_bound(found) else ""),
    )


def _peak(case: Case, found: Figures) -> str:
    over = " OVER" if case.over_limit(found) else ""
    counted = f" COUNTED {found.counted_bytes or 0:,}" if found.miscounted else ""
    return f"{found.peak_bytes / 1e9:,.2f}{over}{counted}"


def to_json(cases: Sequence[Case]) -> str:
    return json.dumps([asdict(case) for case in cases], indent=1)


def from_json(text: str) -> list[Case]:
    """The cases that `to_json` wrote."""
    return [Case(**{**case, "rows": tuple(map(_row, case["rows"]))}) for case in json.loads(text)]


def _row(row: dict[str, object]) -> Row:
    figures = row["figures"]
    return Row(str(row["name"]), Figures(**figures) if isinstance(figures, dict) else None, str(row["error"]))
