"""A step in figures: what tables, pages and notebooks show of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.sim.units import size_text, time_text

if TYPE_CHECKING:
    from weft.sim.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and how people read it."""

    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A figure before and after, and how it changed, as texts; `change` is empty where it did not."""

    name: str
    before: str
    after: str
    change: str = ""


def figures(timeline: Timeline) -> dict[str, Figure]:
    """Step, compute, communication, exposed time, collectives (and after a dot each kind), peak memory and bound."""
    kinds = Counter(op.collective.kind for op in timeline.program.communicating if op.collective is not None)
    return {
        "step": _time(timeline.step_us),
        "compute": _time(timeline.compute_us),
        "communication": _time(timeline.comm_us),
        "exposed": _time(timeline.exposed_us),
        "collectives": _count(kinds.total()),
        **{f"· {kind}": _count(kinds[kind]) for kind in sorted(kinds)},
        "peak memory": Figure(timeline.peak_bytes, size_text(timeline.peak_bytes)),
        "bound": _time(timeline.bound_us),
    }


def summary(before: Timeline, after: Timeline, memory_limit: int | None = None) -> tuple[Row, ...]:
    """The figures of both, one row each; with a limit, a row that says so below the memory."""
    was, now = figures(before), figures(after)
    none = _count(0)
    names = [name for name in was if not name.startswith("·")]
    kinds = sorted(name for name in {*was, *now} if name.startswith("·"))
    place = names.index("collectives") + 1
    rows = [
        Row(name, old.text, new.text, _change(old.value, new.value))
        for name in [*names[:place], *kinds, *names[place:]]
        for old, new in [(was.get(name, none), now.get(name, none))]
    ]
    if memory_limit is not None:
        limit = size_text(memory_limit)
        rows.insert(-1, Row("memory limit", limit, limit))
    return tuple(rows)


def _time(us: float) -> Figure:
    return Figure(us, time_text(us))


def _count(number: int) -> Figure:
    return Figure(number, f"{number:,}")


def _change(before: float, after: float) -> str:
    if not before or f"{after / before - 1:+.1%}" in ("+0.0%", "-0.0%"):
        return ""
    return f"{after / before - 1:+.1%}".replace("-", "−")
