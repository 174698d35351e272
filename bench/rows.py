"""What the benchmarks share: a measured figure with its limit, and how rows of them are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from time import process_time


@dataclass(frozen=True)
class Row:
    what: str
    found: float
    unit: str
    limit: float

    @property
    def holds(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        return (
            f"{self.what:<58} {self.found:>9.3f} {self.unit:<5} limit {self.limit:<5g} {'ok' if self.holds else 'OVER'}"
        )


def best_of(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        begin = process_time()
        work()
        times.append(process_time() - begin)
    return min(times)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, which reads as text and as Markdown. The first row are headings, the first column names."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "|".join(
        "-" * (widths[0] + 2) if not place else "-" * (width + 1) + ":" for place, width in enumerate(widths)
    )
    first, *rest = (_line(row, widths) for row in cells)
    return [first, f"|{rule}|", *rest]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {cells[0].ljust(len(first))} | {' | '.join(rest)} |"


def report(parts: Iterable[Callable[[], list[Row]]], *, as_json: bool = False) -> None:
    """Measure part by part, print each as it is done, and leave with 1 if a limit does not hold."""
    rows: list[Row] = []
    for part in parts:
        for row in part():
            rows.append(row)
            if not as_json:
                print(row, flush=True)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    sys.exit(0 if all(row.holds for row in rows) else 1)
