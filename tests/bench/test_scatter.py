"""The floor under predictions is found again where the true curves are known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from bench.measured import Timed
from bench.scatter import scatter

HERE = Path(__file__).parents[2]
SIZES = [2**power for power in range(10, 21)]


def truth(kind: str, nbytes: int) -> float:
    return (10 if kind == "all_gather" else 25) + nbytes / 1e5


def rows(spread: float, seed: int = 0) -> list[Timed]:
    random = Random(seed)
    return [
        Timed("device", kind, ranks, nbytes, truth(kind, nbytes) * random.lognormvariate(0, spread), False)
        for kind in ("all_gather", "all_reduce")
        for ranks in (2, 4, 8, 16)
        for nbytes in SIZES
    ]


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_the_floor_is_the_error_of_the_true_curves(spread: float) -> None:
    timed = rows(spread)
    error = sum(abs(truth(row.kind, row.nbytes) / row.us - 1) for row in timed) / len(timed)
    assert scatter("device", timed).floor == pytest.approx(error, rel=0.2)


def test_times_that_rise_have_no_floor() -> None:
    assert str(scatter("device", rows(0.0))) == (
        "device          88 rows    0 of  48 neighbours fall,  0 differ by more than two  "
        "hindsight   0.0%  floor   0.0%"
    )


def test_falls_and_leaps_between_neighbours_are_counted() -> None:
    times = [(1024, 50.0), (2048, 20.0), (4096, 30.0), (8192, 29.0), (2**17, 10.0)]
    found = scatter("device", [Timed("device", "all_gather", 2, nbytes, us, False) for nbytes, us in times])
    assert (found.rows, found.pairs, found.falls, found.doubled) == (5, 3, 2, 1)


def test_without_rows_there_is_a_line_and_no_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.scatter", "--data", str(tmp_path)]
    run = subprocess.run(words, check=True, capture_output=True, text=True, cwd=HERE)
    assert run.stdout == f"no measured rows in {tmp_path}\n"
