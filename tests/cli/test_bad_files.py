"""Whatever is in a file, one clear paragraph says what is wrong with it, and the exit code is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from weft.cli.common import read_text
from weft.errors import WeftError

OP = "an op (%name: type = target(...)), 'group', 'symbol', 'rank', 'history' or 'return'"
HEAD = "weft 1\ngroup g = 0..1\n%x: f32[2] = input()\n"

COMMANDS = [["opt", "-p", "sink_waits"], ["explain"], ["plan"], ["tune"], ["verify"]]

UNREADABLE = {
    "empty": (b"", "1:1: expected 'weft 1', found the end of the file\n  \n  ^"),
    "blank": (b"\n\n# nothing here\n", "4:1: expected 'weft 1', found the end of the file\n  \n  ^"),
    "another format": (
        b"graph():\n    %x = placeholder\n",
        "1:1: expected 'weft 1', the first line of every program, found 'graph'\n  graph():\n  ^",
    ),
    "another version": (
        b"weft 2\nreturn\n",
        "1:6: expected version 1 of the text form, the only one that this Weft reads, found '2'\n  weft 2\n       ^",
    ),
    "cut off in an op": (
        b"weft 1\n%x: f32[2] = inp",
        "2:17: expected '(', found the end of the line\n  %x: f32[2] = inp\n                  ^",
    ),
    "cut off before the end": (
        b"weft 1\n%x: f32[2] = input()\n",
        "3:1: expected 'return' and the outputs, found the end of the file\n  \n  ^",
    ),
    "nul bytes": (b"weft 1\n\x00\x00\nreturn\n", f"2:1: expected {OP}, found '·'\n  ··\n  ^"),
    "terminal codes": (b"weft 1\n\x1b[2J\nreturn\n", f"2:1: expected {OP}, found '·'\n  ·[2J\n  ^"),
    "an undeclared group": (
        b"weft 1\n%x: f32[2] = all_reduce.start(%y) sum over g\nreturn\n",
        "2:44: expected a group that was declared at the top, found 'g'\n"
        "  %x: f32[2] = all_reduce.start(%y) sum over g\n" + " " * 45 + "^",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_that_is_no_program_is_told_where_it_is_wrong(weft: Weft, command: list[str], what: str) -> None:
    content, message = UNREADABLE[what]
    Path("file.weft").write_bytes(content)
    outcome = weft(*command, "file.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == f"weft: file.weft:{message}\n"
    as_json = weft(*command, "--json", "file.weft")
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    assert json.loads(as_json.stdout)["error"] == "ParseError"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.weft", "cannot read missing.weft: No such file or directory"),
        (".", "cannot read .: Is a directory"),
        ("binary.weft", "binary.weft is not text: byte 0 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_why(weft: Weft, command: list[str], path: str, message: str) -> None:
    Path("binary.weft").write_bytes(bytes(range(255, -1, -1)) * 100)
    outcome = weft(*command, path)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", f"weft: {message}\n")


def test_standard_input_that_is_not_text_is_told(weft: Weft) -> None:
    outcome = weft("verify", "-", stdin=b"\xff\xfe")
    assert (outcome.exit_code, outcome.stderr) == (2, "weft: - is not text: byte 0 is not UTF-8\n")


def test_a_standard_input_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(WeftError, match="cannot read -: there is no standard input"):
        read_text("-")


@pytest.mark.parametrize("piece", ["@#$%^ (", "x", '"'])
def test_ten_megabytes_of_garbage_on_one_line_are_told_in_few_words(weft: Weft, piece: str) -> None:
    Path("file.weft").write_text("weft 1\n" + piece * (10_000_000 // len(piece)) + "\nreturn\n")
    outcome = weft("verify", "file.weft")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("weft: file.weft:2:")
    assert len(outcome.stderr) < 500


@pytest.mark.parametrize(
    "line",
    [
        "%y: f32[2] = aten.neg.default({})".format("[" * 50_000),
        "%y: f32[{}] = input()".format("(" * 50_000),
        "return " + "(" * 50_000,
        "%y: f32[{}] = input()".format("9" * 50_000),
        "%y: f32[{}] = input()".format("9" * 20),
        "%y: f32[{}] = input()".format("9999999999*9999999999"),
        "%y: f32[2] = aten.neg.default({})".format("-" * 50_000),
        "group g = 0..999999999999",
        'history "' + "\\" * 50_001,
    ],
    ids=lambda line: line[:40],
)
def test_lines_that_would_break_a_careless_parser_are_refused(weft: Weft, line: str) -> None:
    Path("file.weft").write_text(f"weft 1\n{line}\nreturn\n")
    outcome = weft("verify", "file.weft")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("weft: file.weft:2:")
    assert len(outcome.stderr) < 500


UNSAFE = {
    "a cycle": (
        HEAD + "%a: f32[2] = aten.add.Tensor(%x, %b)\n%b: f32[2] = aten.neg.default(%a)\nreturn %b\n",
        "defined_before_use: %a uses %b, which is defined only later: a cycle",
    ),
    "a wait without a start": (
        HEAD + "%f: f32[2] = wait(%x)\nreturn %f\n",
        "starts_waited: %f waits for something that no start made, or that was waited for already",
    ),
    "a start without a wait": (
        HEAD + "%s: f32[2] = all_reduce.start(%x) sum over g\nreturn %x\n",
        "starts_waited: %s is never waited for",
    ),
    "an unknown value": (
        HEAD + "%y: f32[2] = aten.neg.default(%z)\nreturn %y\n",
        "defined_before_use: %y uses %z, which is defined nowhere",
    ),
}


@pytest.mark.parametrize("what", UNSAFE)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_program_that_is_not_safe_exits_with_one(weft: Weft, command: list[str], what: str) -> None:
    text, message = UNSAFE[what]
    Path("file.weft").write_text(text)
    outcome = weft(*command, "file.weft")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr.split("\n")[:3] == ["weft: 1 violation", "", message]
