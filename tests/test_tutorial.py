"""The tutorial runs, prints what it promises, stays short, and needs nothing but the standard library."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "from_scratch.py"
LINES = 400  # of code and prose, as its first line says; blank lines are free


@pytest.fixture(scope="module")
def output() -> str:
    # -I: neither the environment nor the current directory can lend it a module.
    done = subprocess.run(
        [sys.executable, "-I", str(TUTORIAL)], capture_output=True, text=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def tutorial() -> dict[str, Any]:
    """What the file defines, to ask it for more than its own asserts do."""
    return runpy.run_path(str(TUTORIAL))


def section(output: str, title: str) -> str:
    _, _, rest = output.partition(f"== {title}\n")
    return rest.partition("\n== ")[0].strip("\n")


def test_it_runs_to_the_end(output: str) -> None:
    assert output.endswith("\nEvery claim in this file holds.\n")


def test_the_verifier_shows_the_lines_around_the_culprit(output: str) -> None:
    assert section(output, "What the verifier says of a write that comes too early") == (
        "%u overwrites what %g, in flight, still reads\n"
        "    %g: [4] = all_gather.start(%w) over dp\n"
        "--> %u: [2] = sub_(%w, %w)\n"
        "    %f: [4] = wait(%g)"
    )


def test_starts_rise_and_waits_sink(output: str) -> None:
    assert names(section(output, "The step as written")) == "x w1 w2 g1 f1 h g2 f2 y d2 r2 s2 dh d1 r1 s1 u2 u1"
    assert names(section(output, "The step, overlapped")) == "x w1 g1 w2 g2 f1 h f2 y d2 r2 dh d1 r1 s2 u2 s1 u1"


def test_the_timeline_before_and_after(output: str) -> None:
    assert section(output, "The time it takes, before and after") == (
        "compute ........h=======........y=======d2======........dh======d1======........uu\n"
        "dp      g1======........g2======................r2======................r1======..\n"
        "step 74 us, exposed 32 us\n"
        "\n"
        "compute ........h=======y=======d2======dh======d1======u.......u\n"
        "dp      g1======g2======................r2======........r1======.\n"
        "step 57 us, exposed 15 us"
    )


def test_the_bucket_pays_only_where_latency_is_high(output: str) -> None:
    assert section(output, "Remarks, near and far") == (
        "refuse %g1 + %g2: the step goes from 57 to 66 us\nbucket %g1 + %g2: the step goes from 113 to 106 us"
    )
    assert "%g1_g2: [32] = all_gather.start(%g1_g2_in) over dp\n" in section(output, "The step, bucketed for far")


def test_the_output_does_not_depend_on_the_order_of_sets(output: str) -> None:
    again = subprocess.run(
        [sys.executable, str(TUTORIAL)], capture_output=True, text=True, encoding="utf-8", timeout=60, check=True
    )
    assert again.stdout == output


@pytest.mark.parametrize(
    "text",
    [
        "%w: [2] = input()\n%g: [4] = all_gather.start(%w) over dp\nreturn %w",
        "%w: [2] = input()\n%g: [4] = all_gather.start(%w) over dp\n%f: [4] = wait(%g)\nreturn %g",
        "%w: [2] = input()\n%g: [4] = all_gather.start(%w) over dp\n%f: [4] = wait(%g)\n%z: [4] = wait(%g)\nreturn %f",
        "%w: [2] = input()\n%f: [2] = wait(%w)\nreturn %f",
    ],
    ids=["never waited for", "read beside its wait", "waited for twice", "a wait for what was never started"],
)
def test_a_start_has_one_wait_and_no_other_reader(tutorial: dict[str, Any], text: str) -> None:
    program = tutorial["parse"](text)
    with pytest.raises(ValueError, match="a start is read by one wait, other ops by none"):
        tutorial["verify"](program, program)


def test_hoisting_keeps_the_order_of_starts_that_meet(tutorial: dict[str, Any]) -> None:
    first = tutorial["TINY"].replace("\nreturn %f", "")
    program = tutorial["parse"](first + "\n%k: [4] = all_gather.start(%w) over dp\n%z: [4] = wait(%k)\nreturn %f, %z")
    hoisted = tutorial["optimize"](program, tutorial["hoist_starts"])
    assert names(tutorial["show"](hoisted)) == "w g k f z"


def test_a_pass_that_breaks_a_rule_is_caught(tutorial: dict[str, Any]) -> None:
    careless = tutorial["Pass"](lambda program: tutorial["Plan"]((("f", "w"),), ()), tutorial["hoist_starts"].apply)
    with pytest.raises(ValueError, match=r"%g is not defined above\n    %w: .*\n--> %f: "):
        tutorial["optimize"](tutorial["tiny"], careless)


def test_it_stays_short() -> None:
    lines = TUTORIAL.read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) <= LINES


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(TUTORIAL.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported}
    assert roots.isdisjoint({"torch", "weft"})
    assert roots <= sys.stdlib_module_names


def names(program: str) -> str:
    return " ".join(line[1 : line.index(":")] for line in program.splitlines() if line.startswith("%"))
