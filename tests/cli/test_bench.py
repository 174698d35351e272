"""`weft bench` on real ranks, with the example of the documents and with scripts that go wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Weft
from weft.cli import bench
from weft.cli.bench_ranks import Measured, Row, Task
from weft.run.measuring import Spread

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "fsdp.py")
HEAD = """import torch
import torch.distributed._functional_collectives as funcol

def mesh_for(world_size):
    return {"data": world_size}

"""
# It leaves gradients behind instead of using them, and draws numbers.
GRADIENTS = (
    HEAD
    + """def build(mesh):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))

    def step(x):
        whole = funcol.all_gather_tensor_autograd(x, 0, mesh.get_group())
        loss = model(whole).square().mean()
        loss.backward()
        return loss.detach()

    return step, (torch.randn(4, 8),)
"""
)
FOUND = Measured(
    "gloo-cpu",
    (
        Row("as written", Spread(80e3, 70e3, 90e3), None, None, 0.0),
        Row("captured", Spread(76e3, 70e3, 80e3), 75e3, 39, 0.0),
        Row("default", Spread(60e3, 58e3, 66e3), 55e3, 1039, 1e-7),
    ),
    others=0.05,
)


def measured(weft: Weft, *words: str) -> dict[str, Any]:
    outcome = weft("bench", "--machine", "gloo-cpu", "--steps", "2", "--json", *words)
    assert outcome.exit_code == 0, outcome.stdout
    content: dict[str, Any] = json.loads(outcome.stdout)
    return content


@pytest.mark.gloo
def test_an_example_is_measured_in_all_ways(weft: Weft) -> None:
    content = measured(weft, "-p", "default", EXAMPLE)
    assert (content["ranks"], content["bits_per_s"], content["machine"]) == (2, None, "gloo-cpu")
    assert content["same"] is True
    written, captured, default = content["rows"]
    assert [row["name"] for row in content["rows"]] == ["as written", "captured", "default"]
    assert (written["collectives"], written["predicted_us"]) == (None, None)
    assert captured["collectives"] > default["collectives"]
    assert captured["predicted_us"] > default["predicted_us"]
    assert captured["apart"] == 0


@pytest.mark.gloo
def test_gradients_that_are_left_behind_are_compared(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GRADIENTS)
    content = measured(weft, "-p", "sink_waits", "train.py")
    assert [(row["name"], row["apart"]) for row in content["rows"]] == [
        ("as written", 0),
        ("captured", 0),
        ("sink_waits", 0),
    ]


@pytest.mark.gloo
def test_a_script_that_fails_in_a_rank_is_told_in_a_paragraph(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + "def build(mesh):\n    raise ValueError('no data')\n")
    outcome = weft("bench", "train.py")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    last = outcome.stderr.splitlines()[-1]
    assert last == "weft: a rank failed: train.py: build failed at train.py:8: ValueError: no data"


# What is printed


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """What ranks are said to have found: the first of the list."""
    found = [FOUND]
    monkeypatch.setattr(bench, "local_ranks", lambda *args, **options: found)
    return found


def test_the_table(weft: Weft, told: list[Measured]) -> None:
    outcome = weft("bench", EXAMPLE)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    expected = f"""{EXAMPLE}: 2 Gloo processes over loopback, planned for this machine, calibrated, 10 steps
            step ms     quartiles  ÷ as written  predicted ms  collectives  apart
as written     80.0  70.0 to 90.0          1.00                                 0
captured       76.0  70.0 to 80.0          0.95          75.0           39      0
default        60.0  58.0 to 66.0          0.75          55.0        1,039  1e-07
captured: the same ops in the same order, without Python and autograd between them
all results are the same, within 1e-05
"""
    assert outcome.stdout == expected


def test_other_results_are_an_error(weft: Weft, told: list[Measured]) -> None:
    told[0] = replace(FOUND, rows=(*FOUND.rows[:2], replace(FOUND.rows[2], apart=float("inf"))), others=0.5)
    outcome = weft("bench", EXAMPLE)
    assert outcome.exit_code == 1
    assert outcome.stdout.splitlines()[-2:] == [
        "THE RESULTS DIFFER",
        "other processes had 50% of the cores: on an idle computer figures would be others",
    ]


def test_a_difference_that_is_not_finite_is_null_in_json(weft: Weft, told: list[Measured]) -> None:
    told[0] = replace(FOUND, rows=(*FOUND.rows[:2], replace(FOUND.rows[2], apart=float("inf"))))
    outcome = weft("bench", "--json", EXAMPLE)
    assert outcome.exit_code == 1
    assert [row["apart"] for row in json.loads(outcome.stdout)["rows"]] == [0.0, 0.0, None]


def test_a_rate_goes_to_the_link(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[Task] = []

    def noted(function: object, ranks: int, task: Task, **options: object) -> list[Measured]:
        tasks.append(task)
        return [FOUND]

    monkeypatch.setattr(bench, "local_ranks", noted)
    monkeypatch.setattr(bench, "why_no_link", lambda: None)
    outcome = weft("bench", "--rate", "1.5Gbit", EXAMPLE)
    assert outcome.stdout.startswith(f"{EXAMPLE}: 2 Gloo processes over a link of 1,500 Mbit/s, planned for ")
    (task,) = tasks
    assert (task.rate, task.hosts.limited) == (1.5e9, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "fast"], "'fast' is no rate; write such as 300Mbit or 1.5Gbit"),
        (["--rate", "0Mbit"], "'0Mbit' is no rate; write such as 300Mbit or 1.5Gbit"),
        (["--rate", "1Gbit", "--ranks", "4"], "a link with a rate joins 2 ranks: leave out --rate, or --ranks 4"),
        (
            ["--rate", "1Gbit"],
            "there can be no link with a rate here: network namespaces need root. Without --rate, ranks talk over "
            "loopback",
        ),
        (["--machine", "laptop"], "laptop: is no machine; known are a100-ib200, "),
        (["-p", "nonsense"], "expected a pass (sink_waits, "),
        (["--memory-limit", "much"], "'much' is no amount of memory; write such as 70GB, 512MiB or 1000000"),
    ],
)
def test_wrong_options_are_refused(words: list[str], said: str, weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "why_no_link", lambda: "network namespaces need root")
    outcome = weft("bench", *words, EXAMPLE)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert said in outcome.stderr


def test_a_name_that_is_too_long_is_an_error(weft: Weft) -> None:
    name = "x" * 300 + ".py"
    outcome = weft("bench", name)
    assert (outcome.exit_code, outcome.stderr) == (2, f"weft: cannot read {name}: File name too long\n")


def test_a_script_that_is_none_is_refused_at_once(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    outcome = weft("bench", "train.py")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(
        "weft: train.py has no function mesh_for and no function build: a script needs two "
    )
