"""A picture of a sweep: how step, exposed part and scaling change with what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from weft.ir.notebook import shown
from weft.report.pages import page
from weft.sim.units import size_text, time_text

_SCRIPTS = ("colors.js", "sweep.js")


@dataclass(frozen=True, slots=True)
class Side:
    """A step as written, or after Weft. `efficiency` is the work that a rank does in a given time, against the first
    point with the same machine and memory limit."""

    step_us: float
    exposed_us: float
    peak_bytes: int
    efficiency: float


@dataclass(frozen=True, slots=True)
class Point:
    """What was tried, and what came out. `machine` and `limit_text` are the machine and the memory limit as typed."""

    world_size: int | None
    machine: str
    memory_limit: int | None
    before: Side
    after: Side
    limit_text: str = ""

    def text(self, axis: str) -> str:
        """Its place on an axis, as people read it."""
        if axis == "world-size":
            return f"{self.world_size:,}"
        # As typed: limits that are nearly equal would be one place if they were rounded.
        return shown(self.machine if axis == "machine" else self.limit_text)


def sweep_page(title: str, points: Sequence[Point], rows: Sequence[Sequence[str]], axes: Sequence[str]) -> str:
    """One HTML file with the picture, and below it the table, whose first row is its header.

    World sizes run along the picture, if they were swept, and otherwise the first of `axes`; there is a line for each
    combination of the others.
    """
    head, *body = ["".join(f"<td>{escape(shown(cell))}</td>" for cell in row) for row in rows]
    parts = {
        "title": escape(shown(title)),
        "head": head.replace("<td>", "<th>").replace("</td>", "</th>"),
        "rows": "\n".join(f"<tr>{row}</tr>" for row in body),
    }
    return page("sweep.html", _SCRIPTS, _data(points, axes), parts)


def _data(points: Sequence[Point], axes: Sequence[str]) -> dict[str, Any]:
    along = "world-size" if "world-size" in axes else axes[0]
    ordered = sorted(points, key=lambda point: point.world_size or 0) if along == "world-size" else points
    places = list(dict.fromkeys(point.text(along) for point in ordered))
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in ordered:
        name = ", ".join(point.text(axis) for axis in axes if axis != along)
        lines.setdefault(name, []).append({"at": places.index(point.text(along)), **_sides(point)})
    series = [{"name": name, "points": found} for name, found in lines.items()]
    return {"along": along, "joined": along != "machine", "places": places, "lines": series}


def _sides(point: Point) -> dict[str, Any]:
    return {name: _side(side) for name, side in (("before", point.before), ("after", point.after))}


def _side(side: Side) -> dict[str, Any]:
    return {
        "step": side.step_us / 1e3,
        "exposed": side.exposed_us / side.step_us * 100 if side.step_us else 0.0,
        "efficiency": side.efficiency * 100,
        "text": f"step {time_text(side.step_us)}, exposed {time_text(side.exposed_us)}, "
        f"efficiency {side.efficiency:.1%}, peak {size_text(side.peak_bytes)}",
    }
