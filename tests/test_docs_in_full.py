"""The commands of the documents and of the help that take minutes, run as they stand.

`make test` and `make test-slow` are left out: they are what runs the tests.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.test_docs import (
    COMMANDS,
    COMPLETION,
    CONSOLE,
    DOCUMENTS,
    EXAMPLE,
    ROOT,
    SHELL,
    inline,
    is_expensive,
    is_whole,
)
from weft.cli import main

LEFT_OUT = {"make test", "make test-slow"}
MEASURED = ROOT.parent / "shared" / "data"


def shown() -> Iterator[str]:
    """Every command that is shown to somebody."""
    for text in CONSOLE.values():
        yield from (line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
    for text in SHELL.values():
        yield from text.splitlines()
    for document in DOCUMENTS:
        yield from inline(document)
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        yield from EXAMPLE.findall(command.help or "")


def in_full() -> list[str]:
    """Those that only this file runs."""
    dear = {line for line in shown() if not COMPLETION.fullmatch(line) and is_expensive(line)}
    whole = {line for line in dear if not line.startswith("weft ") or is_whole(line)}
    return sorted({shlex.join(shlex.split(line, comments=True)) for line in whole} - LEFT_OUT)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project, with this environment and with the measurements where there are any."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        (tmp_path / "weft" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / "weft" / name)
    (tmp_path / "weft" / ".venv").symlink_to(sys.prefix)
    if MEASURED.is_dir():
        (tmp_path / "shared").symlink_to(MEASURED.parent)
    return tmp_path / "weft"


@pytest.mark.slow
@pytest.mark.parametrize("line", in_full())
def test_commands_that_take_long_work(line: str, clone: Path) -> None:
    if "bench.fit" in line and not MEASURED.is_dir():
        pytest.skip("it fits measurements that are not part of the project")
    surroundings = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    done = subprocess.run(shlex.split(line), cwd=clone, env=surroundings, capture_output=True, text=True)
    # A benchmark that measures a promise as broken has done its work, and says so with 1.
    assert done.returncode == 0 or ("bench." in line and "OVER" in done.stdout), done.stdout + done.stderr
