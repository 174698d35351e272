from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from tests.run.test_calibrate import TINY
from weft import Machine
from weft.cli import calibrate

# What torchrun starts here: the command with less to measure.
DRIVER = """
from weft.cli import calibrate, main
from weft.run.samples import Effort

calibrate.QUICK = Effort(rounds=1, sample_s=0.001, growth=16, longest_s=0.001)
main(["calibrate", "--quick", "-o", "node.toml"])
"""


@pytest.mark.gloo
def test_it_writes_a_machine_and_says_how_good_it_is(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "QUICK", TINY)
    outcome = weft("calibrate", "--quick", "-o", "here.toml")
    assert outcome.exit_code == 0
    lines = outcome.stdout.splitlines()
    assert lines[0] == "Mean error on points that the fit does not know:"
    assert lines[1].split()[:5] == [
        "all_gather,",
        "2",
        "ranks",
        str(len(Machine.load("here.toml").curves[0].us)),
        "points",
    ]
    assert lines[-1].startswith("Wrote here.toml after ")
    assert lines[-1].endswith("Next: weft simulate -m here.toml step.weft")
    shown = json.loads(weft("machines", "--json", "here.toml").stdout)
    assert {one["key"] for one in shown["figures"] if not one["source"]} <= {"name", "about", "ranks", "f32", "bf16"}


@pytest.mark.gloo
def test_json_has_the_errors(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "FULL", TINY)
    found = json.loads(weft("calibrate", "--json").stdout)
    assert found["file"] == "machine.toml"
    assert found["ranks"] == 2
    assert found["compute_slowdown"] == Machine.load("machine.toml").compute_slowdown
    assert {one["what"] for one in found["fits"]} >= {"all_reduce, 2 ranks", "f32 matmuls", "memory"}


@pytest.mark.gloo
def test_under_torchrun_the_first_rank_writes(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "driver.py"]
    done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.count("Wrote node.toml after ") == 1
    assert Machine.load(tmp_path / "node.toml").name == "node"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "machine"), "weft: machine must end in .toml: that is how a file is told from a preset\n"),
        (("-o", "no/m.toml"), "weft: cannot write no/m.toml: its folder must exist, and writing be allowed\n"),
        (("-o", f"{'x' * 300}.toml"), f"weft: cannot write {'x' * 300}.toml: File name too long\n"),
        (("--ranks", "4", "--ranks-per-node", "3"), "weft: 4 ranks cannot be nodes of 3 each\n"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(weft: Weft, words: tuple[str, ...], message: str) -> None:
    outcome = weft("calibrate", *words)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", message)


@pytest.mark.parametrize("example", ["weft calibrate", "torchrun --nproc-per-node=8 -m weft calibrate -o node.toml"])
def test_help_has_examples(weft: Weft, example: str) -> None:
    outcome = weft("calibrate", "--help")
    assert example in [line.strip() for line in outcome.stdout.splitlines()]
    assert "Exit codes: 0 " in " ".join(outcome.stdout.split())
