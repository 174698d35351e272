"""What a page knows of two timelines: plain data for its script, with everything that is shown made safe to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from weft.ir.notebook import shown
from weft.report.facts import Shown, collectives, computations, holds, shape, within_matmuls
from weft.sim.timeline import Timeline

Data = dict[str, Any]
_MESSAGE = 2000  # characters of a remark that are worth showing


class Remark(Protocol):
    """What a pass says: one line of explanation."""

    @property
    def pass_name(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def verdict(self) -> str: ...

    @property
    def message(self) -> str: ...


class _Texts:
    """Texts that occur again and again, each kept once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def page_data(before: Timeline, after: Timeline, remarks: Sequence[Remark], memory_limit: int | None) -> Data:
    """Both sides, the remarks, and the texts that they refer to by number. Times are microseconds."""
    texts = _Texts()
    said = _by_op(remarks)
    were = {one.op.name: number for number, one in enumerate(collectives(before))}
    return {
        "limit": memory_limit,
        "sides": [_side("before", before, texts, said, {}), _side("after", after, texts, said, were)],
        "remarks": [_remark(remark) for remark in remarks],
        "texts": list(texts.known),
    }


def _side(
    name: str, timeline: Timeline, texts: _Texts, said: Mapping[str, Sequence[int]], were: Mapping[str, int]
) -> Data:
    found = (*collectives(timeline), *within_matmuls(timeline))
    number = {one.op.name: place for place, one in enumerate(found)}
    groups = {group.name: place for place, group in enumerate(timeline.program.groups)}
    held = list(holds(timeline))
    return {
        "name": name,
        "step": _us(timeline.step_us),
        "groups": [{"name": shown(group.name), "size": group.size} for group in timeline.program.groups],
        "compute": _compute(timeline, texts),
        "collectives": [_collective(one, groups, said, were) for one in found],
        "holds": {
            "begin": [_us(hold.during.begin) for hold in held],
            "end": [_us(hold.during.end) for hold in held],
            "of": [number.get(hold.start, -1) for hold in held],
        },
        "memory": {
            "at": [_us(begin) for begin, _ in timeline.memory_at],
            "bytes": [live for _, live in timeline.memory_at],
        },
    }


def _compute(timeline: Timeline, texts: _Texts) -> Data:
    found = list(computations(timeline))
    return {
        "begin": [_us(during.begin) for _, during in found],
        "end": [_us(during.end) for _, during in found],
        "op": [shown(op.name) for op, _ in found],
        "target": [texts(shown(op.target)) for op, _ in found],
        "origin": [texts(shown(op.origin)) for op, _ in found],
        "shape": [texts(shape(op)) for op, _ in found],
        "matmul": [int(op.traits.matmul) for op, _ in found],
    }


def _collective(
    one: Shown, groups: Mapping[str, int], said: Mapping[str, Sequence[int]], were: Mapping[str, int]
) -> Data:
    of = (one.op.name, *one.op.sources)
    return {
        "op": shown(one.op.name),
        "kind": one.kind,
        "inside": one.op.inside is not None,
        "group": groups[one.group.name],
        "origin": shown(one.op.origin),
        "shape": shape(one.op),
        "bytes": one.total_bytes,
        "launched": _us(one.launched),
        "begin": _us(one.flight.begin),
        "end": _us(one.flight.end),
        "waited": None if one.waited is None else _us(one.waited.end),
        "exposed": _us(one.exposed_us),
        "causes": [{"us": _us(cause.us), "text": shown(cause.message)} for cause in one.causes],
        "waits": [shown(wait) for wait in one.waits],
        "members": [{"op": shown(name), "was": were.get(name, -1)} for name in one.op.sources],
        "remarks": sorted({number for name in of for number in said.get(name, ())}),
    }


def _by_op(remarks: Iterable[Remark]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for number, remark in enumerate(remarks):
        if remark.op:
            found.setdefault(remark.op, []).append(number)
    return found


def _remark(remark: Remark) -> Data:
    return {
        "pass": shown(remark.pass_name),
        "verdict": shown(remark.verdict),
        "op": shown(remark.op),
        "text": shown(remark.message, _MESSAGE),
    }


def _us(us: float) -> float:
    return round(us, 3)
