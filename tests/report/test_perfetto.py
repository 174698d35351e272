"""The trace is what Perfetto takes it for: its own trace processor says so, and the format is checked without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from playwright.sync_api import Browser

from tests.programs import programs
from tests.report.samples import TOY, optimized, step
from tests.report.trace_processor import Engine, loaded
from tests.sim.test_simulate import COST
from weft.analysis.pairs import pairs
from weft.ir import Program, parse
from weft.report.perfetto import perfetto_trace
from weft.sim import Timeline, simulate

SLICES = """
    select thread.name as thread, slice.name as name, slice.category as category, slice.ts as ts, slice.dur as dur,
        slice.depth as depth
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    order by slice.ts, slice.depth
"""
FLOWS = """
    select a.category as start, extract_arg(a.arg_set_id, 'args.op') as op, b.category as end,
        extract_arg(b.arg_set_id, 'args.op') as other
    from flow join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id
"""
MEMORY = """
    select counter.ts as ts, counter.value as value from counter join counter_track t on counter.track_id = t.id
    where t.name = 'memory bytes' order by counter.id
"""


def events(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(perfetto_trace(timeline))["traceEvents"] if event["ph"] == phase]


def ns(us: float) -> int:
    return round(us * 1000)


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Any:
    with loaded(browser, perfetto_trace(optimized().after)) as made:
        yield made


def test_perfetto_reads_it_without_complaint(engine: Engine) -> None:
    assert engine.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []


def test_perfetto_sees_a_track_for_each_stream(engine: Engine) -> None:
    found = {row[0] for row in engine.query(SLICES)}
    assert found == {"compute stream", "group dp (2 ranks)", "group four (4 ranks)"}


def test_perfetto_sees_every_slice_where_it_is_and_nested_as_it_should_be(engine: Engine) -> None:
    lines = [
        f"{ts:>6} {dur:>6}  {'  ' * depth}{name} [{category}]"
        for thread, name, category, ts, dur, depth in engine.query(SLICES)
        if thread == "compute stream"
    ]
    assert "\n".join(lines[:18]) == FIRST_LAYER


def test_perfetto_binds_each_launch_to_its_flight_and_to_its_first_wait(engine: Engine) -> None:
    program = optimized().after.program
    expected = set()
    for start, waits in pairs(program).waits.items():
        expected |= {("launch", start, "collective", start), ("collective", start, "wait", waits[0])}
    rows = engine.query(FLOWS)
    assert set(rows) == expected
    assert len(rows) == len(expected)


def test_perfetto_counts_the_memory_of_the_timeline(engine: Engine) -> None:
    expected = [(ns(at), float(live)) for at, live in optimized().after.memory_at]
    assert engine.query(MEMORY) == expected


@given(programs())
def test_slices_of_a_thread_follow_each_other_or_are_inside_each_other(program: Program) -> None:
    timeline = simulate(program, COST)
    opened: dict[int, list[int]] = {}
    for event in events(timeline, "X"):
        begin, end = ns(event["ts"]), ns(event["ts"] + event["dur"])
        stack = opened.setdefault(event["tid"], [])
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1]
        assert end > begin or event["cat"] == "collective"
        stack.append(end)


@given(programs())
def test_each_flow_begins_in_a_launch_and_ends_in_a_wait_or_in_flight(program: Program) -> None:
    timeline = simulate(program, COST)
    slices = events(timeline, "X")
    ends = {event["id"]: event for event in events(timeline, "f")}
    begins = {event["id"]: event for event in events(timeline, "s")}
    between = {event["id"]: event["ts"] for event in events(timeline, "t")}
    assert begins.keys() == ends.keys() == timeline.flights.keys()

    def enclosing(event: dict[str, Any]) -> list[str]:
        at, thread = ns(event["ts"]), event["tid"]
        return [
            f"{one['cat']} {one['args']['op']}" for one in slices
            if one["tid"] == thread and one["cat"] != "module" and ns(one["ts"]) <= at <= ns(one["ts"] + one["dur"])
        ]  # fmt: skip

    for position, begin in begins.items():
        start = program.ops[position].name
        waits = pairs(program).waits[start]
        assert f"launch {start}" in enclosing(begin)
        assert (f"wait {waits[0]}" if waits else f"collective {start}") in enclosing(ends[position])
        assert begin["ts"] <= between.get(position, begin["ts"]) <= ends[position]["ts"]


@given(programs())
def test_the_counter_is_the_memory_of_the_timeline(program: Program) -> None:
    timeline = simulate(program, COST)
    counted = [(ns(event["ts"]), event["args"]["bytes"]) for event in events(timeline, "C")]
    assert counted == [(ns(at), live) for at, live in timeline.memory_at]


def test_a_collective_says_all_that_is_known_of_it() -> None:
    before = simulate(step(1), TOY)
    (found,) = [event for event in events(before, "X") if event["cat"] == "collective" and event["args"]["op"] == "r0"]
    assert found["args"] == {
        "op": "r0",
        "module": "layers.0 model.py:9",
        "shape": "f32[10,10]",
        "Collective name": "all_reduce",
        "Process Group Name": "four",
        "Group size": 4,
        "bytes": 400,
        "exposed us": 5.4,
        "reason": "5.4 us: %x1 needs it, and there was too little to do until then",
        "members": [],
    }


def test_a_flow_goes_forward_where_the_wait_begins_before_the_flight() -> None:
    text = """weft 1
group dp = 0, 1

%x: f32[500] = input()
%g: f32[1000] = all_gather.start(%x) over dp
%h: f32[1000] = all_gather.start(%x) over dp
%v: f32[1000] = wait(%h)
%w: f32[1000] = wait(%g)
return %v, %w
"""
    timeline = simulate(parse(text), TOY)
    at = [[event["ts"] for event in events(timeline, phase) if event["id"] == 2] for phase in "stf"]
    assert at == [[0.001], [4.0], [7.999]]  # the wait begins at 0.002


def test_what_the_step_waits_for_in_the_end_is_seen() -> None:
    text = (
        "weft 1\ngroup dp = 0, 1\n\n%x: f32[500] = input()\n%g: f32[1000] = all_gather.start(%x) over dp\nreturn %x\n"
    )
    assert [(event["name"], event["ts"], event["dur"]) for event in events(simulate(parse(text), TOY), "X")] == [
        ("launch all_gather", 0.0, 0.001),
        ("all_gather", 0.0, 4.0),
        ("end of step", 0.001, 3.999),
    ]


def test_a_program_without_ops_is_a_trace_without_slices() -> None:
    assert events(simulate(parse("weft 1\nreturn"), TOY), "X") == []


def test_names_cannot_break_out_of_the_trace() -> None:
    bad = "a\x1b[31m\u2028" + "b" * 100_000
    (event,) = [one for one in events(simulate(hostile(bad), TOY), "X") if one["cat"] == "kernel"]
    assert event["args"]["op"] == "a·[31m·" + "b" * 192 + "…"


def hostile(name: str) -> Program:
    return parse(f"weft 1\n\n%x: f32[1000] = input()\n%{json.dumps(name)}: f32[1000] = aten.relu.default(%x)\nreturn\n")


FIRST_LAYER = """\
     0   2400  aten.cat.default [kernel]
  2400      1  launch all_gather [launch]
  2401   2399  wait all_gather [wait]
  4800    800  aten.clone.default [kernel]
  5600  10000  layers [module]
  5600  10000    layers.0 [module]
  5600  10000      layers.0.up [module]
  5600  10000        aten.mm.default [kernel]
 15600    800  aten.clone.default [kernel]
 16400  10000  layers [module]
 16400  10000    layers.0 [module]
 16400  10000      layers.0.down [module]
 16400  10000        aten.mm.default [kernel]
 26400      1  launch all_reduce [launch]
 26401    799  aten.clone.default [kernel]
 27200    800  aten.clone.default [kernel]
 28000   3800  wait all_reduce [wait]
 31800  20800  layers [module]"""
