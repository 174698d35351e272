"""Every example plans on this machine, without its peers, and trains on two real ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(path for path in (Path(__file__).parents[1] / "examples").glob("*.py") if path.stem[0] != "_")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_plans(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path), "16"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ ops, \d+ collectives on .*=", done.stdout)
    assert f"{path.stem}.py" in done.stdout or "_run.py" in done.stdout


def planned(name: str, ranks: str) -> subprocess.CompletedProcess[str]:
    path = next(path for path in EXAMPLES if path.stem == name)
    return subprocess.run([sys.executable, str(path), ranks], capture_output=True, text=True, timeout=120)


def test_an_example_plans_for_a_rank_that_is_alone() -> None:
    done = planned("ddp", "1")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ ops, 0 collectives on data=1\n", done.stdout)


def test_a_number_of_ranks_that_the_mesh_does_not_have_is_refused() -> None:
    done = planned("hsdp", "12")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this example has no mesh of 12 ranks, but one of 8: replicate=1 x shard=8\n"


@pytest.mark.gloo
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_trains(path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
