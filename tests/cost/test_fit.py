"""The fit by itself, and the presets against measured rows where those are at hand."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from bench import fit, fitting
from bench.measured import Matmul, collectives, matmuls
from weft.cost.curves import Curve
from weft.cost.fitting import middle, monotone
from weft.errors import WeftWarning

HERE = Path(__file__).parents[2]
DATA = HERE / fit.DATA

measured = pytest.mark.skipif(not (DATA / "collectives.csv").is_file(), reason="the measured rows are not here")


def test_the_middle_minimises_relative_errors() -> None:
    random = Random(0)
    for _ in range(50):
        values = [random.uniform(1, 100) for _ in range(random.randint(1, 9))]

        def error(guess: float, values: list[float] = values) -> float:
            return sum(abs(guess / value - 1) for value in values)

        assert error(middle(values)) == pytest.approx(min(map(error, values)))


def test_a_monotone_sequence_is_left_alone_and_another_becomes_one() -> None:
    assert monotone([1, 2, 2, 5]) == [1, 2, 2, 5]
    assert monotone([10, 11, 90, 12]) == [10, 11, 12, 12]


def test_a_curve_with_missing_sizes_is_found_again_from_few_knots() -> None:
    def truth(size: float) -> float:
        return 20 + size / 4e5

    random = Random(1)
    sizes = [2.0**power for power in range(10, 32) if power not in (20, 21, 23, 24, 27)]
    knots = fitting.knots((size, truth(size) * random.uniform(0.98, 1.02)) for size in sizes)
    assert len(knots) <= 12
    assert all(before[1] <= after[1] for before, after in pairwise(knots))
    nbytes, us = zip(*knots, strict=True)
    curve = Curve("all_gather", 2, 1, nbytes, us)
    assert max(abs(curve.at(2.0**power, "") / truth(2.0**power) - 1) for power in range(10, 32)) < 0.1


def test_a_surface_is_found_again_with_holes_in_it() -> None:
    def row(b: int, m: int, n: int, k: int) -> Matmul:
        us = 5 + 2 * b * m * n * k / 500e6
        return Matmul("device", "bf16", (b, m, n, k), us, False)

    sides = [256 * 2**i for i in range(5)]
    rows = [row(b, m, n, k) for b in (1, 4) for m in sides for n in sides for k in sides]
    kept = [one for at, one in enumerate(rows) if at % 3]
    (surface,) = fitting.surfaces("bf16", kept, 1000)
    assert surface.batched is None
    assert max(abs(surface.us(*one.shape) / one.us - 1) for one in rows) < 0.02


def test_batches_get_a_surface_of_their_own_where_they_behave_otherwise() -> None:
    sides = [256 * 2**i for i in range(4)]
    rows = [
        Matmul("device", "bf16", (b, m, n, k), 5 + b * m * n * k / (200e6 if b == 1 else 100e6), False)
        for b in (1, 2, 4) for m in sides for n in sides for k in sides
    ]  # fmt: skip
    assert [one.batched for one in fitting.surfaces("bf16", rows, 1000)] == [False, True]


def test_rates_beyond_the_peak_are_capped() -> None:
    rows = [Matmul("device", "f32", (1, m, m, k), 0.001, False) for m in (256, 512) for k in (256, 512)]
    (surface, *_) = fitting.surfaces("f32", rows, 100)
    assert surface.top_tflops == pytest.approx(100)


def test_without_rows_there_is_a_line_and_no_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.fit", "--data", str(tmp_path)]
    run = subprocess.run(words, check=True, capture_output=True, text=True, cwd=HERE)
    assert run.stdout == f"no measured rows in {tmp_path}: the presets stay as they are, and nothing is judged\n"


@measured
def test_the_presets_are_what_the_fit_writes() -> None:
    timed, shapes = collectives(DATA), matmuls(DATA)
    for recipe in fit.RECIPES:
        path, text = fit.fitted_file(recipe, timed, shapes)
        assert path.read_text() == text, recipe.preset


# Small messages on eight H100 scatter: `python -m bench.scatter` shows that half of all neighbouring sizes fall, and
# that whoever knew the true curves would still miss by more than a fifth. Even the best monotone curves that know the
# held-out rows miss them by 16 %.
OVER = {("sm_90", "collectives <= 1 MiB"): 0.23}


@measured
def test_presets_predict_rows_that_they_were_not_fitted_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        verdicts = fit.judge(collectives(DATA), matmuls(DATA))
    assert len(verdicts) == 13
    for verdict in verdicts:
        assert verdict.weft <= OVER.get((verdict.device, verdict.what), verdict.limit), str(verdict)
        assert not verdict.weft >= verdict.others["torch"], str(verdict)  # there is none for AMD: NaN
