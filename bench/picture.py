"""Draws the cases of `bench.quality`: for each a group of bars, compute and exposed, on the scale of its bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.cases import Case, Row

_COMPUTE, _EXPOSED, _BOUND = "#4c78a8", "#f2a65a", "#b2182b"
_BAR, _GAP = 0.8, 1.6  # the height of a bar, and the room for a case's heading, in rows
_INCHES_PER_ROW = 0.22


def draw(cases: Sequence[Case], path: Path) -> None:
    """Write the picture; the ending of the name chooses PNG or SVG. Needs no display.

    Steps of different workloads differ a thousandfold, so each case has its bound for a unit: one line is the bound of
    all. The label of a bar has the milliseconds.
    """
    height = sum(len(case.rows) + _GAP for case in cases)
    figure = Figure(figsize=(10, height * _INCHES_PER_ROW + 1.2), layout="constrained")
    axes = figure.add_subplot()
    places: dict[float, str] = {}
    top = 0.0
    for case in cases:
        _heading(axes, case, top)
        for number, row in enumerate(case.rows):
            place = top + _GAP + number
            places[place] = row.name
            _bar(axes, case, row, place)
        top += _GAP + len(case.rows)
        axes.vlines(1, top - len(case.rows) - _BAR / 2, top - 1 + _BAR / 2, color=_BOUND)
    _frame(axes, cases, places, top)
    figure.savefig(path, dpi=120)


def _heading(axes: Axes, case: Case, top: float) -> None:
    limit = "" if case.limit_bytes is None else f", memory {case.limit}"
    text = f"{case.workload} ({case.layers} layers) on {case.machine}{limit}"
    axes.text(0, top + _GAP - 0.75, text, fontsize=8, fontweight="bold", verticalalignment="center")


def _bar(axes: Axes, case: Case, row: Row, place: float) -> None:
    if row.figures is None:
        axes.text(0.01, place, row.error.split(":")[0], fontsize=7, style="italic", verticalalignment="center")
        return
    found = row.figures
    compute, exposed = found.compute_us / case.bound_us, found.exposed_us / case.bound_us
    axes.barh(place, compute, _BAR, color=_COMPUTE)
    axes.barh(place, exposed, _BAR, left=compute, color=_EXPOSED)
    over = ", over the limit" if case.over_limit(found) else ""
    label = f" {found.step_us / 1e3:,.2f} ms{over}"
    axes.text(compute + exposed, place, label, fontsize=7, verticalalignment="center")


def _frame(axes: Axes, cases: Sequence[Case], places: dict[float, str], bottom: float) -> None:
    bars = [row.figures.step_us / case.bound_us for case in cases for row in case.rows if row.figures is not None]
    axes.set_yticks(list(places), list(places.values()), fontsize=7)
    axes.set_ylim(bottom, 0)  # the first case is on top
    axes.set_xlim(0, max(bars, default=1.0) * 1.15)
    axes.set_xlabel("step ÷ bound")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [
        Patch(color=_COMPUTE, label="compute"),
        Patch(color=_EXPOSED, label="exposed: compute waits for communication"),
        Line2D([], [], color=_BOUND, label="bound: no schedule is faster"),
    ]
    axes.legend(handles=handles, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
