"""Input that means harm: one paragraph says what is wrong, nothing is executed and nothing is half-written."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from tests.report.samples import HOSTILE
from weft.ir import parse
from weft.passes.base import fingerprint

STEP = """weft 1
group dp = 0, 1

%x: f32[10,10] = input()
%g: f32[20,10] = all_gather.start(%x) over dp
%f: f32[20,10] = wait(%g)
%h: f32[20,10] = all_gather.start(%x) over dp
%e: f32[20,10] = wait(%h)
%y: f32[20,10] = aten.add.Tensor(%f, %e)
return %y
"""
KNOWN = fingerprint(parse(STEP))


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "golden" / "toy.toml", tmp_path)
    (tmp_path / "step.weft").write_text(STEP)


def left() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"toy.toml", "step.weft"}


# Machines

MACHINES = {
    "../secret.toml": "../secret.toml: cannot be read: No such file or directory",
    "../../../../../../etc/passwd": "../../../../../../etc/passwd:1: is no TOML: ",
    "x/../h100-ib400": "x/../h100-ib400: cannot be read: No such file or directory",
    "/dev/zero": "/dev/zero: is longer than 4,000,000 bytes: that is no machine",
    "..": "..: cannot be read: Is a directory",
    "step.weft": "step.weft:1: is no TOML: ",
    "$(touch hacked)": "$(touch hacked): is no machine; known are a100-ib200, ",
    "h100\x1b[31m": "h100·[31m: is no machine; known are a100-ib200, ",
    "h" * 5000: f"{'h' * 5000}: is no machine; known are a100-ib200, ",
}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("way", [["plan"], ["plan", "--out", "report"], ["simulate"]], ids=" ".join)
def test_a_machine_with_a_path_in_its_name_is_data_or_an_error(weft: Weft, way: list[str], machine: str) -> None:
    outcome = weft(*way, "--machine", machine, "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {MACHINES[machine]}")
    assert outcome.stderr.count("\n") == 1
    assert left() == set()


# Plans


def plan(**changes: object) -> str:
    content = {"weft_plan": 1, "pass": "dedupe", "program": KNOWN, "steps": []} | changes
    return json.dumps([{key: value for key, value in content.items() if value is not ...}])


def one(verb: object, ops: object, detail: object) -> list[object]:
    return [{"verb": verb, "ops": ops, "detail": detail}]


VERSION = "this is not a plan of version 1, the only one that this Weft reads"
UNREADABLE = "this plan has a step that cannot be read: "
PLANS = {
    "no version": (plan(weft_plan=...), VERSION),
    "another version": (plan(weft_plan=2), VERSION),
    "a version that is a text": (plan(weft_plan="1"), VERSION),
    "a version that is true": (plan(weft_plan=True), VERSION),
    "no pass": (plan(**{"pass": ...}), "this plan lacks 'pass', or it is not a string"),
    "no program": (plan(program=...), "this plan lacks 'program', or it is not a string"),
    "a program that is a number": (plan(program=7), "this plan lacks 'program', or it is not a string"),
    "no steps": (plan(steps=...), "this plan has no list of steps"),
    "steps that are a text": (plan(steps="drop"), "this plan has no list of steps"),
    "a step that is a number": (plan(steps=[1]), f"{UNREADABLE}1"),
    "a step without a verb": (plan(steps=[{"ops": [], "detail": {}}]), UNREADABLE),
    "ops that are a text": (plan(steps=one("drop", "gh", {})), UNREADABLE),
    "ops that are numbers": (plan(steps=one("drop", [1, 2], {})), UNREADABLE),
    "a detail that is a list": (plan(steps=one("drop", ["g"], {"to": []})), UNREADABLE),
    "a list that is no plan": (plan(steps=[]).strip("[]"), "this is not a list of plans"),
    "code for a pass": (plan(**{"pass": "__import__('os').mkdir('hacked')"}), "<pipeline>:1:1: expected a pass "),
    "two passes": (
        plan(**{"pass": "dedupe,schedule"}),
        "a plan is that of one pass, and this one names 2: 'dedupe,schedule'",
    ),
    "another program": (plan(program="0"), "the plan of dedupe was made for another program (0)"),
    "an op that is no collective": (
        plan(steps=one("drop", ["x", "f"], {})),
        "the plan of dedupe cannot be carried out on this program: KeyError: 'x'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANS)
def test_a_plan_that_cannot_be_used_is_told_why(weft: Weft, what: str) -> None:
    content, message = PLANS[what]
    Path("plan.json").write_text(content)
    outcome = weft(
        "opt", "-m", "toy.toml", "--plan", "plan.json", "-o", "out.weft", "--plan-out", "new.json", "step.weft"
    )
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {message}")
    assert left() == {"plan.json"}


def test_the_plan_that_these_are_made_from_is_a_good_one(weft: Weft) -> None:
    Path("plan.json").write_text(plan())
    assert weft("opt", "-m", "toy.toml", "--plan", "plan.json", "step.weft").exit_code == 0


# Names


def named(name: str) -> str:
    """A program in which everything is called by this name."""
    said, group, other = json.dumps(name), json.dumps(f"$${name}$$"), json.dumps(f"{name} too")
    return f"""weft 1
group {group} = 0, 1

%x: f32[500] = input()
%{said}: f32[1000] = all_gather.start(%x) over {group}  # {said}
%w: f32[1000] = wait(%{said})
%{other}: f32[1000] = aten.relu.default(%w)  # {said}
return %{other}
"""


NAMES = {
    "markup": HOSTILE,
    "100,000 characters": HOSTILE + "x" * 100_000,
    "half a character": "\ud800",
    "quotes": "\"'`\\",
    "lines": "a\r\nb\u2028c",
}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(" ".join([tag, *(name for name, _ in attrs)]))


@pytest.mark.parametrize("what", NAMES)
def test_a_program_with_hostile_names_is_planned_like_any_other(weft: Weft, what: str) -> None:
    pages = {}
    for folder, name in (("plain", "plain"), ("hostile", NAMES[what])):
        Path("step.weft").write_text(named(name))
        outcome = weft("plan", "step.weft", "-m", "toy.toml", "--out", folder)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        pages[folder] = Tags(Path(folder, "report.html").read_text()).found
    assert all(line.isprintable() and len(line) <= 403 for line in outcome.stdout.split("\n"))
    assert pages["hostile"] == pages["plain"]
    for trace in ("before.json", "after.json"):
        text = json.dumps(json.loads(Path("hostile", trace).read_text()), ensure_ascii=False)
        assert not re.search(r"[\x00-\x1f\u2028\u2029]", text)
        assert len(text) < 10_000
    words = ("opt", "-m", "toy.toml", "--plan", "hostile/plan.json", "--quiet", "hostile/program.weft")
    assert weft(*words).stdout == Path("hostile/optimized.weft").read_text()


@pytest.mark.parametrize("what", ["markup", "100,000 characters", "quotes", "lines"])
def test_a_file_with_a_hostile_name_is_an_error_on_one_line(weft: Weft, what: str) -> None:
    outcome = weft("plan", NAMES[what].replace("\x00", "") + ".weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("weft: cannot read ")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2028\u2029]", outcome.stderr)
