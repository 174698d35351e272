"""Files that do not describe a machine are refused, with the line and the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cost.files import SMALL, machine
from weft.cost.machine import Machine
from weft.errors import MachineError

# What is replaced, by what, how the line that is blamed begins afterwards, and the reason.
BROKEN = {
    "negative bandwidth": (
        "ranks = 4\ngb_per_s = 100", "ranks = 4\ngb_per_s = -100", "gb_per_s = -100",
        "level.gb_per_s: must be more than 0, not -100",
    ),
    "no bandwidth at all": (
        "memory_gb_per_s = 1000", "memory_gb_per_s = 0", "memory_gb_per_s",
        "accelerator.memory_gb_per_s: must be more than 0, not 0",
    ),
    "not a number": (
        "memory_gb = 10", "memory_gb = nan", "memory_gb = ", "accelerator.memory_gb: must be a finite number, not nan",
    ),
    "infinite": (
        "launch_us = 2", "launch_us = inf", "launch_us", "accelerator.launch_us: must be a finite number, not inf",
    ),
    "a number of many digits": (
        "memory_gb = 10", "memory_gb = 1" + "0" * 400, "memory_gb = ",
        "accelerator.memory_gb: must be a finite number, not a number of many digits",
    ),
    "a time beyond all bounds": (
        "launch_us = 2", "launch_us = 1e308", "launch_us",
        "accelerator.launch_us: must be from 1e-12 to 1e+15 in size, not 1e+308",
    ),
    "a rate that is next to nothing": (
        "memory_gb_per_s = 1000", "memory_gb_per_s = 1e-320", "memory_gb_per_s",
        "accelerator.memory_gb_per_s: must be from 1e-12 to 1e+15 in size, not 1e-320",
    ),
    "ranks of many digits": (
        "ranks = 2\n", "ranks = 2" + "0" * 400 + "\n", "ranks = 20",
        "curve.ranks: must be at most 1e+15, not a number of many digits",
    ),
    "text for a number": (
        "launch_us = 2", 'launch_us = "2"', "launch_us", "accelerator.launch_us: must be a number, not '2'",
    ),
    "true for a number": (
        "launch_us = 2", "launch_us = true", "launch_us", "accelerator.launch_us: must be a number, not True",
    ),
    "a number for a text": (
        'name = "a device"', "name = 3", "name = 3", "accelerator.name: must be a text that is not empty, not 3",
    ),
    "unknown dtype": (
        "bf16 = 100", "bfloat16 = 100", "bfloat16", "accelerator.tflops.bfloat16: is no dtype; known are f64, f32,",
    ),
    "no rate for f32": (
        "f32 = 10\n", "", "[accelerator.tflops]",
        "accelerator.tflops.f32: is missing; dtypes that have no rate of their own run at it",
    ),
    "f32 matmuls in a way that has no rate": (
        "launch_us = 2", 'launch_us = 2\nf32_matmuls = "tf32"', "f32_matmuls",
        'accelerator.f32_matmuls: must be "f32" or "tf32", with a rate under tflops, not "tf32"',
    ),
    "a missing value": (
        "memory_gb = 10\n", "", "[accelerator]", "accelerator.memory_gb: is missing; it must be a number",
    ),
    "a missing table": (
        "[contention]\ncompute_slowdown = 1.25", "", "name = ",
        "contention: is missing; it must be a table [contention]",
    ),
    "an unknown key": (
        "latency_us = 1\n", "latency_ms = 1\n", "latency_ms",
        "level.latency_ms: is not known here; known are name, ranks, gb_per_s,",
    ),
    "an unknown table": (
        "[contention]", "[content]", "[content]", "content: is not known here; known are name, about, accelerator,",
    ),
    "an efficiency of more than one": (
        "efficiency = 0.5", "efficiency = 1.5", "efficiency = 1.5",
        "level.efficiency: must be more than 0 and at most 1, not 1.5",
    ),
    "compute that gets faster": (
        "compute_slowdown = 1.25", "compute_slowdown = 0.9", "compute_slowdown",
        "contention.compute_slowdown: must be at least 1, not 0.9",
    ),
    "levels that do not nest": (
        '[[level]]\nname = "outer"',
        '[[level]]\nname = "rack"\nranks = 6\ngb_per_s = 1\nlatency_us = 1\nefficiency = 1\n[[level]]\nname = "outer"',
        "ranks = 6", "level.ranks: must be a multiple of the 4 ranks of the level inside it, not 6",
    ),
    "a last level that ends": (
        'name = "outer"', 'name = "outer"\nranks = 8', "ranks = 8",
        "level.ranks: must be left out on the last level, which connects all ranks there are",
    ),
    "an inner level that does not end": (
        "ranks = 4\n", "", "[[level]]", "level.ranks: is missing; it must be a whole number",
    ),
    "half a rank": (
        "ranks = 4\n", "ranks = 4.5\n", "ranks = 4.5", "level.ranks: must be a whole number of at least 2, not 4.5",
    ),
    "two levels of one name": (
        'name = "outer"', 'name = "inner"  # twice', 'name = "inner"  # twice',
        'level.name: "inner" is the name of a level further in; each needs its own',
    ),
    "a mesh without end": (
        'name = "outer"', 'name = "outer"\nmesh = true', "mesh",
        "level.mesh: needs a number of ranks, and the last level has none",
    ),
    "an unknown protocol": (
        '["plain"]', '["fast"]', "protocols",
        'collectives.protocols: "fast" is not known; known are ll, ll128, simple, plain',
    ),
    "an unknown collective": (
        'kind = "all_gather"', 'kind = "gather"', "kind", 'curve.kind: "gather" is no collective; known are',
    ),
    "more nodes than ranks": (
        "ranks = 2\n", "ranks = 2\nnodes = 3\n", "nodes", "curve.nodes: cannot be more than the 2 ranks",
    ),
    "lists of unequal length": (
        "  10,\n", "  9,\n  10,\n", "us = [", "curve.us: has 3 numbers for 2 in bytes; each knot needs both",
    ),
    "a single knot": (
        "  10,\n", "", "us = [", "curve.us: must be a list of at least two numbers, not [100]",
    ),
    "unsorted knots": (
        "[1000, 100000]", "[100000, 1000]", "bytes", "curve.bytes: must ascend, and 1000 follows 100000",
    ),
    "knots that fall": (
        "  100,\n", "  9,\n", "us = [", "curve.us: falls from 10 to 9; more bytes cannot take less time",
    ),
    "a knot that is no number": (
        "  100,\n", "  nan,\n", "us = [", "curve.us: must be a finite number, not nan",
    ),
    "a surface with a long row": (
        "  [8, 32],\n", "  [8, 32, 1],\n", "tflops = [",
        "matmul.tflops: must have 2 rows, one for each area, of 2 numbers, one for each k",
    ),
    "a rate beyond the peak": (
        "[8, 32]", "[8, 320]", "tflops = [", "matmul.tflops: 320 is more than the peak of bf16, 100",
    ),
    "a larger matmul that is faster": (
        "[8, 32]", "[8, 64]", "tflops = [",
        "matmul.tflops: area 262144, k 1024 would take less time than the smaller area 65536, k 1024",
    ),
    "a surface for a dtype without a peak": (
        'dtype = "bf16"', 'dtype = "f16"', "dtype",
        'matmul.dtype: "f16" has no rate under accelerator.tflops, which has f32, bf16',
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_value_is_refused_where_it_stands(tmp_path: Path, what: str) -> None:
    old, new, blamed, reason = BROKEN[what]
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith(blamed))
    with pytest.raises(MachineError) as caught:
        machine(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'small.toml'}:{line}: {reason}")
    assert caught.value.line == line


def test_the_same_curve_twice_is_refused(tmp_path: Path) -> None:
    curve = SMALL[SMALL.index("[[curve]]") : SMALL.index("[[matmul]]")]
    with pytest.raises(MachineError, match="there is another curve for all_gather among 2 ranks; join the two"):
        machine(tmp_path, SMALL + curve)


def test_the_same_surface_twice_is_refused(tmp_path: Path) -> None:
    surface = SMALL[SMALL.index("[[matmul]]") :]
    with pytest.raises(MachineError, match='"bf16" has another surface; say which is batched, or join them'):
        machine(tmp_path, SMALL + surface)
    single, many = (surface.replace("area", f"batched = {which}\narea") for which in ("false", "true"))
    assert len(machine(tmp_path, SMALL.replace(surface, single) + many).surfaces) == 2


@pytest.mark.parametrize("end", [40, 200, 500, len(SMALL) - 5])
def test_a_truncated_file_is_refused(tmp_path: Path, end: int) -> None:
    with pytest.raises(MachineError, match=r"small\.toml:\d+: "):
        machine(tmp_path, SMALL[:end])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7fELF\x00\xff\xfe", "is not text: a machine is a TOML file in UTF-8"),
        (b"name = ", "is no TOML: "),
        (b"", "accelerator: is missing; it must be a table [accelerator]"),
        (b"a = " + b"[" * 100_000, "is n"),
        (b"memory = " + b"9" * 10_000, "is no TOML: "),
        (b"#" * 5_000_000, "is longer than 4,000,000 bytes: that is no machine"),
        (b'"\\u001b[31m" = 1', "·[31m: is not known here"),
    ],
    ids=["binary", "half a line", "empty", "nested", "digits", "long", "control characters"],
)
def test_what_is_no_machine_is_told_in_a_few_words(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(data)
    with pytest.raises(MachineError) as caught:
        Machine.load(path)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be read: Is a directory"):
        Machine.load(tmp_path)
    with pytest.raises(MachineError, match="cannot be read: No such file or directory"):
        Machine.load(tmp_path / "missing.toml")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(MachineError, match=r"h100: is no machine; known are a100-ib200, b200-ib400, .* a \.toml file"):
        Machine.load("h100")


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(MachineError, match=r"b200-nvl72: is no machine; .*; do you mean gb200-nvl72\?$"):
        Machine.load("b200-nvl72")


def test_the_format_in_the_documents_is_the_format(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    needed, measured = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert machine(tmp_path, needed).curves == ()
    assert len(machine(tmp_path, needed + measured).curves) == 1


def test_lines_are_right_after_strings_and_lists_of_many_lines(tmp_path: Path) -> None:
    odd = SMALL.replace('"Two nodes of four."', '"""\nTwo [nodes\n] of = "four"\n"""')
    odd = odd.replace("compute_slowdown = 1.25", "compute_slowdown = 0.5")
    with pytest.raises(MachineError) as caught:
        machine(tmp_path, odd)
    assert caught.value.line == odd[: odd.index("compute_slowdown")].count("\n") + 1
