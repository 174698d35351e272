"""Times from traces of torch.profiler: handwritten ones with round numbers, and real ones of this torch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import weft
from tests.cost.toys import Toy
from tests.cost.trace_files import RANK_0, RANK_1, changed
from weft.analysis.kernels import input_specs
from weft.analysis.traffic import total_bytes
from weft.cost.coverage import coverage
from weft.cost.estimates import Estimates
from weft.cost.profile import Profile
from weft.cost.times import CollectiveKey
from weft.run import local_ranks

MIB_4 = 4 * 2**20

STEP = """
weft 1

%x: bf16[64,32] = input()
%w: bf16[32,16] = input()
%h: bf16[64,16] = aten.mm.default(%x, %w)
return %h
"""


def op_us(found: Profile, program: weft.Program, name: str) -> float | None:
    return found.op_us(program[name], input_specs(program, program[name]))


def key(kind: str, nbytes: int) -> CollectiveKey:
    return CollectiveKey(kind, 2, (0, 1), nbytes)


# By hand


def test_the_rank_that_came_last_says_how_long_a_collective_takes() -> None:
    found = Profile.load(RANK_0, RANK_1)
    # Rank 0 waits for 400 us in the first all-reduce, rank 1 for 180 in the second: they take 100, 120 and 110.
    # The source of the broadcast is gone after 5 us, when nobody has it yet. Rank 1's clock is a second ahead.
    assert found.collectives.us == {
        key("all_reduce", MIB_4): 110,
        key("all_gather", 4096): 30,
        key("reduce_scatter", 4096): 50,
        key("broadcast", 1024): 50,
    }


def test_of_one_rank_the_quickest_repetition_counts() -> None:
    assert Profile.load(RANK_0).collectives.us[key("all_reduce", MIB_4)] == 110
    assert Profile.load(RANK_1).collectives.us[key("all_reduce", MIB_4)] == 100


def test_kernels_count_and_not_their_launch() -> None:
    program = weft.parse(STEP)
    found = Profile.load(RANK_0, RANK_1)
    assert op_us(found, program, "h") == 220  # the middle of 200, 210, 220, 220, 230, 240
    linear = ("aten::linear", (((64, 32), "bf16"), ((16, 32), "bf16")))
    assert found.ops[linear] == 220  # it has no kernel of its own, but a matmul inside it has
    assert not [name for name, _ in found.ops if name == "aten::t"]  # it has none at all


def test_what_is_no_collective_of_weft_is_counted() -> None:
    assert Profile.load(RANK_0).remarks == (f"{RANK_0}: 1 collective of unknown kind or group not used",)


def without_numbers(content: dict[str, Any]) -> None:
    for event in content["traceEvents"]:
        event.get("args", {}).pop("Seq", None)


def without_first_collective(content: dict[str, Any]) -> None:
    first = next(event for event in content["traceEvents"] if event["name"].startswith("nccl"))
    content["traceEvents"].remove(first)


def test_without_sequence_numbers_collectives_are_matched_in_order(tmp_path: Path) -> None:
    paths = [changed(path, tmp_path / path.name, without_numbers) for path in (RANK_0, RANK_1)]
    assert Profile.load(*paths).collectives == Profile.load(RANK_0, RANK_1).collectives


def test_a_collective_that_one_rank_did_not_record_shifts_nothing(tmp_path: Path) -> None:
    shorter = changed(RANK_1, tmp_path / "numbered.json", without_first_collective)
    # 120 and 110 have no waiting in them; the first, of which only the waiting rank is left, does not count.
    assert Profile.load(RANK_0, shorter).collectives.us[key("all_reduce", MIB_4)] == 115
    unnumbered = changed(shorter, tmp_path / "shorter.json", without_numbers)
    whole = changed(RANK_0, tmp_path / "whole.json", without_numbers)
    # Without numbers nothing can be matched: the quickest of 500, 120, 110, 300, 111.
    assert Profile.load(whole, unnumbered).collectives.us[key("all_reduce", MIB_4)] == 110


def test_with_ranks_missing_there_may_be_waiting_in_all_of_them(tmp_path: Path) -> None:
    def in_four(content: dict[str, Any]) -> None:
        for event in content["traceEvents"]:
            if "Group size" in event.get("args", {}):
                event["args"] |= {"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}

    paths = [changed(path, tmp_path / path.name, in_four) for path in (RANK_0, RANK_1)]
    found = Profile.load(*paths).collectives.us
    assert found[CollectiveKey("all_reduce", 4, (0, 1, 2, 3), MIB_4)] == 100  # the quickest of 100, 120, 110


def test_ranks_that_are_shortened_with_dots_are_looked_up(tmp_path: Path) -> None:
    def dotted(content: dict[str, Any]) -> None:
        for event in content["traceEvents"]:
            if "Group size" in event.get("args", {}):
                event["args"]["Process Group Ranks"] = "[0, ...]"

    path = changed(RANK_0, tmp_path / "dotted.json", dotted)
    assert Profile.load(path).collectives == Profile.load(RANK_0).collectives


def test_what_a_kernel_does_not_say_is_in_the_call_that_launched_it(tmp_path: Path) -> None:
    def apart(content: dict[str, Any]) -> None:
        for event in list(content["traceEvents"]):
            if event["name"].startswith("nccl"):
                args, event["args"] = event["args"], {"External id": event["args"]["External id"]}
                call = {"cat": "cpu_op", "name": "record_param_comms", "ts": 0, "dur": 1, "args": args}
                content["traceEvents"].append(call)

    path = changed(RANK_0, tmp_path / "apart.json", apart)
    assert Profile.load(path).collectives == Profile.load(RANK_0).collectives


def test_packed_traces_are_read_whatever_their_name(tmp_path: Path) -> None:
    packed = tmp_path / "rank0.json"
    packed.write_bytes(gzip.compress(RANK_0.read_bytes()))
    assert Profile.load(packed).collectives == Profile.load(RANK_0).collectives


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(RANK_0.read_text())["traceEvents"]))
    assert Profile.load(bare).ops == Profile.load(RANK_0).ops


def test_a_trace_longer_than_the_window_is_the_same_trace(tmp_path: Path) -> None:
    def much_longer(content: dict[str, Any]) -> None:
        filler = {"ph": "i", "name": "ü" * 1000, "args": {"text": "}],[{"}}
        content["traceEvents"] = [filler] * 2500 + content["traceEvents"] + [filler] * 10

    path = changed(RANK_0, tmp_path / "long.json", much_longer)
    assert path.stat().st_size > 2 * 2**20
    assert Profile.load(path).ops == Profile.load(RANK_0).ops


# Real traces


def test_a_real_trace_has_the_time_of_each_shape(tmp_path: Path) -> None:
    small, large = torch.randn(64, 64), torch.randn(768, 768)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(5):
            small @ small
            large @ large
            torch.cat([small, small])
    path = tmp_path / "trace.json.gz"
    recorded.export_chrome_trace(str(path))
    found = Profile.load(path)
    program = weft.parse("""
weft 1

%small: f32[64,64] = input()
%large: f32[768,768] = input()
%half: bf16[64,64] = input()
%a: f32[64,64] = aten.mm.default(%small, %small)
%b: f32[768,768] = aten.mm.default(%large, %large)
%c: bf16[64,64] = aten.mm.default(%half, %half)
%d: f32[128,64] = aten.cat.default([%small, %small])
return
""")
    first, second = op_us(found, program, "a"), op_us(found, program, "b")
    assert first is not None
    assert second is not None
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]

    def median_us(size: int) -> float:
        products = (event for event in events if event["name"] == "aten::mm")
        return float(sorted(event["dur"] for event in products if event["args"]["Input Dims"][0] == [size, size])[2])

    assert (first, second) == (median_us(64), median_us(768))
    assert op_us(found, program, "c") is None
    assert op_us(found, program, "d") is not None


def train(model: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    rows = model(image).flatten(2)
    loss = torch.nn.functional.scaled_dot_product_attention(rows, rows, rows).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def test_a_captured_step_finds_all_of_what_ran(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Linear(14, 8), torch.nn.Linear(8, 6)
    )
    image = torch.randn(2, 3, 16, 16)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        train(model, image)
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    program = weft.capture(train, (model, image))
    found = coverage(program, Estimates(Toy(), compute_estimator="profile", profile=Profile.load(path)))
    assert found.missing_ops == {}
    assert sum(found.ops.values()) >= 8  # a convolution, two linears, an attention, and their backward


COLLECTIVES = """
weft 1
group "0" = 0..1

%x: f32[1000,4] = input()
%y: bf16[1000,4] = input()
%gather: f32[2000,4] = all_gather.start(%x) over "0"
%reduce: f32[1000,4] = all_reduce.start(%x) sum over "0"
%scatter: f32[500,4] = reduce_scatter.start(%x) sum over "0"
%exchange: f32[1000,4] = all_to_all.start(%x, [500, 500], [500, 500]) over "0"
%spread: f32[1000,4] = broadcast.start(%x, 0) over "0"
%both: (f32[2000,4], bf16[2000,4]) = all_gather.start([%x, %y]) over "0"
return
"""
PAUSE_S = 0.3  # far longer than a collective of some bytes takes, also on a busy machine


def record(rank: int, folder: str) -> None:
    """Profile three steps of COLLECTIVES, to which rank 1 is always late."""
    step = weft.to_fx(weft.parse(COLLECTIVES))
    ops = torch.ops._c10d_functional
    x, y = torch.ones(1000, 4), torch.ones(1000, 4, dtype=torch.bfloat16)
    starts = [node for node in step.graph.nodes if node.op == "call_function"]

    def once() -> None:
        for node in starts:
            if rank == 1:
                sleep(PAUSE_S)
            args = torch.fx.map_arg(node.args, lambda given: {"x": x, "y": y}[given.name])
            started = node.target(*args)
            for result in started if isinstance(started, list | tuple) else [started]:
                ops.wait_tensor(result)

    once()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(3):
            once()
        dist.barrier()
    recorded.export_chrome_trace(f"{folder}/rank{rank}.json")


@pytest.mark.gloo
def test_real_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    local_ranks(record, 2, str(tmp_path))
    program = weft.parse(COLLECTIVES)
    both, waiting = (
        Profile.load(tmp_path / "rank0.json", tmp_path / "rank1.json"),
        Profile.load(tmp_path / "rank0.json"),
    )
    for op in program.starts:
        assert op.comm is not None
        us, alone = (found.collective_us(op.comm, total_bytes(op)) for found in (both, waiting))
        if op.name == "both":  # over Gloo it is two gathers, and nobody measured them as one
            assert us is alone is None
            continue
        assert us is not None, op.name
        assert alone is not None, op.name
        if op.name != "spread":  # its source waits for nobody
            assert 0 < us < 0.5 * PAUSE_S * 1e6 < alone, op.name
