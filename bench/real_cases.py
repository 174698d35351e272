"""The results of `bench.real` as data, as tables, as verdicts and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench import rows
from bench.contenders import COMPILED, WEFT
from bench.rows import aligned
from weft.run.measuring import Spread

_EQUAL, _ENDS = 0.75, 0.85  # of torch.compile alone: where compute and communication take as long, and otherwise
_LARGER = 1.15  # of compute or communication alone


@dataclass(frozen=True)
class Row:
    """One way to train.

    took: a step, in microseconds.
    gloo_us: CPU time in a step of all threads but the one that computes.
    apart: how far the parameters are from those of the step as written after the same steps, relative to the largest.
    """

    name: str
    took: Spread
    gloo_us: float
    apart: float


@dataclass(frozen=True)
class Part:
    """A graph, the forward or the backward with what follows it: its compute and its communication, either alone."""

    compute_us: float
    communication_us: float

    @property
    def larger_us(self) -> float:
        return max(self.compute_us, self.communication_us)


@dataclass(frozen=True)
class Case:
    """A training over a link.

    ratio: communication to compute as it was asked for, None where the link has no rate.
    bits_per_s: the rate of the link that led to it, None likewise.
    compute: a step without its communication.
    communication: the collectives of the graphs that Weft made, each waited for before the next.
    parts: forward and backward.
    failures: what became of ways that did not work, by their names.
    predicted_us: what Weft expects of its two graphs.
    slowdown: how many times as long compute takes while a collective is in flight: they share a core.
    others: the share of the cores that other processes had meanwhile.
    """

    kind: str
    ratio: float | None
    bits_per_s: float | None
    compute: Spread
    communication: Spread
    parts: tuple[Part, Part]
    rows: tuple[Row, ...]
    failures: dict[str, str]
    predicted_us: float
    slowdown: float
    others: float

    @property
    def title(self) -> str:
        return self.kind if self.ratio is None else f"{self.kind}, {self.ratio:g}×"

    @property
    def larger_us(self) -> float:
        """Compute or communication alone, whichever is longer."""
        return max(self.compute.median, self.communication.median)

    @property
    def floor_us(self) -> float:
        """The same in either part, about the best a plan can do: nothing moves from one graph to the other."""
        return sum(part.larger_us for part in self.parts)

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)


_HEADINGS = ("", "step ms", "quartiles", f"÷ {COMPILED}", "÷ larger part", "÷ floor", "Gloo ms", "apart")


def table(case: Case) -> str:
    """A case as a heading and a table, which reads as text and as Markdown."""
    where = "over loopback, without a limit"
    if case.ratio is not None and case.bits_per_s is not None:
        where = f"{case.ratio:g}×, over {case.bits_per_s / 1e6:,.0f} Mbit/s"
    found = case.communication.median / case.compute.median
    forward, backward = (
        f"{part.compute_us / 1e3:,.0f} and {part.communication_us / 1e3:,.0f} ms" for part in case.parts
    )
    return "\n".join(
        [
            f"**{case.kind}**, {where}: compute alone {case.compute}, communication alone {case.communication}, "
            f"{found:.2f}× (forward {forward}, backward {backward}), so the floor is {case.floor_us / 1e3:,.0f} ms; "
            f"Weft predicts {case.predicted_us / 1e3:,.0f} ms; compute beside a collective takes {case.slowdown:.2f} "
            f"times as long; other processes had {case.others:.0%} of the cores",
            "",
            *aligned([_HEADINGS, *(_cells(case, row) for row in case.rows)]),
            *(f"\n{name} does not run: {why}" for name, why in case.failures.items()),
        ]
    )


def _cells(case: Case, row: Row) -> tuple[str, ...]:
    took, compiled = row.took, case.row(COMPILED)
    return (
        row.name,
        f"{took.median / 1e3:,.0f}",
        f"{took.low / 1e3:,.0f} to {took.high / 1e3:,.0f}",
        f"{took.median / compiled.took.median:.2f}" if compiled is not None else "",
        f"{took.median / case.larger_us:.2f}",
        f"{took.median / case.floor_us:.2f}",
        f"{row.gloo_us / 1e3:,.0f}",
        f"{row.apart:.0e}" if row.apart else "0",
    )


def verdicts(case: Case) -> list[rows.Row]:
    """What Weft promises of a case with a ratio from 0.5 to 2, and whether that holds."""
    weft, compiled = case.row(WEFT), case.row(COMPILED)
    if weft is None or compiled is None or case.ratio is None or not 0.5 <= case.ratio <= 2:
        return []
    took, found = weft.took, []
    if case.kind != "tp":  # there, a matmul needs what is gathered, and less can be hidden
        floor = f"{case.floor_us / case.larger_us:.2f}"
        limit = _EQUAL if case.ratio == 1 else _ENDS
        found = [
            rows.Row(f"{case.title}: Weft ÷ torch.compile", took.median / compiled.took.median, "", limit),
            rows.Row(f"{case.title}: Weft ÷ larger part (floor {floor})", took.median / case.larger_us, "", _LARGER),
        ]
    best = min((row for row in case.rows if row is not weft), key=lambda row: row.took.median)
    spread = max(one.high - one.low for one in (took, best.took))
    what = f"{case.title}: Weft ÷ best other ({best.name})"
    return [*found, rows.Row(what, took.median / best.took.median, "", round(1 + spread / best.took.median, 3))]


def to_json(cases: Sequence[Case]) -> str:
    return json.dumps([asdict(case) for case in cases], indent=1)
