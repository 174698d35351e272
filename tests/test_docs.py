"""What the documents say works, works: their programs parse, their Python runs, their commands exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> dict[str, str]:
    """The blocks of a language in all documents, by where they stand."""
    return {
        f"{document.stem}-{number}": text
        for document in DOCUMENTS
        for number, (kind, text) in enumerate(BLOCK.findall(document.read_text()))
        if kind == language
    }


PROGRAMS = {where: text for where, text in {**blocks("weft"), **blocks("text")}.items() if text.startswith("weft ")}
PYTHON, CONSOLE = blocks("python"), blocks("console")


@pytest.mark.parametrize("where", PROGRAMS)
def test_programs_in_the_documents_are_valid_and_print_as_they_stand(where: str) -> None:
    program = weft.parse(PROGRAMS[where])
    weft.verify(program)
    assert weft.print_program(program) == PROGRAMS[where]


@pytest.mark.parametrize("where", PYTHON)
def test_python_in_the_documents_runs(where: str, tmp_path: Path) -> None:
    (tmp_path / "document.py").write_text(PYTHON[where])
    # Documents speak of a graph and of a model that the reader has.
    graph_module = make_fx(lambda x: x.relu() + 1, tracing_mode="fake")(torch.ones(3))
    given = {"graph_module": graph_module, "model": torch.nn.Linear(2, 2)}
    runpy.run_path(str(tmp_path / "document.py"), given)


@pytest.mark.parametrize("where", CONSOLE)
def test_commands_in_the_documents_work(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = next(text for place, text in PROGRAMS.items() if place.startswith("README"))
    for name in ("step.weft", "before.weft", "after.weft"):
        Path(name).write_text(step)
    Path("examples").symlink_to(ROOT / "examples")
    Path("mlp.weft").write_text(next(text for place, text in PROGRAMS.items() if place.startswith("micro_pipelining")))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command, *printed in (part.splitlines() for part in CONSOLE[where].split("$ ")[1:]):
        program, *words = shlex.split(command, comments=True)
        if program == "make":
            assert words[0] in targets
            continue
        assert program == "weft"
        outcome = CliRunner().invoke(main, words, catch_exceptions=False)
        assert outcome.exit_code == 0
        if printed:
            assert outcome.output.splitlines() == printed


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
