"""The demo, from end to end on real ranks with a tiny model, and what it says when things are otherwise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from weft.cli import demo
from weft.cli.demo_training import TRACED, WEFT, WRITTEN, Size, Trained, Way
from weft.cli.plan import PLAN_FILES
from weft.run.hosts import why_no_link
from weft.run.measuring import Spread

LOSSES = tuple(5.5 - 0.01 * number for number in range(10))
TRAINED = Trained(
    (
        Way(WRITTEN, LOSSES, Spread(600e3, 590e3, 610e3), None),
        Way(TRACED, LOSSES, Spread(580e3, 570e3, 590e3), 570e3),
        Way(WEFT, LOSSES, Spread(420e3, 410e3, 430e3), 400e3),
    ),
    same=True,
    why_no_link=None,
)


@pytest.mark.gloo
def test_the_demo_from_end_to_end(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "weft", "demo", "--quick", "--json", "--out", str(tmp_path / "report")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    training = content["training"]
    assert training["same"] is True
    assert training["why_no_link"] == why_no_link()
    assert [way["name"] for way in training["ways"]] == [WRITTEN, TRACED, WEFT]
    written, *others = (way["losses"] for way in training["ways"])
    assert len(written) == 10
    assert written[-1] < written[0]
    assert all(losses == written for losses in others)
    assert [way["predicted_us"] is None for way in training["ways"]] == [True, False, False]
    plan = content["plan"]
    assert (plan["world_size"], plan["machine"], plan["memory_limit"]) == (64, "h100-ib400", 75 * 10**9)
    assert plan["after"]["step_us"] < plan["before"]["step_us"]
    assert plan["files"] == [str(tmp_path / "report" / name) for name in PLAN_FILES]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(PLAN_FILES)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """What the training is said to have found: the first of the list."""
    found = [TRAINED]

    def train(size: Size) -> Trained:
        return found[0]

    monkeypatch.setattr(demo, "train", train)
    return found


def test_both_halves_are_printed(weft: Weft, trained: list[Trained], tmp_path: Path) -> None:
    outcome = weft("demo", "--quick", "--out", "report")
    assert outcome.exit_code == 0
    losses = "\n".join(f"step {n + 1:<2}  {loss:>10.6f}  {loss:.6f}  {loss:.6f}" for n, loss in enumerate(LOSSES))
    expected = f"""A small Llama, fully sharded over 2 Gloo processes joined by a link of 150 Mbit/s
as written: PyTorch op by op; weft.parallel gathers each weight when it is needed
traced: torch.compile(model, backend="aot_eager"), the same ops from graphs, without Weft
Weft: weft.compile(model, mode="eager"), those graphs with their collectives merged and moved

loss     as written    traced      Weft
{losses}
all losses and parameters are the same, bit for bit

step        median ms   quartiles  ÷ as written  predicted ms
as written        600  590 to 610          1.00
traced            580  570 to 590          0.97           570
Weft              420  410 to 430          0.70           400

Llama 3 8B, fully sharded over 64 ranks: 64 ranks, h100-ib400, memory limit 75.00 GB, mesh data=64, """
    assert outcome.stdout.startswith(expected)
    assert re.search(r"^exposed +\S+ .s +\S+ .s +−\d", outcome.stdout, re.MULTILINE)
    assert outcome.stdout.splitlines()[-1].startswith("open report/report.html; also written: report/before.json, ")
    assert (tmp_path / "report" / "report.html").is_file()


def test_without_a_link_it_says_so(weft: Weft, trained: list[Trained]) -> None:
    trained[0] = replace(TRAINED, why_no_link="network namespaces need root")
    printed = weft("demo", "--quick").stdout
    assert printed.startswith("A small Llama, fully sharded over 2 Gloo processes joined by loopback\n")
    note = "There is no link with a limited rate here (network namespaces need root), so there is little to hide.\n"
    assert note in printed


def test_other_results_are_an_error(weft: Weft, trained: list[Trained]) -> None:
    trained[0] = replace(TRAINED, same=False)
    outcome = weft("demo", "--quick")
    assert outcome.exit_code == 1
    assert "\nTHE RESULTS DIFFER\n" in outcome.stdout


def test_a_report_that_cannot_be_written_is_refused_at_once(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "train", lambda size: pytest.fail("it was too late"))
    outcome = weft("demo", "--out", "no/such/folder")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: cannot write no/such/folder: No such file or directory; give another --out\n"
