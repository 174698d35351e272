"""What holds for every command: help with an example, JSON, errors as JSON, no colours where nobody looks."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Weft
from tests.cli.test_entry import SCRIPT
from tests.cli.test_opt import LATE as STEP
from weft.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"
COMMANDS = main.list_commands(click.Context(main))
# Commands that need no processes, with what they are given.
CHEAP: dict[str, list[str]] = {
    "diff": ["-m", "toy.toml", "step.weft", "step.weft"],
    "explain": ["-m", "toy.toml", "step.weft"],
    "machines": ["toy.toml"],
    "opt": ["-m", "toy.toml", "step.weft"],
    "plan": ["-m", "toy.toml", "step.weft"],
    "simulate": ["-m", "toy.toml", "step.weft"],
    "tune": ["-m", "toy.toml", "step.weft"],
    "verify": ["step.weft", "step.weft"],
}
# The others, and a word that makes them fail before they start any.
FAILING = {
    "bench": ["missing.py"],
    "calibrate": ["-o", "nowhere/machine.toml"],
    "demo": ["--out", "step.weft"],
}


@pytest.fixture(autouse=True)
def step(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "toy.toml", tmp_path)
    (tmp_path / "step.weft").write_text(STEP)


def test_every_command_is_tried_here() -> None:
    assert sorted({*CHEAP, *FAILING}) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_help_with_an_example(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert "--json" in [flag for parameter in command.params for flag in parameter.opts]
    lines = [line.strip() for line in command.get_help(click.Context(command, info_name=name)).splitlines()]
    assert lines[lines.index("Example:") + 1].startswith("weft ")
    assert any(line.startswith("Exit codes: 0 ") for line in lines)


@pytest.mark.parametrize("name", CHEAP)
def test_output_is_json(weft: Weft, name: str) -> None:
    outcome = weft(name, "--json", *CHEAP[name])
    assert outcome.exit_code == 0
    assert isinstance(json.loads(outcome.stdout), dict)


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_are_json(weft: Weft, name: str) -> None:
    words = FAILING.get(name) or [word.replace("step.weft", "missing.weft") for word in CHEAP[name]]
    words = ["missing.toml"] if name == "machines" else words
    outcome = weft(name, "--json", *words)
    assert outcome.exit_code == 2
    assert json.loads(outcome.stdout).keys() == {"error", "message"}


def on_a_terminal(words: list[str], folder: Path, **environment: str) -> bytes:
    """What a command prints where somebody looks."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    with subprocess.Popen(
        [SCRIPT, *words], cwd=folder, stdout=theirs, stderr=theirs, env={**kept, "TERM": "xterm", **environment}
    ):
        os.close(theirs)
        printed = b""
        while part := _read(ours):
            printed += part
    os.close(ours)
    return printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


@pytest.mark.parametrize("name", CHEAP)
def test_there_are_no_colours_and_no_bars_in_a_file(weft: Weft, name: str) -> None:
    outcome = weft(name, *CHEAP[name])
    assert outcome.exit_code == 0
    assert "\x1b" not in outcome.output
    assert "\r" not in outcome.output


@pytest.mark.parametrize(("name", "said"), [("explain", b"step 30.0 us"), ("machines", b"toy")])
def test_colours_are_for_terminals_and_can_be_switched_off(tmp_path: Path, name: str, said: bytes) -> None:
    words = [name, *CHEAP[name]]
    assert b"\x1b[1m" + said in on_a_terminal(words, tmp_path)
    plain = on_a_terminal(words, tmp_path, NO_COLOR="1")
    assert said in plain
    assert not re.search(rb"\x1b\[[0-9;]*m", plain)
