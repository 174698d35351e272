from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Weft

GOLDEN = Path(__file__).parents[1] / "golden"
# To prefetch %ag takes 20,000 bytes while %a and %b live.
STEP = """weft 1
group dp = 0..1

%x: f32[5000] = input()
%y: f32[10,10] = input()
%w: f32[500,5] = input()
%a: f32[5000] = aten.neg.default(%x)
%b: f32[5000] = aten.neg.default(%a)
%c: f32[1] = aten.sum.default(%b)
%h: f32[10,10] = aten.mm.default(%y, %y)
%ag: f32[1000,5] = all_gather.start(%w) over dp
%f: f32[1000,5] = wait(%ag)
%k: f32[1] = aten.sum.default(%f)
return %c, %h, %k
"""


@pytest.fixture(autouse=True)
def step(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "toy.toml", tmp_path)
    (tmp_path / "step.weft").write_text(STEP)


def test_a_row_is_what_opt_makes_of_the_step(weft: Weft) -> None:
    found = json.loads(weft("tune", "-m", "toy.toml", "--json", "step.weft").stdout)
    assert found["before"] == {"step_us": 70.008, "peak_bytes": 70400}
    figures = [(round(row["step_us"], 3), row["peak_bytes"]) for row in found["rows"]]
    assert figures == [(50.008, 70804), (60.008, 70400)]
    for row in found["rows"]:
        words = ["--memory-limit", row["memory_limit"]] if row["memory_limit"] else []
        weft("opt", "-m", "toy.toml", "-p", row["pipeline"], *words, "--quiet", "-o", "made.weft", "step.weft")
        made = json.loads(weft("simulate", "-m", "toy.toml", "--json", "made.weft").stdout)
        assert (made["step_us"], made["peak_bytes"]) == (row["step_us"], row["peak_bytes"])


def test_what_is_over_the_limit_is_left_out(weft: Weft) -> None:
    outcome = weft("tune", "-m", "toy.toml", "--memory-limit", "70500", "--json", "step.weft")
    (row,) = json.loads(outcome.stdout)["rows"]
    assert (round(row["step_us"], 3), row["peak_bytes"]) == (60.008, 70400)


def test_that_nothing_fits_is_told(weft: Weft) -> None:
    fits = weft("tune", "-m", "toy.toml", "--memory-limit", "70500", "step.weft").stdout
    assert "nothing fits" not in fits
    outcome = weft("tune", "-m", "toy.toml", "--memory-limit", "1kB", "step.weft")
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines()[1] == "nothing fits into 1,000 bytes: all that follow take more"


def test_a_step_that_cannot_be_better_stays_as_it_is(weft: Weft) -> None:
    Path("step.weft").write_text("weft 1\n\n%x: f32[250] = input()\n%y: f32[250] = aten.neg.default(%x)\nreturn %y\n")
    outcome = weft("tune", "-m", "toy.toml", "step.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[1:] == [
        "  step         peak  memory limit  pipeline",
        "2.0 us  2,000 bytes          none  as it is",
    ]


def test_a_limit_that_is_no_amount_is_an_error(weft: Weft) -> None:
    outcome = weft("tune", "-m", "toy.toml", "--memory-limit", "-3", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: '-3' is no amount of memory; write such as 70GB, 512MiB or 1000000\n"
