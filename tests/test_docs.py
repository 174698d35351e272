"""What the documents say works, works: their programs parse, their Python runs, their commands exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from click.testing import CliRunner
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[ParameterSet]:
    found = []
    for document in DOCUMENTS:
        for number, (kind, text) in enumerate(BLOCK.findall(document.read_text())):
            if kind == language:
                found.append(pytest.param(text, id=f"{document.stem}-{number}"))
    return found


def programs() -> list[ParameterSet]:
    return [param for kind in ("weft", "text") for param in blocks(kind) if param.values[0].startswith("weft ")]


@pytest.mark.parametrize("text", programs())
def test_programs_in_the_documents_are_valid_and_print_as_they_stand(text: str) -> None:
    program = weft.parse(text)
    weft.verify(program)
    assert weft.print_program(program) == text


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_documents_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "document.py").write_text(code)
    # The README speaks of a graph that the reader has.
    graph_module = make_fx(lambda x: x.relu() + 1, tracing_mode="fake")(torch.ones(3))
    runpy.run_path(str(tmp_path / "document.py"), {"graph_module": graph_module})


@pytest.mark.parametrize("text", blocks("console"))
def test_commands_in_the_documents_work(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = next(param.values[0] for param in programs() if param.id.startswith("README"))
    for name in ("step.weft", "before.weft", "after.weft"):
        Path(name).write_text(step)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in text.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        if program == "make":
            assert words[0] in targets
        else:
            assert program == "weft"
            assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
