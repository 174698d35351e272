"""Predicted against measured: handwritten traces with round numbers, and real ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._inductor import config as inductor
from torch.distributed.device_mesh import init_device_mesh

import weft
from tests.run.traces import Writer
from weft.errors import OptionError
from weft.optimizer import Optimized
from weft.parallel import data_parallel
from weft.run import local_ranks
from weft.run.comparison import COLLECTIVE, FUSED, LAUNCHING, OP, Comparison
from weft.run.profiling import Steps, compare
from weft.run.reports import Report

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "estimates.md"
TOY = weft.Machine.load(str(ROOT / "tests" / "golden" / "toy.toml"))

# The all-gather takes 10 us, in which nothing else is done, the matmul 10 and the relu 20.
FORWARD = """weft 1
group dp = 0, 1

%w: f32[1250] = input()
%x: f32[10,10] = input()
%g: f32[2500] = all_gather.start(%w) over dp  # layers.0 model.py:3
%f: f32[2500] = wait(%g)
%h: f32[10,10] = aten.mm.default(%x, %x)  # layers.0 model.py:4
%r: f32[2500] = aten.relu.default(%f)  # layers.0 model.py:5
return %h, %r
"""
# The all-reduce takes 10 us, of which the matmul hides all.
BACKWARD = """weft 1
group dp = 0, 1

%y: f32[2500] = input()
%x: f32[10,10] = input()
%s: f32[2500] = all_reduce.start(%y) sum over dp  # gradient of layers.0 model.py:3
%k: f32[10,10] = aten.mm.default(%x, %x)  # layers.1 model.py:4
%t: f32[2500] = wait(%s)
return %k, %t
"""


def report(role: str, text: str, **changes: Any) -> Report:
    timeline = weft.simulate(weft.parse(text), TOY)
    return replace(Report.of(role, Optimized(timeline, timeline, (), ()), 0.1), **changes)


def forward(trace: Writer) -> None:
    trace.all_gather(5, 30, shard=1250)
    trace.wait(25, 1250)
    trace.op("aten::mm", 12, [10, 10], [10, 10])
    trace.op("aten::relu", 50, [2500])


def backward(trace: Writer) -> None:
    trace.all_reduce(5, 14, size=2500)
    trace.op("aten::mm", 12, [10, 10], [10, 10])
    trace.wait(2, 2500)


def compared(trace: Writer, folder: Path, *reports: Report, steps: int = 2) -> Comparison:
    return compare(reports, trace.save(folder / "trace.json"), Steps(steps, 120.0, 130.0))


def test_a_step_op_by_op(tmp_path: Path) -> None:
    trace = Writer()
    for _ in range(2):
        forward(trace)
        backward(trace)
    found = compared(trace, tmp_path, report("backward", BACKWARD), report("forward", FORWARD))
    assert str(found) == (
        "predicted against measured, 2 steps: forward graph, backward graph\n"
        "                predicted  measured  difference\n"
        "step              50.0 us  120.0 us    +70.0 us\n"
        "· while traced          —  130.0 us\n"
        "compute           40.0 us   74.0 us    +34.0 us\n"
        "communication     20.0 us   44.0 us    +24.0 us\n"
        "exposed           10.0 us   27.0 us    +17.0 us\n"
        "launching          0.0 us   10.0 us    +10.0 us\n"
        "elsewhere               —   19.0 us\n"
        "\n"
        "where they differ most, by what it costs a step:\n"
        "difference  times  predicted  measured  what                                      where\n"
        "  +30.0 us      1    20.0 us   50.0 us  aten.relu.default f32[2500]               layers.0 model.py:5\n"
        "  +20.0 us      1    10.0 us   30.0 us  all_gather of 10,000 bytes over group dp  layers.0 model.py:3\n"
        "  +10.0 us      1     0.0 us   10.0 us  the launches of all collectives\n"
        "   +4.0 us      2    10.0 us   12.0 us  aten.mm.default f32[10,10] f32[10,10]     layers.0 model.py:4\n"
        "   +4.0 us      1    10.0 us   14.0 us  all_reduce of 10,000 bytes over group dp  "
        "gradient of layers.0 model.py:3\n"
        "\n"
        "the largest error is in aten.relu.default f32[2500]: predicted 20.0 us, measured 50.0 us, once a step; "
        'recalibrate with `weft calibrate`, or plan with these times: compute_estimator="profile"'
    )
    assert str(found) in DOCUMENT.read_text()


def test_what_inductor_fuses_is_one_sum(tmp_path: Path) -> None:
    trace = Writer()
    trace.all_gather(5, 30, shard=1250)
    trace.wait(25, 1250)
    trace.op("aten::mm", 12, [10, 10], [10, 10], [10, 10])  # compiled code has memory for the result
    trace.pause(45)  # the kernel for the relu is no op
    trace.graph(begin=0)
    trace.op("aten::relu", 1000, [2500])  # somebody else's
    found = compared(trace, tmp_path, report("inference", FORWARD), steps=1)
    assert [(one.kind, one.what, round(one.predicted_us, 6), one.measured_us) for one in found.differences] == [
        (FUSED, "the kernels that Inductor made of 1 op", 20.0, 45.0),
        (COLLECTIVE, "all_gather of 10,000 bytes over group dp", 10.0, 30.0),
        (LAUNCHING, "the launches of all collectives", 0.0, 5.0),
        (OP, "aten.mm.default f32[10,10] f32[10,10]", 10.0, 12.0),
    ]
    assert [(row.name, row.measured_us) for row in found.rows[2:]] == [
        ("compute", 57.0),
        ("communication", 30.0),
        ("exposed", 25.0),
        ("launching", 5.0),
        ("elsewhere", 43.0),
    ]


def test_small_differences_are_said_to_be_small(tmp_path: Path) -> None:
    trace = Writer()
    trace.all_gather(1, 11, shard=1250)
    trace.wait(10, 1250)
    trace.op("aten::mm", 12, [10, 10], [10, 10])
    trace.op("aten::relu", 20, [2500])
    found = compared(trace, tmp_path, report("inference", FORWARD), steps=1)
    assert found.verdict == (
        "no difference is more than 5% of the step; the largest is aten.mm.default f32[10,10] f32[10,10]: "
        "predicted 10.0 us, measured 12.0 us, once a step"
    )


def test_what_is_not_in_the_trace_is_named(tmp_path: Path) -> None:
    trace = Writer()
    trace.all_gather(5, 30, shard=1250)
    found = compared(trace, tmp_path, report("inference", FORWARD), steps=1)
    assert found.remarks == (
        "not found in the trace: aten.mm.default f32[10,10] f32[10,10], aten.relu.default f32[2500]",
    )


# Which graphs ran


def test_a_graph_runs_as_often_as_its_collectives_do(tmp_path: Path) -> None:
    trace = Writer()
    for _ in range(2):  # steps, with two forwards for every backward
        forward(trace)
        forward(trace)
        backward(trace)
    longer = FORWARD.replace("1250", "12500").replace("2500", "25000")
    reports = (report("forward", longer), report("forward", FORWARD), report("backward", BACKWARD))
    found = compared(trace, tmp_path, *reports)
    assert found.graphs == ("forward graph, 2 times", "backward graph")
    assert found.rows[0].predicted_us == 90.0


def test_a_forward_without_a_backward_is_an_inference(tmp_path: Path) -> None:
    reports = (report("forward", FORWARD), report("inference", FORWARD), report("backward", BACKWARD))
    trace = Writer()
    forward(trace)
    assert compared(trace, tmp_path, *reports, steps=1).graphs == ("inference graph",)
    backward(trace)
    assert compared(trace, tmp_path, *reports, steps=1).graphs == ("forward graph", "backward graph")


def test_collectives_that_the_trace_cannot_place_do_not_count(tmp_path: Path) -> None:
    trace = Writer(2, 4)  # Gloo does not say which of the two groups an all-reduce is of
    forward(trace)
    backward(trace)
    found = compared(trace, tmp_path, report("backward", BACKWARD), report("forward", FORWARD), steps=1)
    assert found.graphs == ("forward graph", "backward graph")
    assert found.remarks[0] == "not found in the trace: all_reduce of 10,000 bytes over group dp"
    assert found.remarks[1].endswith("trace.json: 1 collective of unknown kind or group not used")


def test_a_graph_that_is_not_used_runs_as_it_was(tmp_path: Path) -> None:
    trace = Writer()
    forward(trace)
    was = weft.simulate(weft.parse(FORWARD), TOY)
    now = weft.simulate(weft.parse(FORWARD.replace("1250", "125").replace("2500", "250")), TOY)
    refused = replace(Report.of("forward", Optimized(was, now, (), ()), 0.1), used=False, why="rank 1 differs")
    found = compared(trace, tmp_path, refused, steps=1)
    assert [found.rows[place].predicted_us for place in (0, 3)] == pytest.approx([40.0, 10.0])


def test_of_a_graph_out_of_the_cache_only_the_figures_are_known(tmp_path: Path) -> None:
    trace = Writer()
    forward(trace)
    known = Report.from_json(report("forward", FORWARD).to_json())
    found = compared(trace, tmp_path, replace(known, cached=True), steps=1)
    assert [(row.name, row.predicted_us) for row in found.rows] == [
        ("step", 40.0),
        ("· while traced", None),
        ("compute", pytest.approx(30.0)),
        ("communication", None),
        ("exposed", pytest.approx(10.0)),
        ("launching", 0.0),
        ("elsewhere", None),
    ]
    assert found.remarks == (
        "the forward graph came out of Inductor's cache, and its ops are not compared; for one run, set "
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
    )


# What cannot be done


def test_a_step_without_graphs_of_weft_is_an_error(tmp_path: Path) -> None:
    trace = Writer()
    backward(trace)
    with pytest.raises(OptionError, match="this step runs no graph with collectives that Weft compiled; compile the"):
        compared(trace, tmp_path, report("forward", FORWARD), steps=1)


@pytest.mark.parametrize("options", [{"steps": 0}, {"warm_up": -1}, {"steps": True}, {"warm_up": 1.5}])
def test_numbers_of_steps_that_cannot_be(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"{name} must be a number of steps, at least 1, not "):
        weft.profile(lambda: None, **options)


# Real ranks

# What runs in a step of two layers, and how often. The second weight is gathered again in the backward.
TIMES = {
    "all_gather of 128 bytes over group 0": 1,
    "all_gather of 2,048 bytes over group 0": 3,
    "all_gather of 64 bytes over group 0": 1,
    "aten.addmm.default f32[16] f32[8,32] f32[32,16;1,32]": 1,
    "aten.addmm.default f32[32] f32[8,16] f32[16,32;1,16]": 1,
    "aten.mm.default f32[16,8;1,16] f32[8,32]": 1,
    "aten.mm.default f32[32,8;1,32] f32[8,16]": 1,
    "aten.mm.default f32[8,16] f32[16,32]": 1,
    "reduce_scatter of 128 bytes over group 0": 1,
    "reduce_scatter of 2,048 bytes over group 0": 2,
    "reduce_scatter of 64 bytes over group 0": 1,
    "the launches of all collectives": 1,
}


def train(rank: int, folder: str) -> list[tuple[Comparison, int]]:
    """Compare a sharded model in both modes, and say how often the step was called."""
    inductor.fx_graph_cache = False  # of a graph that comes out of it nobody knows the ops
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = []
    for mode in ("eager", "inductor"):
        torch.manual_seed(0)
        model = data_parallel(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)), mesh, mode="fully_shard")
        run, batch = weft.compile(model, mode=mode, passes="schedule"), torch.randn(8, 16)
        calls: list[int] = []

        def step(run: Any = run, batch: torch.Tensor = batch, calls: list[int] = calls) -> None:
            run(batch).square().mean().backward()
            calls.append(1)

        comparison = weft.profile(step, steps=2, trace=f"{folder}/{mode}{rank}.json")
        gathers = [one for one in comparison.differences if one.what.startswith("all_gather of 2,048 bytes")]
        last = weft.last_report("forward")
        assert last is not None
        assert last.program_after is not None
        start = next(op for op in last.program_after.starts if op.out[0].nbytes == 2048)
        assert start.comm is not None
        assert [one.measured_us for one in gathers] == [comparison.profile.collective_us(start.comm, 2048)]
        found.append((comparison, len(calls)))
        torch._dynamo.reset()
    return found


@pytest.mark.gloo
def test_real_ranks_in_both_modes(tmp_path: Path) -> None:
    (eager, fused), _ = local_ranks(train, 2, str(tmp_path), time_limit_s=300)
    for comparison, calls in (eager, fused):
        assert calls == 5  # one to warm up, two to be timed, two to be traced
        plain = re.sub(r" +", " ", re.sub(r"[−+]?\d[\d,]*\.\d+ [um]s", "#", str(comparison)))
        head, differences, *rest = plain.split("\n\n")
        assert head.splitlines() == [
            "predicted against measured, 2 steps: forward graph, backward graph",
            " predicted measured difference",
            "step # # #",
            "· while traced — #",
            "compute # # #",
            "communication # # #",
            "exposed # # #",
            "launching # # #",
            "elsewhere — #",
        ]
        assert differences.splitlines()[0] == "where they differ most, by what it costs a step:"
        assert rest[0].startswith(("the largest error is in ", "no difference is more than 5% of the step"))
    alone = {"aten.sum.dim_IntList f32[8,16]": 1, "aten.sum.dim_IntList f32[8,32]": 1}
    assert _times(eager[0]) == {**TIMES, **alone}
    assert _times(fused[0]) == {**TIMES, "the kernels that Inductor made of 2 ops": 1}
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "eager0.json",
        "eager1.json",
        "inductor0.json",
        "inductor1.json",
    ]


def _times(comparison: Comparison) -> dict[str, float]:
    return {one.what: one.times for one in comparison.differences}
