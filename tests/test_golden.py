"""Text goldens. Each file under tests/golden holds a command, its input, and everything that it must print:

    # weft opt -p sink_waits
    weft 1
    ...
    # ---- stdout
    ...
    # ---- stderr
    ...
    # ---- exit 0

A second program, for commands that compare, stands between `# ---- after` and `# ---- stdout`. The machines in
tests/golden are there under their names. `pytest --accept` rewrites what is expected; the diff is read before it is
committed.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft.cli import main

HERE = Path(__file__).parent / "golden"
GOLDENS = sorted(HERE.rglob("*.weft"))
MARK = re.compile(r"^# ---- ?(.*)\n?", re.MULTILINE)


def split(text: str) -> tuple[str, dict[str, str]]:
    """The command line, and the inputs by the name of the file that they are given as."""
    first, rest = text.split("\n", 1)
    pieces = MARK.split(rest)
    inputs = {"before.weft": pieces[0]}
    if len(pieces) > 1 and pieces[1] == "after":
        inputs["after.weft"] = pieces[2]
    return first.removeprefix("# weft "), inputs


def run(command: str, inputs: dict[str, str], where: Path) -> str:
    """What the command prints, as the file spells it."""
    for name, text in inputs.items():
        (where / name).write_text(text)
    outcome = CliRunner().invoke(main, [*shlex.split(command), *inputs], catch_exceptions=False)
    return f"# ---- stdout\n{outcome.stdout}# ---- stderr\n{outcome.stderr}# ---- exit {outcome.exit_code}\n"


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_golden(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    monkeypatch.chdir(tmp_path)
    for machine in HERE.glob("*.toml"):
        shutil.copy(machine, tmp_path)
    text = path.read_text()
    command, inputs = split(text)
    found = run(command, inputs, tmp_path)
    given = text.split("# ---- stdout", 1)[0]
    if pytestconfig.getoption("--accept"):
        path.write_text(given + found)
    else:
        assert given + found == text


def test_there_are_goldens() -> None:
    assert GOLDENS
