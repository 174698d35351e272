from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Weft

TOY = Path(__file__).parents[1] / "golden" / "toy.toml"
BEFORE = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over dp  # gradient of layers.0.up model.py:12
%w: f32[2500] = wait(%s)
return %h, %w
"""
MATMUL, START = BEFORE.splitlines(keepends=True)[5:7]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    shutil.copy(TOY, tmp_path)
    (tmp_path / "before.weft").write_text(BEFORE)
    (tmp_path / "after.weft").write_text(BEFORE.replace(MATMUL + START, START + MATMUL))


def test_two_files(weft: Weft) -> None:
    outcome = weft("diff", "before.weft", "after.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout == (
        "1 → 1 collective, 5 → 5 ops\n"
        "\n"
        "moved\n"
        "   %s: all_reduce over dp, starts 1 op earlier  # gradient of layers.0.up model.py:12\n"
    )


def test_with_a_machine_there_are_times(weft: Weft) -> None:
    outcome = weft("diff", "-m", "toy.toml", "before.weft", "after.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout == (
        "step 20.0 us → 10.0 us (−10.0 us), exposed 10.0 us → 0.0 us, 1 → 1 collective\n"
        "\n"
        "moved: −10.0 us\n"
        "       −10.0 us  %s: all_reduce over dp, starts 1 op earlier, exposed 10.0 us → 0.0 us"
        "  # gradient of layers.0.up model.py:12\n"
    )


def test_json_has_everything(weft: Weft) -> None:
    outcome = weft("diff", "--json", "-m", "toy.toml", "before.weft", "after.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    moved = {
        "kind": "moved",
        "what": "all_reduce over dp",
        "collective": True,
        "before": ["s"],
        "after": ["s"],
        "origin": "gradient of layers.0.up model.py:12",
        "start_later": -1,
        "wait_later": 0,
        "before_us": 10.0,
        "after_us": 0.0,
        "exposed": True,
        "gain_us": 10.0,
    }
    kept = {
        "kind": "kept",
        "what": "",
        "collective": False,
        "before": ["h"],
        "after": ["h"],
        "origin": "",
        "start_later": 0,
        "wait_later": 0,
        "before_us": 10.0,
        "after_us": 10.0,
        "exposed": False,
        "gain_us": 0.0,
    }
    assert json.loads(outcome.stdout) == {
        "ops": [5, 5],
        "collectives": [1, 1],
        "step_us": [20.0, pytest.approx(10.0)],
        "compute_us": [10.0, 10.0],
        "exposed_us": [10.0, 0.0],
        "peak_bytes": [20800, 20800],
        "changes": [moved, kept],
    }


def test_json_without_a_machine_has_no_times(weft: Weft) -> None:
    found = json.loads(weft("diff", "--json", "before.weft", "after.weft").stdout)
    assert found.keys() == {"ops", "collectives", "changes"}
    assert [(one["before_us"], one["after_us"], one["gain_us"]) for one in found["changes"]] == [(None, None, None)] * 2


def test_one_may_come_from_standard_input(weft: Weft) -> None:
    expected = weft("diff", "before.weft", "after.weft").stdout
    assert weft("diff", "-", "after.weft", stdin=BEFORE).stdout == expected
    outcome = weft("diff", "-", "-", stdin=BEFORE)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: only one of the two programs can come from standard input\n"


def test_a_program_that_is_not_safe_is_compared_but_not_simulated(weft: Weft) -> None:
    Path("after.weft").write_text(
        BEFORE.replace("%w: f32[2500] = wait(%s)\n", "").replace("return %h, %w", "return %h")
    )
    assert weft("diff", "before.weft", "after.weft").exit_code == 0
    outcome = weft("diff", "-m", "toy.toml", "before.weft", "after.weft")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("weft: 1 violation\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "abacus", "before.weft", "after.weft"], "weft: abacus"),
        (["before.weft", "nowhere.weft"], "weft: cannot read nowhere.weft: No such file or directory\n"),
    ],
)
def test_what_cannot_be_used_is_an_error(weft: Weft, words: list[str], message: str) -> None:
    outcome = weft("diff", *words)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(message)
