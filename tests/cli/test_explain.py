from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Weft

GOLDEN = Path(__file__).parents[1] / "golden"
STEP = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over dp  # gradient of layers.0.up model.py:12
%w: f32[2500] = wait(%s)
%r: f32[1] = aten.sum.default(%w)
return %h, %r
"""


@pytest.fixture(autouse=True)
def step(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "toy.toml", tmp_path)
    (tmp_path / "step.weft").write_text(STEP)


def test_json_has_the_causes_and_the_remedy(weft: Weft) -> None:
    outcome = weft("explain", "-m", "toy.toml", "--json", "step.weft")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    found = json.loads(outcome.stdout)
    # 10 us of matmul, then 10 us of all-reduce, then the sum, which reads 10,000 bytes and writes 4.
    assert 19.9 < found.pop("bound_us") < 20.004
    assert found == {
        "step_us": pytest.approx(30.004),
        "exposed_us": 10.0,
        "bound_by": "compute",
        "peak_bytes": 20804,
        "exposed": 1,
        "collectives": [
            {
                "op": "s",
                "kind": "all_reduce",
                "group": "dp",
                "inside_a_matmul": False,
                "origin": "gradient of layers.0.up model.py:12",
                "us": 10.0,
                "causes": [
                    {
                        "kind": "started late",
                        "us": 10.0,
                        "op": "",
                        "message": "nothing keeps it from starting earlier, at the beginning of the step",
                    }
                ],
                "remedy": {
                    "change": "schedule",
                    "saves_us": pytest.approx(10.0),
                    "peak_bytes": 20804,
                    "left_us": 0.0,
                    "hides": True,
                    "passes": "schedule",
                    "memory_limit": None,
                    "faster_links": [],
                },
                "tried": 1,
            }
        ],
    }


def test_what_optimize_makes_of_it_is_explained(weft: Weft) -> None:
    outcome = weft("explain", "-m", "toy.toml", "--optimize", "step.weft")
    assert outcome.stdout.splitlines()[1] == "0 of 1 collective exposed"
    assert outcome.stdout.startswith("step 20.0 us, exposed 0.0 us, bound ")


def test_a_program_is_read_from_standard_input(weft: Weft) -> None:
    outcome = weft("explain", "-m", "toy.toml", "-", stdin=STEP)
    assert outcome.stdout == weft("explain", "-m", "toy.toml", "step.weft").stdout


def test_names_cannot_steer_the_terminal(weft: Weft) -> None:
    Path("step.weft").write_text(STEP.replace("%s", r'%"\u001b[31m"'))
    outcome = weft("explain", "-m", "toy.toml", "step.weft")
    assert outcome.stdout.splitlines()[3].startswith("1. %·[31m, all_reduce over dp: exposed for 10.0 us")


def test_names_of_any_length_are_cut(weft: Weft) -> None:
    long = "s" * 100_000
    Path("step.weft").write_text(STEP.replace("%s", f"%{long}").replace("layers.0.up", "layers." + long))
    outcome = weft("explain", "-m", "toy.toml", "step.weft")
    assert outcome.stdout.splitlines()[3:] == [
        f"1. %{'s' * 99}…, all_reduce over dp: exposed for 10.0 us, 33.3% of the step",
        f"   where   gradient of layers.{'s' * 180}…",
        "   why     10.0 us: nothing keeps it from starting earlier, at the beginning of the step",
        "   remedy  with schedule it is hidden (step -10.0 us, peak 20,804 bytes)",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optimize", "-p", "schedule"], "--optimize runs the preset default: give either that or -p"),
        (["--memory-limit", "much"], "'much' is no amount of memory; write such as 70GB, 512MiB or 1000000"),
        (["-p", "schedule{pins=1}"], "schedule has no option 'pins'; it takes: "),
    ],
)
def test_options_that_cannot_be_used_are_an_error(weft: Weft, words: list[str], message: str) -> None:
    outcome = weft("explain", "-m", "toy.toml", *words, "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"weft: {message}")
    as_json = weft("explain", "-m", "toy.toml", "--json", *words, "step.weft")
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    assert json.loads(as_json.stdout)["error"] == "OptionError"


def test_a_machine_that_is_not_there_is_an_error(weft: Weft) -> None:
    outcome = weft("explain", "-m", "abacus", "step.weft")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("weft: ")
