"""A timeline drawn with characters: one lane for compute, one for each group."""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import visible
from weft.sim.timeline import Timeline

_WIDTH = 100  # columns for a step, unless its microseconds are fewer


def lanes(timeline: Timeline, us_per_column: float | None = None) -> str:
    """The step as lanes of text: `|name---` is an op at work, dots are the compute stream waiting.

    Without `us_per_column` a short step has a column for each microsecond, and a longer one fits into 100 columns.
    """
    scale = us_per_column or max(1.0, timeline.step_us / _WIDTH)
    rows = [("compute", _compute(timeline, scale))]  # no dict: a group may be called so, too
    rows += [(group.name, _group(timeline, group.name, scale)) for group in timeline.program.groups]
    width = max(len(name) for name, _ in rows)
    drawn = [visible(f"{name:<{width}}  {row}".rstrip()) for name, row in rows]
    return "\n".join([f"{'us':<{width}}  {_ruler(timeline.step_us, scale)}", *drawn, footer(timeline)]) + "\n"


def footer(timeline: Timeline) -> str:
    """Step, exposed time and peak memory in one line."""
    step, exposed, peak = timeline.step_us, timeline.exposed_us, timeline.peak_bytes
    return f"step {step:,.1f} us, exposed {exposed:,.1f} us, bound {timeline.bound_us:,.1f} us, peak {peak:,} bytes"


def _compute(timeline: Timeline, scale: float) -> str:
    spans = []
    for op, begin, end in zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True):
        if end > begin:
            spans.append((begin, end, "" if op.is_wait else op.name))
    done = timeline.ends[-1] if timeline.ends else 0.0
    if timeline.step_us > done:
        spans.append((done, timeline.step_us, ""))
    return _row(spans, scale)


def _group(timeline: Timeline, group: str, scale: float) -> str:
    ops = timeline.program.ops
    spans = [
        (flight.begin, flight.end, ops[place].name)
        for place, flight in timeline.flights.items()
        if (comm := ops[place].comm) is not None and comm.group.name == group
    ]
    return _row(spans, scale)


def _row(spans: Iterable[tuple[float, float, str]], scale: float) -> str:
    """Spans of time side by side; one without a name is a time of waiting. What is too short to be seen is left out."""
    row = ""
    for begin, end, name in spans:
        first, last = round(begin / scale), round(end / scale)
        row = row.ljust(first)
        row += f"|{name}"[: last - first].ljust(last - first, "-") if name else "." * (last - first)
    return row


def _ruler(step_us: float, scale: float) -> str:
    """A mark with its time every ten columns."""
    columns = round(step_us / scale)
    return "".join(f"{place * scale:<10g}" for place in range(0, columns + 1, 10)).rstrip()
