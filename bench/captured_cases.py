"""The results of `bench.captured` as data, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.rows import aligned
from weft.run.measuring import Spread


@dataclass(frozen=True)
class Row:
    """One way to run a step.

    took: what was measured, in microseconds.
    predicted_us: what the simulator says.
    apart: the largest difference of any result from the step as written, relative to the largest number in that result.
    """

    name: str
    took: Spread
    predicted_us: float
    collectives: int
    apart: float


@dataclass(frozen=True)
class Case:
    """A step over a link, the rows beginning with the step as written.

    ratio: communication to compute as it was asked for, None where the link has no rate.
    bits_per_s: the rate of the link that led to it, None likewise.
    compute, communication: either alone, measured in turn with the rows.
    slowdown: how many times as long compute takes while a collective is in flight: they share a core.
    others: the share of the cores that other processes had meanwhile.
    """

    step: str
    ratio: float | None
    bits_per_s: float | None
    compute: Spread
    communication: Spread
    rows: tuple[Row, ...]
    slowdown: float
    others: float

    @property
    def larger_us(self) -> float:
        """Compute or communication alone, whichever is longer. Buckets can get a step below it."""
        return max(self.compute.median, self.communication.median)


_HEADINGS = ("", "step ms", "quartiles", "÷ as written", "÷ larger part", "predicted ms", "collectives", "apart")


def table(case: Case) -> str:
    """A case as a heading and a table, which reads as text and as Markdown."""
    where = "over loopback, without a limit"
    if case.ratio is not None and case.bits_per_s is not None:
        where = f"{case.ratio:g}×, over {case.bits_per_s / 1e6:,.0f} Mbit/s"
    found = case.communication.median / case.compute.median
    return "\n".join(
        [
            f"**{case.step}**, {where}: compute alone {case.compute}, communication alone {case.communication}, "
            f"{found:.2f}×; compute beside a collective takes {case.slowdown:.2f} times as long; other processes had "
            f"{case.others:.0%} of the cores",
            "",
            *aligned([_HEADINGS, *(_cells(case, row) for row in case.rows)]),
        ]
    )


def _cells(case: Case, row: Row) -> tuple[str, ...]:
    took = row.took
    return (
        row.name,
        f"{took.median / 1e3:,.1f}",
        f"{took.low / 1e3:,.1f} to {took.high / 1e3:,.1f}",
        f"{took.median / case.rows[0].took.median:.2f}",
        f"{took.median / case.larger_us:.2f}",
        f"{row.predicted_us / 1e3:,.1f}",
        f"{row.collectives:,}",
        f"{row.apart:.0e}" if row.apart else "0",
    )


def to_json(cases: Sequence[Case]) -> str:
    return json.dumps([asdict(case) for case in cases], indent=1)
