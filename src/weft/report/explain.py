"""Why a step waits: its exposed collectives, most costly first, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.errors import visible
from weft.ir.text import counted
from weft.sim.explanation import Explanation
from weft.sim.timeline import Timeline
from weft.sim.units import size_text, time_text

Paragraph = tuple[str, tuple[str, ...]]  # a title, and the lines below it


def explained(timeline: Timeline, found: Sequence[Explanation]) -> Iterator[Paragraph]:
    """A paragraph on the step, and one for each collective that is explained."""
    exposed, shown = len(timeline.exposed), len(found)
    total = len(timeline.flights)
    of_all = f"{exposed:,} of {total:,} collective{'s' if total != 1 else ''} exposed"
    which = "that which costs most" if shown == 1 else f"the {shown} that cost most"
    yield _header(timeline), (f"{of_all}; {which}:" if exposed > shown else of_all + ":" * bool(exposed),)
    for number, one in enumerate(found, 1):
        yield _title(timeline, number, one), tuple(_lines(timeline, one))


def explained_json(timeline: Timeline, found: Sequence[Explanation]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "step_us": timeline.step_us,
        "exposed_us": timeline.exposed_us,
        "bound_us": timeline.bound_us,
        "bound_by": timeline.bound.name,
        "peak_bytes": timeline.peak_bytes,
        "exposed": len(timeline.exposed),
        "collectives": [_content(timeline, one) for one in found],
    }


def _header(timeline: Timeline) -> str:
    return (
        f"step {time_text(timeline.step_us)}, exposed {time_text(timeline.exposed_us)}, "
        f"bound {time_text(timeline.bound_us)} by {timeline.bound.name}, peak {size_text(timeline.peak_bytes)}"
    )


def _title(timeline: Timeline, number: int, one: Explanation) -> str:
    op = timeline.program[one.exposure.start]
    assert op.comm is not None, "only starts are exposed"
    share = one.exposure.us / timeline.step_us
    what = f"{op.comm.kind} over {op.comm.group.name}"
    return visible(f"{number}. %{op.name}, {what}: exposed for {time_text(one.exposure.us)}, {share:.1%} of the step")


def _lines(timeline: Timeline, one: Explanation) -> Iterator[str]:
    if where := timeline.program[one.exposure.start].origin:
        yield visible(f"where   {where}")
    for number, cause in enumerate(one.exposure.causes):
        yield visible(f"{'why' if number == 0 else '':<7} {time_text(cause.us)}: {cause.message}")
    yield f"remedy  {_remedy(timeline, one)}"


def _remedy(timeline: Timeline, one: Explanation) -> str:
    if one.remedy is not None:
        gain = f"step -{time_text(one.remedy.saves_us)}, peak {size_text(one.remedy.peak_bytes)}"
        return f"with {one.remedy.change} it is hidden ({gain})"
    left = time_text(max(0.0, timeline.step_us - timeline.bound_us))
    tried = f"{counted(one.tried, 'change')} tried, and none hides it" if one.tried else "no knob is left to change"
    return f"{tried}; the bound ({timeline.bound.name}) leaves {left} to gain in the whole step"


def _content(timeline: Timeline, one: Explanation) -> dict[str, Any]:
    op = timeline.program[one.exposure.start]
    assert op.comm is not None, "only starts are exposed"
    return {
        "op": op.name,
        "kind": op.comm.kind,
        "group": op.comm.group.name,
        "origin": op.origin,
        "us": one.exposure.us,
        "causes": [
            {"kind": cause.kind, "us": cause.us, "op": cause.op, "message": cause.message}
            for cause in one.exposure.causes
        ],
        "remedy": None
        if one.remedy is None
        else {
            "change": one.remedy.change,
            "saves_us": one.remedy.saves_us,
            "peak_bytes": one.remedy.peak_bytes,
        },
        "tried": one.tried,
    }
