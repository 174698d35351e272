from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cli.conftest import Weft
from weft.cli import opt
from weft.errors import PlanError
from weft.ir import Program, parse
from weft.passes import PASSES, Context, Plan, pass_text
from weft.passes.base import fingerprint

STEP = """weft 1
group dp = 0, 1

%x: f32[2] = input()
%s: f32[2] = all_reduce.start(%x) sum over dp
%f: f32[2] = wait(%s)
%y: f32[2] = aten.neg.default(%x)
return %y, %f
"""
SUNK = """weft 1
history "sink_waits"
group dp = 0, 1

%x: f32[2] = input()
%s: f32[2] = all_reduce.start(%x) sum over dp
%y: f32[2] = aten.neg.default(%x)
%f: f32[2] = wait(%s)
return %y, %f
"""
REMARK = "sink_waits: done: %f: moved down past 1 op, to the end: only the caller reads it\n"


@pytest.fixture(autouse=True)
def step(tmp_path: Path) -> None:
    (tmp_path / "step.weft").write_text(STEP)


def test_the_program_goes_to_stdout_and_the_remarks_to_stderr(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "step.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, SUNK, REMARK)


def test_quiet_prints_no_remarks(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "--quiet", "step.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, SUNK, "")


def test_a_program_is_read_from_standard_input(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "-", stdin=STEP)
    assert (outcome.exit_code, outcome.stdout) == (0, SUNK)


def test_a_program_is_written_to_a_file(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "-o", "out.weft", "step.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "", REMARK)
    assert Path("out.weft").read_text() == SUNK


def test_what_comes_out_goes_in_again(weft: Weft) -> None:
    weft("opt", "-p", "sink_waits", "-o", "out.weft", "step.weft")
    outcome = weft("opt", "-p", "sink_waits", "out.weft")
    assert outcome.stdout == SUNK.replace('history "sink_waits"\n', 'history "sink_waits"\n' * 2)
    assert weft("verify", "step.weft", "out.weft").stdout == "safe\n"


def test_print_after_all_prints_the_program_after_each_pass(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits,hoist_starts", "--quiet", "--print-after-all", "step.weft")
    after = SUNK.replace('"sink_waits"\n', '"sink_waits"\nhistory "hoist_starts"\n')
    assert outcome.stderr == f"# after sink_waits\n{SUNK}\n# after hoist_starts\n{after}\n"
    assert outcome.stdout == after


def test_json_has_the_program_the_plans_the_remarks_and_the_timings(weft: Weft) -> None:
    outcome = weft("opt", "-p", 'sink_waits{group="dp"}', "--json", "step.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    found = json.loads(outcome.stdout)
    (one,) = found["passes"]
    seconds = one.pop("seconds")
    assert seconds.keys() == {"plan", "apply", "verify"}
    assert all(0 <= value < 60 for value in seconds.values())
    plan = Plan.from_json(json.dumps(one["plan"]))
    assert found == {
        "program": SUNK.replace('"sink_waits"', r'"sink_waits{group=\"dp\"}"'),
        "passes": [
            {
                "pass": 'sink_waits{group="dp"}',
                "plan": {
                    "weft_plan": 1,
                    "pass": 'sink_waits{group="dp"}',
                    "program": fingerprint(parse(STEP)),
                    "steps": [{"verb": "move", "ops": ["f"], "detail": {"before": ""}}],
                },
                "hash": plan.hash,
            }
        ],
        "remarks": [
            {
                "pass": "sink_waits",
                "op": "f",
                "verdict": "done",
                "message": "moved down past 1 op, to the end: only the caller reads it",
            }
        ],
    }


def test_json_goes_to_a_file_too(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "--json", "-o", "out.json", "step.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "", "")
    assert json.loads(Path("out.json").read_text())["program"] == SUNK


def test_an_op_that_communicates_in_an_unknown_way_is_a_remark_and_no_error(weft: Weft) -> None:
    Path("step.weft").write_text(
        "weft 1\n\n%x: f32[2] = input()\n%y: f32[2] = vendor.exchange.default(%x) {communicates, barrier}\nreturn %y\n"
    )
    outcome = weft("opt", "-p", "sink_waits", "step.weft")
    assert outcome.exit_code == 0
    assert outcome.stderr == (
        "import: note: %y: vendor.exchange.default communicates in a way that Weft does not know: "
        "nothing moves across it\n"
    )


def test_names_cannot_steer_the_terminal(weft: Weft) -> None:
    Path("step.weft").write_text(STEP.replace("%f", r'%"\u001b[31m"'))
    outcome = weft("opt", "-p", "sink_waits", "step.weft")
    assert outcome.stderr == REMARK.replace("%f", "%·[31m")


# Presets, limits and plans

LATE = """weft 1
group dp = 0, 1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over dp
%w: f32[2500] = wait(%s)
%r: f32[1] = aten.sum.default(%w)
return %h, %r
"""
SUMMARY = "1 → 1 collective, step 30.0 us → 20.0 us, exposed 10.0 us → 0.0 us, peak 20,804 bytes → 20,804 bytes\n"


@pytest.fixture
def late(tmp_path: Path) -> None:
    """A step whose all-reduce of 10 us is launched behind the matmul of 10 us that could hide it."""
    shutil.copy(Path(__file__).parents[1] / "golden" / "toy.toml", tmp_path)
    (tmp_path / "late.weft").write_text(LATE)


def order(text: str) -> list[str]:
    return [op.name for op in parse(text).ops]


def test_a_machine_alone_runs_the_default_preset(weft: Weft, late: None) -> None:
    outcome = weft("opt", "-m", "toy.toml", "late.weft")
    assert outcome.exit_code == 0
    assert order(outcome.stdout) == ["x", "y", "s", "h", "w", "r"]
    assert outcome.stderr.endswith(SUMMARY)
    assert outcome.stdout == weft("opt", "-m", "toy.toml", "--preset", "default", "late.weft").stdout


def test_the_safe_preset_is_one_pass(weft: Weft, late: None) -> None:
    outcome = weft("opt", "-m", "toy.toml", "--preset", "safe", "late.weft")
    assert parse(outcome.stdout).history == (
        "schedule{max_memory_increase_gb=0, keep_order=true, reorder_compute=false, rounds=1}",
    )
    assert outcome.stderr == f"schedule: done: %s: hidden; it was exposed for 10.0 us\n{SUMMARY}"


def test_quiet_prints_no_summary(weft: Weft, late: None) -> None:
    assert weft("opt", "-m", "toy.toml", "--quiet", "late.weft").stderr == ""


def test_json_has_the_figures_before_and_after(weft: Weft, late: None) -> None:
    found = json.loads(weft("opt", "-m", "toy.toml", "--preset", "safe", "--json", "late.weft").stdout)
    before, after = pytest.approx(30.004), pytest.approx(20.004)  # the sum writes 4 bytes
    assert found["before"] == {"step_us": before, "exposed_us": 10.0, "peak_bytes": 20804, "collectives": 1}
    assert found["after"] == {"step_us": after, "exposed_us": 0, "peak_bytes": 20804, "collectives": 1}
    assert found["passes"][0]["seconds"].keys() == {"plan", "apply", "verify"}


def test_a_memory_limit_holds_for_passes_and_presets(weft: Weft, late: None) -> None:
    warning = "weft: warning: the step needs 20,804 bytes as it is, and may have 1,000 bytes: it will not grow"
    for way in (["-p", "schedule"], ["--preset", "default"]):
        outcome = weft("opt", "-m", "toy.toml", "--memory-limit", "1KB", *way, "late.weft")
        assert (outcome.exit_code, warning in outcome.stderr) == (0, True)


@pytest.mark.parametrize("way", [["-p", "sink_waits,schedule"], ["--preset", "safe"], []])
def test_a_plan_is_written_and_replayed(weft: Weft, late: None, way: list[str]) -> None:
    made = weft("opt", "-m", "toy.toml", *way, "--plan-out", "plan.json", "late.weft")
    outcome = weft("opt", "-m", "toy.toml", "--plan", "plan.json", "late.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, made.stdout, SUMMARY)
    as_json = json.loads(weft("opt", "-m", "toy.toml", "--plan", "plan.json", "--json", "late.weft").stdout)
    assert [one["plan"] for one in as_json["passes"]] == json.loads(Path("plan.json").read_text())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "these plans are not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{}", "this is not a list of plans"),
        ("[1]", "this is not a plan of version 1, the only one that this Weft reads"),
        ("[" * 100_000, "these plans are not JSON: "),
        (
            '[{"weft_plan": 1, "pass": "sinks", "program": "", "steps": []}]',
            "<pipeline>:1:1: expected a pass ",
        ),
        (
            '[{"weft_plan": 1, "pass": "schedule", "program": "0", "steps": []}]',
            "the plan of schedule was made for another program (0)",
        ),
    ],
    ids=["empty", "an object", "a number", "deep", "no such pass", "another program"],
)
def test_a_plan_that_cannot_be_used_is_an_error(weft: Weft, late: None, content: str, message: str) -> None:
    Path("plan.json").write_text(content)
    outcome = weft("opt", "-m", "toy.toml", "--plan", "plan.json", "late.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "schedule", "--preset", "safe"], "-p, --preset and --plan each say what to do: give one of them"),
        (["--preset", "safe", "--plan", "p"], "-p, --preset and --plan each say what to do: give one of them"),
        (["--preset", "safe"], "for which machine? Give --machine; `weft machines` lists those that are known"),
        (["--plan", "p"], "for which machine? Give --machine; `weft machines` lists those that are known"),
        (["-m", "toy.toml", "--plan", "p"], "cannot read p: No such file or directory"),
        (["-m", "toy.toml", "--plan", ""], "--plan is empty: give the file that --plan-out wrote"),
        (
            ["-m", "toy.toml", "--plan", "p", "--memory-limit", "1kB"],
            "--memory-limit is for deciding, and --plan decides nothing: give one of them",
        ),
        (["-m", "toy.toml", "--plan-out", "no/p"], "cannot write no/p: No such file or directory"),
        (
            ["-m", "toy.toml", "--no-verify"],
            "--no-verify goes with -p: what a preset or a plan makes is always checked",
        ),
        (
            ["-m", "toy.toml", "--memory-limit", "lots"],
            "'lots' is no amount of memory; write such as 70GB, 512MiB or 1000000",
        ),
    ],
)
def test_ways_that_cannot_be_gone_are_an_error(weft: Weft, late: None, words: list[str], message: str) -> None:
    outcome = weft("opt", *words, "--quiet", "late.weft")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", f"weft: {message}\n")


def test_a_preset_goes_before_the_passes_of_a_reproducer(weft: Weft, late: None) -> None:
    Path("late.weft").write_text(f"# weft opt -p hoist_starts\n{LATE}")
    assert parse(weft("opt", "-m", "toy.toml", "late.weft").stdout).history == ("hoist_starts",)
    assert parse(weft("opt", "-m", "toy.toml", "--preset", "safe", "late.weft").stdout).history[0] != "hoist_starts"


# What the user got wrong


def test_a_program_that_is_not_safe_is_not_optimised(weft: Weft) -> None:
    Path("step.weft").write_text(STEP.replace("%f: f32[2] = wait(%s)\n", "").replace(", %f", ""))
    outcome = weft("opt", "-p", "sink_waits", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr == (
        "weft: 1 violation\n"
        "\n"
        "starts_waited: %s is never waited for\n"
        "        0 | %x: f32[2] = input()\n"
        "  >     1 | %s: f32[2] = all_reduce.start(%x) sum over dp\n"
        "        2 | %y: f32[2] = aten.neg.default(%x)\n"
    )


def test_without_passes_the_passes_are_listed(weft: Weft) -> None:
    outcome = weft("opt", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        f"weft: which passes? Give -p with some of: {', '.join(PASSES)}; or --machine, for the preset default\n"
    )


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("", "<pipeline>:1:1: expected the name of a pass, found the end of the line"),
        ("sink", f"<pipeline>:1:1: expected a pass ({', '.join(PASSES)}), found 'sink'"),
        ("sink_waits{groups=dp}", "sink_waits has no option 'groups'; it takes: group"),
        ("sink_waits{group=7}", "sink_waits: group must be str or none, not 7"),
        ("sink_waits{group=tp}", "there is no group 'tp'; this program has: dp"),
    ],
)
def test_a_pipeline_that_cannot_be_used_is_an_error(weft: Weft, pipeline: str, message: str) -> None:
    outcome = weft("opt", "-p", pipeline, "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.split("\n")[0] == f"weft: {message}"
    as_json = weft("opt", "-p", pipeline, "--json", "step.weft")
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    assert json.loads(as_json.stdout)["message"].split("\n")[0] == message


def test_output_that_cannot_be_written_is_an_error(weft: Weft) -> None:
    outcome = weft("opt", "-p", "sink_waits", "--quiet", "-o", "no/such/folder/out.weft", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: cannot write no/such/folder/out.weft: No such file or directory\n"


def test_a_folder_is_no_output(weft: Weft, tmp_path: Path) -> None:
    outcome = weft("opt", "-p", "sink_waits", "-o", str(tmp_path), "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.endswith(f"Error: Invalid value for '-o' / '--output': File '{tmp_path}' is a directory.\n")


# What a pass got wrong


@dataclass(frozen=True)
class Broken:
    """Fails in the way that its option says."""

    name: ClassVar[str] = "broken"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    how: str = "unsafe"

    def plan(self, program: Program, context: Context) -> Plan:
        if self.how == "plan":
            raise KeyError("s")
        return Plan(pass_text(self), fingerprint(program), ())

    def apply(self, program: Program, plan: Plan) -> Program:
        if self.how == "apply":
            raise PlanError("the plan is of no use")
        return replace(program, outputs=program.outputs[:1])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Puts the broken pass into the table. Returns the folder that reproducers are written to."""
    monkeypatch.setattr(opt, "PASSES", {**PASSES, "broken": Broken})
    folder = tmp_path / "reproducers"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("broken", "pass broken failed: 1 violation\n\noutputs_kept: the program returned 2 values and returns 1"),
        ('broken{how="plan"}', "pass broken{how=\"plan\"} failed: KeyError: 's'"),
        ('broken{how="apply"}', 'pass broken{how="apply"} failed: the plan is of no use'),
    ],
)
def test_a_pass_that_fails_leaves_a_reproducer_that_replays(
    weft: Weft, broken: Path, pipeline: str, message: str
) -> None:
    outcome = weft("opt", "-p", f"sink_waits,{pipeline}", "--quiet", "step.weft")
    (written,) = broken.iterdir()
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr == f"weft: {message}\nreplay it with: weft opt {written}\n"
    # It holds the program as it was before the pass that failed, and that pass alone.
    first, program = written.read_text().split("\n", 1)
    assert first.startswith("# weft opt -p ")
    assert program == SUNK
    replayed = weft("opt", "--quiet", str(written))
    assert (replayed.exit_code, replayed.stdout, replayed.stderr) == (1, "", outcome.stderr)
    assert list(broken.iterdir()) == [written]


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["-m", "toy.toml"], "--machine"),
        (["--memory-limit", "1kB"], "--memory-limit"),
        (["-m", "toy.toml", "--memory-limit", "1kB"], "--machine and --memory-limit"),
    ],
)
def test_what_a_reproducer_does_not_hold_is_named(
    weft: Weft, late: None, broken: Path, words: list[str], same: str
) -> None:
    outcome = weft("opt", "-p", 'broken{how="apply"}', "--quiet", *words, "step.weft")
    (written,) = broken.iterdir()
    replay = f"replay it, with the same {same}, with: weft opt {written}"
    assert outcome.stderr == f'weft: pass broken{{how="apply"}} failed: the plan is of no use\n{replay}\n'


def test_a_failure_is_told_as_json_too(weft: Weft, broken: Path) -> None:
    outcome = weft("opt", "-p", 'broken{how="plan"}', "--json", "step.weft")
    (written,) = broken.iterdir()
    assert (outcome.exit_code, outcome.stderr) == (1, "")
    assert json.loads(outcome.stdout) == {
        "error": "PassError",
        "message": f"pass broken{{how=\"plan\"}} failed: KeyError: 's'\nreplay it with: weft opt {written}",
    }


def test_a_reproducer_that_cannot_be_written_does_not_hide_the_failure(weft: Weft, broken: Path) -> None:
    broken.rmdir()
    outcome = weft("opt", "-p", 'broken{how="apply"}', "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr == 'weft: pass broken{how="apply"} failed: the plan is of no use\n'


def test_without_verification_an_unsafe_result_comes_out(weft: Weft, broken: Path) -> None:
    outcome = weft("opt", "-p", "broken", "--no-verify", "step.weft")
    assert outcome.exit_code == 0
    assert outcome.stdout == STEP.replace("return %y, %f", "return %y")
    assert list(broken.iterdir()) == []


def test_passes_on_the_command_line_go_before_those_of_a_reproducer(weft: Weft) -> None:
    Path("step.weft").write_text(f"# weft opt -p hoist_starts\n{STEP}")
    assert weft("opt", "-p", "sink_waits", "--quiet", "step.weft").stdout == SUNK
    assert 'history "hoist_starts"' in weft("opt", "--quiet", "step.weft").stdout


@pytest.mark.parametrize(
    "first", ["# weft opt -p 'sink_waits", "# weft opt -p ", "# weft opt -p sink_waits extra", "# weft verify"]
)
def test_a_first_line_that_names_no_pipeline_is_a_comment(weft: Weft, first: str) -> None:
    Path("step.weft").write_text(f"{first}\n{STEP}")
    outcome = weft("opt", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("weft: which passes?")
