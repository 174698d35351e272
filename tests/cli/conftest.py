from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.cli import main

Weft = Callable[..., Result]


@pytest.fixture
def weft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weft:
    """Runs a command line in an empty folder, in this process. An exception that is no exit fails the test."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, words, input=stdin, catch_exceptions=False)

    return run
