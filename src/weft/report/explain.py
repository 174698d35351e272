"""Why a step waits: its exposed collectives, most costly first, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from weft.ir.notebook import shown
from weft.ir.text import counted
from weft.sim.explanation import Explanation
from weft.sim.inside import inside
from weft.sim.timeline import Timeline
from weft.sim.units import size_text, time_text

Paragraph = tuple[str, tuple[str, ...]]  # a title, and the lines below it
_NAME, _MESSAGE = 100, 400  # characters that are worth showing: names may have any length


def explained(timeline: Timeline, found: Sequence[Explanation]) -> Iterator[Paragraph]:
    """A paragraph on the step, and one for each collective that is explained."""
    exposed, within, listed = len(timeline.exposed), len(inside(timeline)), len(found)
    total = len(timeline.flights)
    of_all = f"{exposed:,} of {total:,} collective{'s' if total != 1 else ''} exposed"
    if within:
        of_all += f", and {counted(within, 'matmul')} with a collective inside"
    which = "that which costs most" if listed == 1 else f"the {listed} that cost most"
    more = exposed + within > listed
    yield _header(timeline), (f"{of_all}; {which}:" if more else of_all + ":" * bool(listed),)
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
    assert op.collective is not None, "only collectives are exposed"
    share = one.exposure.us / timeline.step_us
    what = f"{op.collective.kind} over {shown(op.collective.group.name, _NAME)}"
    held = "inside a matmul, which waits" if op.inside is not None else "exposed"
    us = time_text(one.exposure.us)
    return f"{number}. %{shown(op.name, _NAME)}, {what}: {held} for {us}, {share:.1%} of the step"


def _lines(timeline: Timeline, one: Explanation) -> Iterator[str]:
    if where := timeline.program[one.exposure.start].origin:
        yield f"where   {shown(where)}"
    for number, cause in enumerate(one.exposure.causes):
        yield f"{'why' if number == 0 else '':<7} {time_text(cause.us)}: {shown(cause.message, _MESSAGE)}"
    yield f"remedy  {_remedy(timeline, one)}"


def _remedy(timeline: Timeline, one: Explanation) -> str:
    if one.remedy is not None:
        gain = f"step -{time_text(one.remedy.saves_us)}, peak {size_text(one.remedy.peak_bytes)}"
        still = f"{time_text(one.remedy.left_us)} of it are left"
        return f"with {shown(one.remedy.change, _MESSAGE)} {'it is hidden' if one.remedy.hides else still} ({gain})"
    left = time_text(max(0.0, timeline.step_us - timeline.bound_us))
    tried = f"{counted(one.tried, 'change')} tried, and none helps" if one.tried else "no knob is left to change"
    return f"{tried}; the bound ({timeline.bound.name}) leaves {left} to gain in the whole step"


def _content(timeline: Timeline, one: Explanation) -> dict[str, Any]:
    op = timeline.program[one.exposure.start]
    assert op.collective is not None, "only collectives are exposed"
    return {
        "op": op.name,
        "kind": op.collective.kind,
        "group": op.collective.group.name,
        "inside_a_matmul": op.inside is not None,
        "origin": op.origin,
        "us": one.exposure.us,
        "causes": [
            {"kind": cause.kind, "us": cause.us, "op": cause.op, "message": cause.message}
            for cause in one.exposure.causes
        ],
        "remedy": asdict(one.remedy) if one.remedy is not None else None,
        "tried": one.tried,
    }
