"""The difference of two programs as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from weft.errors import visible
from weft.ir.program import Program
from weft.ir.text import counted
from weft.report.changes import KINDS, Change
from weft.sim.timeline import Timeline
from weft.sim.units import time_text

_NAMES = 3  # ops of a change that are worth naming

Timelines = tuple[Timeline, Timeline]
Paragraph = tuple[str, tuple[str, ...]]  # a title, and the lines below it


def diff_text(
    before: Program, after: Program, found: Sequence[Change], timelines: Timelines | None, most: int
) -> Iterator[Paragraph]:
    """A paragraph on the step, and one for each kind of change, with at most `most` of them.

    What is as it was is told only of collectives that are exposed for another time, and of the rest as one sum.
    """
    yield _header(before, after, timelines), ()
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in KINDS}
    for kind in sorted(by_kind, key=lambda kind: -sum(one.gain_us for one in by_kind[kind])):
        told = [one for one in by_kind[kind] if kind != "kept" or _visible(one.gain_us)]
        if told:
            gain = f": {_signed(sum(one.gain_us for one in told))}" if timelines is not None else ""
            more = [f"and {len(told) - most:,} more"] if len(told) > most else []
            yield f"{kind}{gain}", (*map(_line, told[:most]), *more)


def diff_json(before: Program, after: Program, found: Sequence[Change], timelines: Timelines | None) -> dict[str, Any]:
    """The same as plain data, and of everything."""
    figures = {"ops": [len(before), len(after)], "collectives": [len(before.communicating), len(after.communicating)]}
    simulated: dict[str, Any] = {}
    if timelines is not None:
        names = ("step_us", "compute_us", "exposed_us", "peak_bytes")
        simulated = {name: [getattr(one, name) for one in timelines] for name in names}
    return {**figures, **simulated, "changes": [{**asdict(one), "gain_us": _gain(one)} for one in found]}


def _header(before: Program, after: Program, timelines: Timelines | None) -> str:
    collectives = f"{len(before.communicating)} → {counted(len(after.communicating), 'collective')}"
    if timelines is None:
        return f"{collectives}, {len(before)} → {counted(len(after), 'op')}"
    was, now = timelines
    step = f"step {time_text(was.step_us)} → {time_text(now.step_us)} ({_signed(was.step_us - now.step_us)})"
    return f"{step}, exposed {time_text(was.exposed_us)} → {time_text(now.exposed_us)}, {collectives}"


def _line(one: Change) -> str:
    parts = [_subject(one)]
    if one.start_later:
        parts.append(f"starts {_shift(one.start_later)}")
    if one.wait_later:
        parts.append(f"is waited for {_shift(one.wait_later)}")
    if one.before_us is not None and one.after_us is not None:
        verb = "exposed" if one.exposed else "takes"
        parts.append(f"{verb} {time_text(one.before_us)} → {time_text(one.after_us)}")
    gain = "" if one.before_us is None else f"{_signed(one.gain_us):>12}  "
    origin = f"  # {one.origin}" if one.origin else ""
    return visible(f"{gain}{', '.join(parts)}{origin}")


def _subject(one: Change) -> str:
    if one.collective:
        sides = dict.fromkeys(_listed(names) for names in (one.before, one.after) if names)
        return f"{' → '.join(sides)}: {one.what}"
    counts = " → ".join(dict.fromkeys(f"{len(names):,}" for names in (one.before, one.after) if names))
    return f"{counts} × {one.what}" if one.what else f"{len(one.after):,} other op{'s' if len(one.after) != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"%{name}" for name in names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES:,} more"


def _shift(ops: int) -> str:
    return f"{counted(abs(ops), 'op')} {'later' if ops > 0 else 'earlier'}"


def _signed(gain_us: float) -> str:
    """What a gain does to the step."""
    if not _visible(gain_us):
        return time_text(0.0)
    return f"{'−' if gain_us > 0 else '+'}{time_text(abs(gain_us))}"


def _visible(us: float) -> bool:
    return abs(us) >= 0.05  # a time is written with one digit after the point


def _gain(one: Change) -> float | None:
    return None if one.before_us is None else one.gain_us
