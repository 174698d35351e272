"""The `weft` that is installed, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from weft import __version__

SCRIPT = Path(sys.executable).with_name("weft")
STEP = "weft 1\n\n%x: f32[2] = input()\nreturn %x\n"


def weft_process(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *words], input=stdin, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )


def test_a_program_is_printed_whatever_the_encoding_is_called() -> None:
    step = STEP.replace("input()", "input()  # größe→模型")
    outcome = weft_process("opt", "-p", "sink_waits", "-", stdin=step, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "größe→模型" in outcome.stdout


def test_a_standard_output_that_is_closed_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "step.weft").write_text(STEP)
    closed = ["sh", "-c", '"$0" opt -p sink_waits step.weft >&-', str(SCRIPT)]
    outcome = subprocess.run(closed, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "stdin", "code", "stdout", "stderr"),
    [
        (["verify", "-"], STEP, 0, "safe\n", ""),
        (["opt", "-p", "sink_waits", "-"], STEP, 0, STEP.replace("\n\n", '\nhistory "sink_waits"\n\n'), ""),
        (["verify", "-"], STEP.replace("return %x", "return %y"), 1, "", "weft: 1 violation\n"),
        (["verify", "-"], "", 2, "", "weft: -:1:1: expected 'weft 1', found the end of the file\n"),
        (["verify", "missing.weft"], "", 2, "", "weft: cannot read missing.weft: No such file or directory\n"),
        (["opt", "-p", "bogus", "-"], STEP, 2, "", "weft: <pipeline>:1:1: expected a pass "),
        (["bogus"], "", 2, "", "Usage: weft [OPTIONS] COMMAND [ARGS]...\n"),
        (["opt"], "", 2, "", "Usage: weft opt [OPTIONS] FILE\n"),
    ],
)
def test_exit_codes_and_first_words(words: list[str], stdin: str, code: int, stdout: str, stderr: str) -> None:
    outcome = weft_process(*words, stdin=stdin)
    assert (outcome.returncode, outcome.stdout) == (code, stdout)
    assert outcome.stderr.startswith(stderr)
    assert "Traceback" not in outcome.stderr


def test_a_reader_that_hangs_up_is_no_error(tmp_path: Path) -> None:
    inputs = "".join(f"%x{i}: f32[2] = input()\n" for i in range(20_000))
    (tmp_path / "long.weft").write_text(f"weft 1\n{inputs}return\n")
    command = f"{SCRIPT} opt -p sink_waits {tmp_path / 'long.weft'} | head -n 1"
    outcome = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (outcome.stdout, outcome.stderr) == ("weft 1\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_generated(shell: str) -> None:
    outcome = weft_process(_WEFT_COMPLETE=f"{shell}_source")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "_WEFT_COMPLETE" in outcome.stdout


def test_commands_and_options_are_completed() -> None:
    commands = weft_process(_WEFT_COMPLETE="bash_complete", COMP_WORDS="weft ve", COMP_CWORD="1")
    assert commands.stdout == "plain,verify\n"
    options = weft_process(_WEFT_COMPLETE="bash_complete", COMP_WORDS="weft opt --pr", COMP_CWORD="2")
    assert options.stdout == "plain,--preset\nplain,--print-after-all\n"


def test_the_version_is_that_of_the_package() -> None:
    assert weft_process("--version").stdout == f"weft, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["--help"], "weft opt -p sink_waits,hoist_starts step.weft"),
        (["--help"], "weft explain --machine h100-ib400 fast.weft"),
        (["--help"], "weft verify before.weft after.weft"),
        (["-h"], "weft opt -p sink_waits,hoist_starts step.weft"),
        (["opt", "--help"], "weft opt -p sink_waits,hoist_starts step.weft"),
        (["opt", "--help"], """weft opt -p 'hoist_starts{group="dp"}' --json step.weft"""),
        (["opt", "--help"], "weft opt --machine h100-ib400 --preset safe --plan-out plan.json step.weft"),
        (["explain", "--help"], "weft explain --machine h100-ib400 step.weft"),
        (["plan", "--help"], "weft plan examples/fsdp.py --world-size 64 --memory-limit 70GB --out report"),
        (["tune", "--help"], "weft tune --machine h100-ib400 step.weft"),
        (["verify", "--help"], "weft verify before.weft after.weft"),
    ],
)
def test_help_has_examples_on_lines_of_their_own(weft: Weft, words: list[str], example: str) -> None:
    outcome = weft(*words)
    assert outcome.exit_code == 0
    assert example in [line.strip() for line in outcome.stdout.splitlines()]


@pytest.mark.parametrize("command", ["opt", "explain", "plan", "tune", "verify"])
def test_help_says_what_the_exit_codes_mean(weft: Weft, command: str) -> None:
    text = " ".join(weft(command, "--help").stdout.split())
    assert "Exit codes: 0 " in text


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from weft.cli import main; main(['--help'], standalone_mode=False); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.endswith("\nFalse\n")
