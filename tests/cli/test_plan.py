from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cli.conftest import Weft
from weft.cli import main
from weft.ir import parse
from weft.passes.base import fingerprint

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "fsdp.py")
FILES = ["after.json", "before.json", "optimized.weft", "plan.json", "program.weft", "report.html"]
STEP = """weft 1
group dp = 0, 1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over dp  # gradient of layers.0.up model.py:12
%w: f32[2500] = wait(%s)
%r: f32[1] = aten.sum.default(%w)
return %h, %r
"""
# Two ranks share a batch of eight rows, so each has half of the work that one has alone.
SCRIPT = '''"""A script of somebody's."""
import sys
from dataclasses import dataclass

import torch
import torch.distributed._functional_collectives as funcol

@dataclass
class Sizes:
    rows: int = 8

print("hello")

def mesh_for(world_size):
    return {"data": world_size}

def build(mesh):
    def step(batch, weight):
        return funcol.all_reduce(batch.t() @ (batch @ weight), "sum", mesh.get_group())
    return step, (torch.ones(Sizes().rows // mesh.size(), 10), torch.ones(10, 10))

if __name__ == "__main__":
    raise SystemExit("this is only done when the script is run")
'''


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "golden" / "toy.toml", tmp_path)
    (tmp_path / "step.weft").write_text(STEP)
    (tmp_path / "train.py").write_text(SCRIPT)


def names_in(folder: Path | str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


# A program


def test_a_program_is_planned_as_a_table_with_remedies(weft: Weft) -> None:
    outcome = weft("plan", "--machine", "toy.toml", "--passes", "sink_waits", "step.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    # 10 us of matmul, 10 us of all-reduce, and a sum that reads 10,000 bytes and writes 4.
    expected = """step.weft: toy, 6 ops
                     before         after  change
step                30.0 us       30.0 us
compute             20.0 us       20.0 us
communication       10.0 us       10.0 us
exposed             10.0 us       10.0 us
collectives               1             1
· all_reduce              1             1
peak memory    20,804 bytes  20,804 bytes
bound               20.0 us       20.0 us

1. %s, all_reduce over dp: exposed for 10.0 us, 33.3% of the step
   where   gradient of layers.0.up model.py:12
   why     10.0 us: nothing keeps it from starting earlier, at the beginning of the step
   remedy  with schedule it is hidden (step -10.0 us, peak 20,804 bytes)
"""
    assert outcome.stdout == expected


def test_a_step_that_does_not_fit_is_told(weft: Weft) -> None:
    outcome = weft("plan", "--machine", "toy.toml", "--memory-limit", "20kB", "-", stdin=STEP)
    assert outcome.exit_code == 0
    assert outcome.stderr == (
        "weft: warning: the step needs 20,804 bytes as it is, and may have 20,000 bytes: it will not grow\n"
    )
    expected = """-: toy, memory limit 20,000 bytes, 6 ops
                     before         after   change
step                30.0 us       20.0 us   −33.3%
compute             20.0 us       20.0 us
communication       10.0 us       10.0 us
exposed             10.0 us        0.0 us  −100.0%
collectives               1             1
· all_reduce              1             1
peak memory    20,804 bytes  20,804 bytes
memory limit   20,000 bytes  20,000 bytes
bound               20.0 us       20.0 us

it does not fit: 804 bytes over the limit
"""
    assert outcome.stdout == expected


def test_json_has_the_figures_and_the_remedies(weft: Weft) -> None:
    outcome = weft("plan", "-m", "toy.toml", "-p", "sink_waits", "--json", "step.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    found = json.loads(outcome.stdout)
    (remedy,) = found.pop("remedies")
    assert remedy["op"] == "s"
    assert remedy["remedy"] == {
        "change": "schedule",
        "saves_us": pytest.approx(10.0),
        "peak_bytes": 20804,
        "left_us": 0.0,
        "hides": True,
        "passes": "sink_waits,schedule",
        "memory_limit": None,
        "faster_links": [],
    }
    figures = {
        "step_us": pytest.approx(30.004),
        "compute_us": pytest.approx(20.004),
        "comm_us": 10.0,
        "exposed_us": 10.0,
        "collectives": {"all_reduce": 1},
        "peak_bytes": 20804,
        "bound_us": pytest.approx(20.004),
        "bound_by": "compute",
    }
    assert found == {
        "step": "step.weft",
        "world_size": None,
        "mesh": "",
        "machine": "toy",
        "memory_limit": None,
        "passes": ["sink_waits"],
        "before": figures,
        "after": figures,
        "files": [],
    }


def test_no_remedies_are_looked_for_if_none_are_wanted(weft: Weft) -> None:
    outcome = weft("plan", "-m", "toy.toml", "-p", "sink_waits", "--top", "0", "step.weft")
    assert outcome.stdout.splitlines()[-1].startswith("bound ")


# A script


@dataclass(frozen=True)
class Run:
    outcome: Result
    folder: Path
    data: dict[str, Any]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The example of sharded training, planned for eight ranks."""
    folder = tmp_path_factory.mktemp("plan") / "report"
    words = ["plan", EXAMPLE, "--world-size", "8", "--memory-limit", "70GB", "--out", str(folder), "--json"]
    outcome = CliRunner().invoke(main, words, catch_exceptions=False)
    return Run(outcome, folder, json.loads(outcome.stdout))


def test_an_example_is_captured_optimised_and_simulated(example: Run) -> None:
    found = example.data
    told = [found[key] for key in ("step", "world_size", "mesh", "machine", "memory_limit")]
    assert told == [EXAMPLE, 8, "data=8", "h100-ib400", 70_000_000_000]
    # Two weights and two biases in each of four layers: gathered in both directions (the first weight of all only
    # once), and scattered.
    assert found["before"]["collectives"] == {"all_gather": 23, "reduce_scatter": 16}
    assert found["after"]["bound_us"] <= found["after"]["step_us"] < found["before"]["step_us"]
    assert found["after"]["peak_bytes"] <= 70_000_000_000


def test_the_output_directory_has_all_files_and_nothing_else(example: Run) -> None:
    assert names_in(example.folder) == FILES
    assert sorted(example.data["files"]) == [str(example.folder / name) for name in FILES]
    assert names_in(example.folder.parent) == ["report"]


def test_the_output_directory_has_the_rights_of_a_new_one(example: Run, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert example.folder.stat().st_mode == (tmp_path / "new").stat().st_mode


def test_the_plan_is_for_the_program_beside_it(example: Run, weft: Weft) -> None:
    folder = example.folder
    words = ("--machine", "h100-ib400", "--plan", str(folder / "plan.json"), "--quiet", str(folder / "program.weft"))
    outcome = weft("opt", *words)
    assert (outcome.exit_code, outcome.stdout) == (0, (folder / "optimized.weft").read_text())


def test_report_and_traces_show_what_was_printed(example: Run) -> None:
    page = (example.folder / "report.html").read_text()
    assert f"<h1>{EXAMPLE}</h1>" in page
    assert '<p class="about">8 ranks, h100-ib400, memory limit 70.00 GB, mesh data=8, 467 ops, dedupe → ' in page
    for name in ("before", "after"):
        events = json.loads((example.folder / f"{name}.json").read_text())["traceEvents"]
        end = max(event["ts"] + event.get("dur", 0) for event in events if event["ph"] == "X")
        assert end == pytest.approx(example.data[name]["step_us"], abs=0.1)


def test_what_a_script_prints_goes_to_standard_error(weft: Weft) -> None:
    outcome = weft("plan", "train.py", "-n", "2", "-m", "toy.toml", "--json")
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith("hello\n")  # signs of life may follow on a slow machine
    assert json.loads(outcome.stdout)["mesh"] == "data=2"


def test_a_script_leaves_nothing_behind_in_the_process(weft: Weft) -> None:
    path, argv, modules = list(sys.path), list(sys.argv), set(sys.modules)
    weft("plan", "train.py", "-n", "2", "-m", "toy.toml")
    assert (sys.path, sys.argv) == (path, argv)
    assert "weft_planned_script" not in set(sys.modules) - modules


BUILD = "\ndef build(mesh):\n    "
BROKEN = {
    "no functions": ("x = 1\n", "train.py has no function mesh_for and no function build: a script needs two "),
    "no build": ("def mesh_for(n): return {'d': n}\nbuild = 1\n", "train.py has no function build: a script needs "),
    "no Python": ("def :\n", "train.py: the script failed: SyntaxError: invalid syntax (train.py, line 1)"),
    "an exit": ("raise SystemExit('no')\n", "train.py: the script failed at train.py:1: SystemExit: no"),
    "no mesh": (
        f"def mesh_for(n): return n\n{BUILD}pass\n",
        'train.py: mesh_for(6) must return names and sizes, such as {"data": 64}, not 6',
    ),
    "a size of zero": (
        f"def mesh_for(n): return {{'d': 0}}\n{BUILD}pass\n",
        "train.py: mesh_for(6) must return names and sizes, such as {\"data\": 64}, not {'d': 0}",
    ),
    "a mesh for others": (
        f"def mesh_for(n): return {{'a': n // 4, 'b': 4}}\n{BUILD}pass\n",
        "train.py: mesh_for(6) returned a mesh of 4 ranks (a=1 x b=4); give a --world-size that it can lay out",
    ),
    "a mesh that is refused": (
        f"def mesh_for(n):\n    raise ValueError('eight\\nor more')\n{BUILD}pass\n",
        "train.py: mesh_for(6) failed at train.py:2: ValueError: eight",
    ),
    "no step": (
        f"def mesh_for(n): return {{'d': n}}\n{BUILD}return 1, ()\n",
        "train.py: build must return the step and a tuple of what it is called with, not (1, ())",
    ),
    "a build that fails": (
        f"import json\ndef mesh_for(n): return {{'d': n}}\n{BUILD}return json.loads('')\n",
        "train.py: build failed at train.py:5, in decoder.py:",
    ),
    "a step that fails": (
        f"def mesh_for(n): return {{'d': n}}\n{BUILD}return (lambda: 1 / 0), ()\n",
        "train.py: the step failed at train.py:4: ZeroDivisionError: division by zero",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_script_that_cannot_be_used_is_told_why(weft: Weft, what: str) -> None:
    text, message = BROKEN[what]
    Path("train.py").write_text(text)
    outcome = weft("plan", "train.py", "--world-size", "6", "--out", "report")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {message}")
    assert outcome.stderr.count("\n") == 1
    assert not Path("report").exists()


RANKS = "is no number of ranks; write one from 1 to 1,048,576, such as 64"
REFUSED = {
    "no world size": (["train.py"], "for how many ranks? train.py is a script, which needs --world-size"),
    "a world size for a program": (
        ["step.weft", "-n", "2"],
        "step.weft is a program, whose ranks are what they are: a world size goes with a script (.py)",
    ),
    "world sizes for a program": (
        ["step.weft", "--sweep", "world-size=1,2"],
        "step.weft is a program, whose ranks are what they are: a world size goes with a script (.py)",
    ),
    "no number": (["train.py", "-n", "many"], f"'many' {RANKS}"),
    "no rank": (["train.py", "-n", "0"], f"'0' {RANKS}"),
    "a number in another script": (["train.py", "-n", "٣"], f"'٣' {RANKS}"),
    "too many": (["train.py", "--sweep", "world-size=2,9999999999"], f"'9999999999' {RANKS}"),
    "no script": (["missing.py", "-n", "2"], "cannot read missing.py: No such file or directory"),
    "too long a name": (["x" * 300 + ".py", "-n", "2"], f"cannot read {'x' * 300}.py: File name too long"),
    "a folder for a script": (["folder.py", "-n", "2"], "cannot read folder.py: Is a directory"),
    "a loop of links": (["loop.py", "-n", "2"], "cannot read loop.py: Too many levels of symbolic links"),
    "no program": (["missing.weft"], "cannot read missing.weft: No such file or directory"),
    "no memory": (["step.weft", "--memory-limit", "much"], "'much' is no amount of memory; write such as 70GB"),
    "no pass": (["step.weft", "--passes", "bogus"], "<pipeline>:1:1: expected a pass "),
    "no axis": (["step.weft", "--sweep", "ranks=1"], "'ranks=1' is no sweep; write such as --sweep world-size=8,64"),
    "no values": (["step.weft", "--sweep", "machine=a,"], "'machine=a,' is no sweep; write such as "),
    "an axis twice": (
        ["train.py", "--sweep", "world-size=1", "--sweep", "world-size=2"],
        "--sweep world-size has something twice; give each name and each value once",
    ),
    "a value twice": (["train.py", "--sweep", "world-size=1,1"], "--sweep world-size has something twice; give each"),
    "one thing in two ways": (
        ["train.py", "-n", "2", "--sweep", "world-size=1,2"],
        "--world-size and --sweep world-size say two things: give one of them",
    ),
    "no directory": (["step.weft", "--out", ""], "--out is empty: give a directory"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_options_that_cannot_be_used_are_an_error(weft: Weft, what: str) -> None:
    words, message = REFUSED[what]
    Path("folder.py").mkdir()
    Path("loop.py").symlink_to("loop.py")
    outcome = weft("plan", *words)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {message}")
    assert json.loads(weft("plan", *words, "--json").stdout)["message"].startswith(message)


# Sweeps


def test_a_sweep_is_one_table_of_all_combinations(weft: Weft) -> None:
    Path("fast.toml").write_text(Path("toy.toml").read_text().replace("0.0002", "0.0004"))
    words = ("--sweep", "machine=toy.toml,fast.toml", "--sweep", "memory-limit=20kB,1MB", "--out", "report")
    outcome = weft("plan", "step.weft", *words)
    assert outcome.exit_code == 0
    # The matmul takes 10 us or 5 us: the all-reduce of 10 us hides behind it, or half of it does.
    expected = """machine    memory-limit  step before     step  exposed  of step                    peak memory
toy.toml           20kB      30.0 us  20.0 us   0.0 us     0.0%  20,804 bytes (over the limit)
toy.toml            1MB      30.0 us  20.0 us   0.0 us     0.0%                   20,804 bytes
fast.toml          20kB      25.0 us  20.0 us   5.0 us    25.0%  20,804 bytes (over the limit)
fast.toml           1MB      25.0 us  20.0 us   5.0 us    25.0%                   20,804 bytes

open report/sweep.html; also written: report/sweep.json
"""
    assert outcome.stdout == expected
    assert names_in("report") == ["sweep.html", "sweep.json"]


def test_efficiency_is_work_for_time_against_the_first(weft: Weft) -> None:
    words = ("train.py", "--sweep", "machine=toy.toml", "--sweep", "world-size=1,2", "--passes", "sink_waits")
    outcome = weft("plan", *words, "--out", "report", "--json")
    assert outcome.exit_code == 0
    assert outcome.stdout == Path("report/sweep.json").read_text()
    one, two = json.loads(outcome.stdout)["points"]
    assert (one["world_size"], one["after"]["efficiency"]) == (1, 1.0)
    # Each of the two multiplies half as much.
    assert two["after"]["efficiency"] == pytest.approx(one["after"]["step_us"] / two["after"]["step_us"] / 2)
    rows = weft("plan", *words).stdout.splitlines()
    assert rows[0].split() == ["machine", "world-size", "step", "before", "step", "exposed", "of", "step",
                               "efficiency", "peak", "memory"]  # fmt: skip
    assert rows[2].split()[-3] == f"{two['after']['efficiency']:.1%}"


def test_all_world_sizes_are_looked_at_before_anything_is_captured(weft: Weft) -> None:
    Path("train.py").write_text(
        "def mesh_for(n): return {'d': n // 2 * 2}\ndef build(mesh): open('built', 'w').close()\n"
    )
    outcome = weft("plan", "train.py", "--sweep", "world-size=2,3", "--out", "report")
    assert outcome.stderr == (
        "weft: train.py: mesh_for(3) returned a mesh of 2 ranks (d=2); give a --world-size that it can lay out\n"
    )
    assert names_in(".") == ["step.weft", "toy.toml", "train.py"]


# Where it is written


def test_a_directory_that_is_there_keeps_what_else_it_holds(weft: Weft) -> None:
    Path("report").mkdir()
    Path("report/notes.txt").write_text("mine")
    Path("report/plan.json").write_text("old")
    outcome = weft("plan", "step.weft", "-m", "toy.toml", "--out", "report")
    assert outcome.stdout.splitlines()[-1] == (
        "open report/report.html; also written: report/before.json, report/after.json, report/plan.json, "
        "report/program.weft, report/optimized.weft"
    )
    assert names_in("report") == sorted([*FILES, "notes.txt"])
    assert Path("report/notes.txt").read_text() == "mine"
    assert json.loads(Path("report/plan.json").read_text())[0]["program"] == fingerprint(parse(STEP))
    assert Path("report/program.weft").read_text() == STEP


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("toy.toml", "cannot write toy.toml: it is a file; give a directory as --out"),
        ("toy.toml/report", "cannot write toy.toml/report: Not a directory; give another --out"),
        ("no/report", "cannot write no/report: No such file or directory; give another --out"),
        ("/proc/report", "cannot write /proc/report: No such file or directory; give another --out"),
        ("x" * 300, f"cannot write {'x' * 300}: File name too long; give another --out"),
        ("taken", "cannot write taken: plan.json is a directory there; give another --out"),
    ],
    ids=lambda text: text[:20],
)
def test_a_directory_that_cannot_be_written_is_told_before_the_work_begins(weft: Weft, out: str, message: str) -> None:
    Path("taken/plan.json").mkdir(parents=True)
    Path("train.py").write_text("open('started', 'w').close()\n")
    outcome = weft("plan", "train.py", "-n", "2", "--out", out)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", f"weft: {message}\n")
    assert names_in(".") == ["step.weft", "taken", "toy.toml", "train.py"]
    assert names_in("taken") == ["plan.json"]


def test_a_disk_that_is_full_leaves_nothing_half_written(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def full(path: Path, text: str, encoding: str) -> None:
        written.append(path.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        path.write_bytes(text.encode())

    monkeypatch.setattr(Path, "write_text", full)
    outcome = weft("plan", "step.weft", "-m", "toy.toml", "--out", "report")
    message = "weft: cannot write report: No space left on device; give another --out\n"
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", message)
    assert len(written) == 3
    assert names_in(".") == ["step.weft", "toy.toml", "train.py"]
