"""A timeline as a trace that Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from weft.ir.notebook import shown
from weft.ir.origins import module_path
from weft.ir.program import Op
from weft.report.facts import Shown, collectives, holds, shape
from weft.sim.timeline import Timeline

_PROCESS = 1
_COMPUTE = 1  # the thread of the compute stream; those of the groups come after it

Event = dict[str, Any]
Places = Mapping[int, tuple[int, int]]  # for a position, from when until when the compute stream has it, in nanoseconds


def perfetto_trace(timeline: Timeline) -> str:
    """The step as JSON in the trace event format.

    A thread for the compute stream, where modules enclose their ops, and one for each group. A flow leads from the
    launch of a collective through its flight to its first wait. Memory is a counter.

    Times are whole nanoseconds, in which Perfetto counts. Launches, and waits that hold nothing, take one: without
    any length Perfetto would nest those of one moment in each other, and in the op behind them. That op begins so much
    later.
    """
    found = collectives(timeline)
    threads = {group.name: _COMPUTE + 1 + number for number, group in enumerate(timeline.program.groups)}
    places = _places(timeline)
    events = [*_memory(timeline), *_modules(timeline, places), *_stream(timeline, places)]
    for one in found:
        events += _collective(timeline, one, places, threads[one.group.name])
    events += _end(timeline, places)
    events.sort(key=lambda event: event["ts"])  # what begins together keeps its order: the outer one comes first
    content = {"displayTimeUnit": "ms", "traceEvents": [*_names(timeline, threads), *events]}
    return json.dumps(content, separators=(",", ":"))


def _places(timeline: Timeline) -> Places:
    """All that the compute stream comes by, one after the other: ops that take time, launches and waits."""
    found: dict[int, tuple[int, int]] = {}
    now = 0
    for position, (op, begin, end) in enumerate(zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True)):
        if end > begin or op.is_start or op.is_wait:
            first = max(_ns(begin), now)
            now = max(_ns(end), first + 1)
            found[position] = (first, now)
    return found


def _names(timeline: Timeline, threads: Mapping[str, int]) -> Iterator[Event]:
    rank = timeline.program.rank
    yield _metadata("process_name", 0, name="step" if rank is None else f"step of rank {rank}")
    labels = {_COMPUTE: "compute stream"}
    sizes = {group.name: group.size for group in timeline.program.groups}
    labels |= {thread: f"group {shown(name)} ({sizes[name]} ranks)" for name, thread in threads.items()}
    for thread, label in labels.items():
        yield _metadata("thread_name", thread, name=label)
        yield _metadata("thread_sort_index", thread, sort_index=thread)


def _computing(timeline: Timeline, places: Places) -> Iterator[tuple[Op, int, int]]:
    """The ops that compute, each with when it begins and ends. Launches and waits come with their collectives."""
    for position, (begin, end) in places.items():
        op = timeline.program.ops[position]
        if not op.is_start and not op.is_wait:
            yield op, begin, end


def _modules(timeline: Timeline, places: Places) -> Iterator[Event]:
    """A slice for each module, around the ops that follow each other in it; the outer ones first."""
    opened: list[tuple[str, Event]] = []
    for op, begin, end in _computing(timeline, places):
        path = module_path(op.origin).split(".") if module_path(op.origin) else []
        pairs = zip(path, opened, strict=False)
        del opened[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], pairs)) :]
        for depth in range(len(opened), len(path)):
            made = _slice(shown(".".join(path[: depth + 1])), "module", _COMPUTE, begin, end)
            opened.append((path[depth], made))
            yield made
        for _, event in opened:
            event["dur"] = round(end / 1000 - event["ts"], 3)


def _stream(timeline: Timeline, places: Places) -> Iterator[Event]:
    """The ops that compute."""
    for op, begin, end in _computing(timeline, places):
        args = _args(op)
        if op.inside is not None:
            args |= {"Collective name": op.inside.kind, "Process Group Name": shown(op.inside.group.name)}
        yield _slice(shown(op.target), "kernel", _COMPUTE, begin, end, args)


def _collective(timeline: Timeline, one: Shown, places: Places, thread: int) -> Iterator[Event]:
    """Its launch, its flight and its waits, with the flow that binds them."""
    launch, landed = places[one.position], _ns(one.flight.end)
    begin = max(_ns(one.flight.begin), launch[0])
    yield _slice(f"launch {one.kind}", "launch", _COMPUTE, *launch, _args(one.op))
    yield _flow("s", one, _COMPUTE, launch[0])
    yield _slice(one.kind, "collective", thread, begin, max(landed, begin), _collective_args(one))
    yield _flow("t" if one.waits else "f", one, thread, begin)
    for number, wait in enumerate(one.waits):
        place = places[timeline.program.index[wait]]
        yield _slice(f"wait {one.kind}", "wait", _COMPUTE, *place, _args(timeline.program[wait]))
        if number == 0:
            # It comes to the end of the wait: the beginning may be before the flight.
            yield _flow("f", one, _COMPUTE, place[1] - 1)


def _end(timeline: Timeline, places: Places) -> Iterator[Event]:
    """What the step waits for when all else is done."""
    done = max((end for _, end in places.values()), default=0)
    for hold in holds(timeline):
        if not hold.wait and (landed := _ns(hold.during.end)) > done:
            yield _slice("end of step", "wait", _COMPUTE, done, landed, _args(timeline.program[hold.start]))
            done = landed


def _memory(timeline: Timeline) -> Iterator[Event]:
    for begin, live in timeline.memory_at:
        yield {"ph": "C", "name": "memory", "pid": _PROCESS, "ts": _ns(begin) / 1000, "args": {"bytes": live}}


def _args(op: Op) -> Event:
    return {"op": shown(op.name), "module": shown(op.origin), "shape": shape(op)}


def _collective_args(one: Shown) -> Event:
    """What torch's profiler says of a collective, in its words, and what it cannot know."""
    return _args(one.op) | {
        "Collective name": one.kind,
        "Process Group Name": shown(one.group.name),
        "Group size": one.group.size,
        "bytes": one.total_bytes,
        "exposed us": round(one.exposed_us, 3),
        "reason": shown(one.reason),
        "members": [shown(name) for name in one.op.sources],
    }


def _slice(name: str, category: str, thread: int, begin: int, end: int, args: Event | None = None) -> Event:
    event = {"ph": "X", "name": name, "cat": category, "pid": _PROCESS, "tid": thread}
    return event | {"ts": begin / 1000, "dur": (end - begin) / 1000} | ({"args": args} if args is not None else {})


def _flow(phase: str, one: Shown, thread: int, at: int) -> Event:
    event = {"ph": phase, "name": one.kind, "cat": "flow", "id": one.position, "pid": _PROCESS, "tid": thread}
    return event | {"ts": at / 1000} | ({"bp": "e"} if phase == "f" else {})


def _metadata(what: str, thread: int, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": args}


def _ns(us: float) -> int:
    return round(us * 1000)
