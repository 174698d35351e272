"""Times measured on the device at hand, and the file that they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from weft.analysis.kernels import input_specs
from weft.analysis.traffic import total_bytes
from weft.cost.times import Times
from weft.errors import WeftError, WeftWarning
from weft.ir import TensorSpec
from weft.run import local_ranks
from weft.run.benchmark import benchmark, device_name
from weft.run.benchmark_collectives import benchmark_collectives
from weft.run.cache import load_times, save_times, user_cache
from weft.run.inputs import tensor

CPU = torch.device("cpu")
STEP = """
weft 1
symbol s0 = 16

%x: f32[64,64] = input()
%big: f32[512,512] = input()
%wide: bf16[64,64;1,64] = input()
%rows: f32[s0,64] = input()
%table: f32[100,8] = input()
%places: i64[6] = input()
%picked: f32[6,8] = input()
%a: f32[64,64] = aten.mm.default(%x, %x)
%again: f32[64,64] = aten.mm.default(%x, %x)
%b: f32[512,512] = aten.mm.default(%big, %big)
%c: bf16[64,64] = aten.mm.default(%wide, %wide)
%d: f32[s0,64] = aten.mm.default(%rows, %x)
%e: f32[100,8] = aten.index_put.default(%table, [%places], %picked)
%f: f32[64,64] = aten.add.Tensor(%a, %again)
return %f, %b, %c, %d, %e
"""
FAILING = """
weft 1

%x: f32[64,64] = input()
%odd: f32[3,5] = input()
%huge: f32[2000000,2000000] = input()
%offsets: i32[4] = input()
%w: bf16[4,64,64] = input()
%y: bf16[64,64] = input()
%a: f32[64,64] = aten.mm.default(%x, %x)
%b: f32[64,5] = aten.mm.default(%x, %odd)
%c: f32[2000000,2000000] = aten.mm.default(%huge, %huge)
%d: bf16[64,64] = aten._grouped_mm.default(%y, %w, %offsets)
%e: f32[64,64] = nowhere.unknown.default(%x) {}
%f: f32[64,64] = elsewhere.mystery.default(%x)
return %a, %b, %c, %d, %e, %f
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that have to meet make small ops slower than large ones on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def us(times: Times, program: weft.Program, name: str) -> float | None:
    return times.op_us(program[name], input_specs(program, program[name]))


def test_each_distinct_op_is_timed_once() -> None:
    program = weft.parse(STEP)
    seen: list[tuple[str, int, int]] = []
    times = benchmark(program, device="cpu", cache=None, progress=lambda *where: seen.append(where))
    assert times.remarks == ()
    assert len(times.ops) == 5
    assert seen == [("aten.mm.default", number, 5) for number in range(4)] + [("aten.index_put.default", 4, 5)]
    small, large = us(times, program, "a"), us(times, program, "b")
    assert small is not None
    assert large is not None
    assert 0 < small < large
    assert us(times, program, "again") == small
    assert us(times, program, "f") is None  # it would share a kernel
    assert us(benchmark(program, device="cpu", cache=None, fused=True), program, "f") is not None


def test_an_op_that_cannot_be_run_is_left_out_with_a_remark() -> None:
    program = weft.parse(FAILING)
    times = benchmark(program, device="cpu", cache=None)
    assert us(times, program, "a") is not None
    assert len(times.ops) == 1
    assert [remark.split(":")[0] for remark in times.remarks] == [
        "%b (aten.mm.default) was not measured",
        "%c (aten.mm.default) was not measured",
        "%d (aten._grouped_mm.default) was not measured",
        "%e (nowhere.unknown.default) was not measured",
    ]  # and %f, of which nothing is known, is not touched
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in times.remarks[0]
    assert "it needs 44703.5 GiB, and there is room for" in times.remarks[1]
    assert "depends on the values of its arguments" in times.remarks[2]
    assert "torch has no operator nowhere.unknown.default" in times.remarks[3]


@pytest.mark.parametrize("device", ["cuda" if not torch.cuda.is_available() else "xpu", "nonsense", "meta:7:8"])
def test_a_device_that_is_not_here_is_refused(device: str) -> None:
    with pytest.raises(WeftError, match=f"device {device} cannot be used: "):
        benchmark(weft.parse(STEP), device=device, cache=None)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((4, 6), "f32"),
        TensorSpec((4, 6), "f32", (1, 4)),
        TensorSpec((4, 6), "bf16", (0, 1)),
        TensorSpec((), "f64"),
        TensorSpec((0, 3), "f32"),
        TensorSpec((5,), "f8e4m3fn"),
        TensorSpec((5,), "c64"),
        TensorSpec((5,), "i64"),
        TensorSpec((5,), "bool"),
    ],
)
def test_tensors_have_the_layout_of_their_spec(spec: TensorSpec) -> None:
    made = tensor(spec, CPU)
    assert tuple(made.shape) == spec.shape
    if spec.strides is not None:
        assert made.stride() == spec.strides
    else:
        assert made.is_contiguous()
    if spec.dtype in ("i64", "bool"):
        assert not made.any()


# The cache


def test_what_is_in_the_cache_is_not_measured_again(tmp_path: Path) -> None:
    program, path = weft.parse(STEP), tmp_path / "new" / "times.json"
    first = benchmark(program, device="cpu", cache=path)
    assert benchmark(program, device="cpu", cache=path) == first
    name = device_name(CPU)
    save_times(path, name, dict.fromkeys(first.ops, 42.0))
    save_times(path, "another device", {"another op": 1.0})
    assert set(benchmark(program, device="cpu", cache=path).ops.values()) == {42.0}
    assert load_times(path, "another device") == {"another op": 1.0}
    assert [one.name for one in path.parent.iterdir()] == ["times.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"weft_times": 0}', b'{"devices": 3}', b"[" * 10**5]
)
def test_a_damaged_cache_is_ignored_and_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_bytes(content)
    with pytest.warns(WeftWarning, match=r"times.json: is no file of measured times, and is ignored"):
        assert load_times(path, "cpu") == {}
    with pytest.warns(WeftWarning):
        save_times(path, "cpu", {"op": 1.0})
    assert load_times(path, "cpu") == {"op": 1.0}


def test_times_that_cannot_be_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    bad = {"a": -1, "b": "1", "c": None, "d": True, "e": 10**400, "f": 5}
    path.write_text(json.dumps({"weft_times": 1, "devices": {"cpu": bad, "odd": 3}}))
    assert load_times(path, "cpu") == {"f": 5.0}
    assert load_times(path, "odd") == {}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(WeftWarning, match="measured times cannot be kept"):
        save_times(tmp_path / "file" / "times.json", "cpu", {"op": 1.0})


def test_the_cache_is_where_xdg_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "weft" / "times.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == Path.home() / ".cache" / "weft" / "times.json"


# Collectives

COLLECTIVES = """
weft 1
group "0" = 0..1
group elsewhere = 0..1

%x: f32[1000,4] = input()
%larger: f32[2000,4] = input()
%gather: f32[2000,4] = all_gather.start(%x) over "0"
%again: f32[2000,4] = all_gather.start(%x) over "0"
%reduce: f32[1000,4] = all_reduce_.start(%x) avg over "0"
%scatter: f32[500,4] = reduce_scatter.start(%x) sum over "0"
%exchange: f32[1000,4] = all_to_all.start(%x, [300, 700], [600, 400]) over "0"
%spread: f32[1000,4] = broadcast.start(%x, 0) over "0"
%both: (f32[2000,4], f32[2000,4]) = all_gather.start([%x, %x]) over "0"
%lost: f32[4000,4] = all_gather.start(%larger) over elsewhere
return
"""


def measure(rank: int) -> tuple[Times, str]:
    """What the ranks measure together, and what they are told if only the first has a program."""
    times = benchmark_collectives(weft.parse(COLLECTIVES))
    program = weft.parse(COLLECTIVES if rank == 0 else "weft 1\n\nreturn\n")
    with pytest.raises(WeftError) as error:
        benchmark_collectives(program)
    return times, str(error.value)


@pytest.mark.gloo
def test_ranks_measure_collectives_together_and_agree() -> None:
    program = weft.parse(COLLECTIVES)
    (times, told), (other_times, other_told) = local_ranks(measure, 2)
    assert times == other_times
    assert len(times.collectives.us) == 6
    for op in program.starts:
        assert op.comm is not None
        assert times.collective_us(op.comm, total_bytes(op)) is not None  # %lost has that of %both, which lies alike
    assert len(times.remarks) == 1
    assert times.remarks[0].startswith("%lost (all_gather) was not measured: ")
    assert told == "rank 1 has other collectives than this one; all must be given the same program"
    assert other_told == "rank 0 has other collectives than this one; all must be given the same program"


def test_collectives_need_ranks() -> None:
    with pytest.raises(WeftError, match="start this with torchrun"):
        benchmark_collectives(weft.parse(COLLECTIVES))
