"""What the documents say works, works: their programs parse, their Python runs, and so do their commands.

Commands that take minutes are only looked up here; `test_docs_in_full.py` runs them.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests.cost.trace_files import RANK_0, RANK_1
from weft.cli import main
from weft.passes import PASSES

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
PYTHON, CONSOLE, SHELL = blocks("python"), blocks("console"), blocks("sh")
INLINE = re.compile(r"`((?:weft|make|python|torchrun) [^`]+)`")
COMPLETION = re.compile(
    r'eval "\$\(_WEFT_COMPLETE=(?:bash|zsh)_source weft\)"|_WEFT_COMPLETE=fish_source weft \| source'
)
EXAMPLE = re.compile(r"^ +((?:weft|torchrun) .+)$", re.MULTILINE)
# What the console blocks run is not run again; it is the default machine that some of them name.
RUN = {
    line[2:].replace("--machine h100-ib400 --mem", "--mem") for text in CONSOLE.values() for line in text.splitlines()
}
COMMANDS = main.list_commands(click.Context(main))


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
@pytest.mark.usefixtures("folder")
def test_commands_in_the_documents_work(where: str) -> None:
    for command, *printed in (part.splitlines() for part in CONSOLE[where].split("$ ")[1:]):
        check_command(command)
        if not is_expensive(command):
            output = run(command)
            if printed:
                assert output.splitlines() == printed


@pytest.mark.parametrize("where", SHELL)
@pytest.mark.usefixtures("folder")
def test_commands_of_shells_in_the_documents_work(where: str) -> None:
    for command in SHELL[where].splitlines():
        check_command(command)
        if not COMPLETION.fullmatch(command) and not is_expensive(command):
            run(command)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("folder")
def test_commands_in_running_text_work(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in inline(document):
        check_command(command)
        if "delay_small" in command:  # the pass that this document writes
            name = next(place for place, text in PYTHON.items() if "class DelaySmall" in text)
            Path("document.py").write_text(PYTHON[name])
            monkeypatch.setitem(PASSES, "delay_small", runpy.run_path("document.py")["DelaySmall"])
        if not is_expensive(command) and is_whole(command):
            run(command)


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.usefixtures("folder")
def test_examples_in_help_work(name: str) -> None:
    command = main.get_command(click.Context(main), name) if name else main
    assert command is not None
    examples = EXAMPLE.findall(command.help or "")
    assert examples
    if any("report/" in example for example in examples):
        run("weft plan step.weft --top 0 --out report")
    for example in examples:
        check_command(example)
        if not is_expensive(example) and example not in RUN:
            run(example)


def inline(document: Path) -> list[str]:
    """The commands in the running text of a document."""
    return [found.replace("\n", " ") for found in INLINE.findall(BLOCK.sub("", document.read_text()))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the documents and the examples speak of."""
    monkeypatch.chdir(tmp_path)
    step = next(text for place, text in PROGRAMS.items() if place.startswith("README"))
    for name in ("step.weft", "before.weft", "after.weft", "fast.weft"):
        Path(name).write_text(step)
    Path("examples").symlink_to(ROOT / "examples")
    Path("mlp.weft").write_text(next(text for place, text in PROGRAMS.items() if place.startswith("micro_pipelining")))
    for name in ("my-cluster.toml", "machine.toml"):
        shutil.copy(ROOT / "tests" / "golden" / "toy.toml", name)
    for rank, trace in enumerate((RANK_0, RANK_1)):
        shutil.copy(trace, f"rank{rank}.json")


def run(line: str) -> str:
    """What a line of a shell prints; each command gets what the one before it in the line printed."""
    output = ""
    for command in line.split(" | "):
        program, *words = shlex.split(command, comments=True)
        assert program == "weft"
        outcome = CliRunner().invoke(main, words, input=output or None, catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        output = outcome.stdout if " | " in line else outcome.output
    return output


def is_expensive(command: str) -> bool:
    """Whether it starts processes, trains, measures or installs something: tests of its own do that."""
    return not command.startswith("weft ") or command.split()[1] in ("bench", "calibrate", "demo")


def is_whole(line: str) -> bool:
    """Whether a command of `weft` lacks no argument: running text may speak of `weft opt` without one."""
    name, *words = shlex.split(line, comments=True)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    try:
        command.make_context(name, words)
    except (click.MissingParameter, click.BadOptionUsage):
        return False
    return True


def check_command(line: str) -> None:
    """A command of the documents is there, and has the options that it is given."""
    if COMPLETION.fullmatch(line):
        return  # tests/cli/test_entry.py has these scripts made
    for command in line.split(" | "):
        program, *words = shlex.split(command, comments=True)
        CHECKS[program](words)


def check_weft(words: list[str]) -> None:
    name, *rest = words
    command = main if name.startswith("-") else main.get_command(click.Context(main), name)
    assert command is not None, words
    parameters = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
    known = {option for parameter in parameters for option in parameter.opts}
    for word in rest if command is not main else words:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known, words


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [word for word in words if "=" not in word and word not in targets] == []


def check_python(words: list[str]) -> None:
    if words[0] != "-m":
        assert (ROOT / words[0]).is_file()
        return
    path = ROOT / (words[1].replace(".", "/") + ".py")
    text = path.read_text() + (ROOT / "bench" / "options.py").read_text()
    for word in words[2:]:
        assert not word.startswith("-") or f'"{word.partition("=")[0]}"' in text, words


def check_torchrun(words: list[str]) -> None:
    place = words.index("-m")
    assert all(word.startswith("--nproc-per-node") for word in words[:place])
    assert words[place + 1] == "weft"
    check_weft(words[place + 2 :])


CHECKS = {"weft": check_weft, "make": check_make, "python": check_python, "torchrun": check_torchrun}


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https://)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
