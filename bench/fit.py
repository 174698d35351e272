"""Fits the presets' curves and matmul surfaces to measured rows, and reports how well they predict rows held out.

    python -m bench.fit                   # judge
    python -m bench.fit --write           # fit the presets anew first
    python -m bench.fit --data DIR        # where collectives.csv and matmuls.csv are

The report is about a row in five, chosen by a hash of the row, and about presets that were fitted without those rows.
The presets in the tree are then fitted on all rows: what was judged is the way in which they were made.
"""

from __future__ import annotations

import argparse
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench import fitting
from bench.measured import Matmul, Timed, collectives, matmuls, torch_collective_us
from weft.cost.analytic import analytic_us
from weft.cost.curves import Curve
from weft.cost.fitting import monotone
from weft.cost.machine import Machine
from weft.cost.matmul import Surface, flop_us
from weft.cost.topology import place
from weft.cost.writing import curve_text, surface_text
from weft.errors import WeftWarning

DATA = Path("../shared/data")
MARK = "# Fitted by `python -m bench.fit --write`, which replaces everything from here on."
_SOURCE = "the default performance tables of OpenXLA (Apache-2.0)"
_SMALL = 2**20
_HEADING = """\
Mean absolute relative error on rows that were held out, of presets that were fitted on the others. Beside it: that on
the rows they were fitted on; that of the best monotone curves in hindsight, which know the held-out rows; of the
analytic model; of torch's.
"""

Row = TypeVar("Row", Timed, Matmul)

# The device of the data that each preset was measured on, or is derived from.
_JUDGED = {
    "sm_90": "h100-ib400",
    "sm_100_B200": "b200-ib400",
    "sm_100_GB200": "gb200-nvl72",
    "sm_103": "gb300-nvl72",
    "gfx950": "mi355x-roce400",
}


@dataclass(frozen=True)
class Recipe:
    """Where a preset's knots come from. `reach` moves curves to so many times the bytes in the same time."""

    preset: str
    links: str | None  # the device of its curves, if any
    maths: str  # the device of its matmuls
    about: str  # what is derived, and how
    reach: float = 1.0


_MATHS_OF_B200 = "Matmuls: those of the B200, their arithmetic scaled by the ratio of the peaks; nobody measured these."
RECIPES = (
    Recipe("h100-ib400", "sm_90", "sm_90", "Measured on eight H100."),
    Recipe("h100-eth100", "sm_90", "sm_90", "Measured on eight H100."),
    Recipe("h200-ib400", "sm_90", "sm_90", "Measured on eight H100, which have the same NVLink and tensor cores."),
    Recipe(
        "a100-ib200", None, "sm_90",
        "Matmuls: those of the H100, their arithmetic scaled by the ratio of the peaks; nobody measured these.",
    ),
    Recipe("b200-ib400", "sm_100_B200", "sm_100_B200", "Measured on eight B200."),
    Recipe("gb200-nvl72", "sm_100_GB200", "sm_100_B200", f"Curves: measured on a rack of GB200. {_MATHS_OF_B200}"),
    Recipe("gb300-nvl72", "sm_103", "sm_100_B200", f"Curves: measured on a rack of GB300. {_MATHS_OF_B200}"),
    Recipe("mi355x-roce400", "gfx950", "gfx950", "Measured on eight MI355X."),
    Recipe(
        "mi300x-roce400", "gfx950", "gfx950",
        "Derived from eight MI355X; nobody measured these. Curves: 0.78 of the bytes in the same time, as a link "
        "carries 48 GB/s here and 61.5 there. Matmuls: the arithmetic scaled by the ratio of the peaks.",
        reach=48 / 61.5,
    ),
)  # fmt: skip


# Fitting


def fit(recipe: Recipe, timed: list[Timed], shapes: list[Matmul]) -> str:
    """The fitted part of a preset's file, from these rows."""
    machine, reference = Machine.load(recipe.preset), Machine.load(_JUDGED[recipe.maths])
    pieces = [MARK, textwrap.fill(f"# Knots from {_SOURCE}. {recipe.about}", 118, subsequent_indent="# ")]
    points: dict[tuple[str, int], list[fitting.Point]] = defaultdict(list)
    for row in timed:
        if row.device == recipe.links:
            points[row.kind, row.ranks].append((row.nbytes * recipe.reach, row.us))
    for kind, ranks in sorted(points):
        sizes, us = zip(*fitting.knots(points[kind, ranks]), strict=True)
        pieces.append(f"\n{curve_text(Curve(kind, ranks, 1, sizes, us))}")
    for dtype in ("f32", "bf16", "f8e4m3fn"):
        rows = [row for row in shapes if (row.device, row.dtype) == (recipe.maths, dtype)]
        pieces += [f"\n{surface_text(one)}" for one in _surfaces(dtype, rows, machine, reference)]
    return "\n".join(pieces)


def _surfaces(dtype: str, rows: list[Matmul], machine: Machine, reference: Machine) -> Iterator[Surface]:
    """The surfaces of a dtype, if the machine has it: it may write f8 in its own way."""
    own = machine.accelerator.f32_matmuls if dtype == "f32" else dtype
    own = f"{own}uz" if f"{own}uz" in machine.accelerator.tflops else own
    if not rows or own not in machine.accelerator.tflops:
        return
    peak = reference.peak_tflops(dtype)
    for surface in fitting.surfaces(own, rows, peak):
        yield fitting.scaled(surface, machine.peak_tflops(own) / peak)


def fitted_file(recipe: Recipe, timed: list[Timed], shapes: list[Matmul]) -> tuple[Path, str]:
    """A preset's file, and what is to stand in it: what people wrote, and after that what was fitted."""
    path = Machine.load(recipe.preset).path
    assert path is not None
    kept = path.read_text(encoding="utf-8").split(MARK)[0].rstrip()
    return path, f"{kept}\n\n{fit(recipe, timed, shapes)}\n"


# Judging


@dataclass(frozen=True)
class Verdict:
    """How far predictions are from rows of one sort, as mean absolute relative errors; NaN where there is no model."""

    device: str
    what: str
    rows: int
    weft: float
    limit: float
    others: dict[str, float]

    @property
    def holds(self) -> bool:
        return self.weft <= self.limit

    def __str__(self) -> str:
        others = "  ".join(f"{name} {_percent(error)}" for name, error in self.others.items())
        state = "ok  " if self.holds else "OVER"
        found = f"{_percent(self.weft)} of {self.limit:.0%} {state}"
        return f"{self.device:<13} {self.what:<20} {self.rows:>4} rows  {found}  {others}"


def judge(timed: list[Timed], shapes: list[Matmul]) -> list[Verdict]:
    """What presets predict of the rows held out if they are fitted on the others, by device."""
    known, known_shapes = [row for row in timed if not row.held_out], [row for row in shapes if not row.held_out]
    recipes = {recipe.preset: recipe for recipe in RECIPES}
    found = []
    for device, preset in _JUDGED.items():
        with TemporaryDirectory() as folder:
            path = Path(folder, f"{preset}.toml")
            path.write_text(fitted_file(recipes[preset], known, known_shapes)[1], encoding="utf-8")
            machine = Machine.load(path)
        rows = [row for row in timed if row.device == device]
        found.append(_judge_collectives(device, machine, rows, large=True))
        found.append(_judge_collectives(device, machine, rows, large=False))
        large = [row for row in shapes if row.device == device and row.held_out and row.large]
        if large:
            found.append(_judge_matmuls(device, machine, large))
    return found


def _overall(verdicts: list[Verdict]) -> Iterator[Verdict]:
    """The mean over the rows of all devices."""
    for what in dict.fromkeys(verdict.what for verdict in verdicts):
        same = [verdict for verdict in verdicts if verdict.what == what]
        rows = sum(verdict.rows for verdict in same)
        error = sum(verdict.weft * verdict.rows for verdict in same) / rows
        yield Verdict("all", what, rows, error, same[0].limit, {})


def _judge_collectives(device: str, machine: Machine, rows: list[Timed], large: bool) -> Verdict:
    def reckoned(row: Timed) -> float:
        placement = place(machine.levels, tuple(range(row.ranks)))
        return machine.start_us + analytic_us(row.kind, placement, row.nbytes, machine.protocols)

    def weft(row: Timed) -> float:
        return machine.collective_us(row.collective(), row.nbytes)

    best = _in_hindsight(rows)
    same = [row for row in rows if (row.nbytes > _SMALL) == large]
    judged = [row for row in same if row.held_out]
    return Verdict(
        device,
        "collectives > 1 MiB" if large else "collectives <= 1 MiB",
        len(judged),
        _error(judged, weft),
        0.1 if large else 0.2,
        {
            "fitted rows": _error([row for row in same if not row.held_out], weft),
            "hindsight": _error(judged, best.__getitem__),
            "analytic": _error(judged, reckoned),
            "torch": _error(judged, lambda row: torch_collective_us(row, machine)),
        },
    )


def _judge_matmuls(device: str, machine: Machine, rows: list[Matmul]) -> Verdict:
    def roofline(row: Matmul) -> float:
        return flop_us(row.area, row.shape[3], machine.peak_tflops(row.dtype))

    weft = _error(rows, lambda row: machine.matmul_us(row.dtype, *row.shape))
    return Verdict(device, "matmuls >= 1024", len(rows), weft, 0.1, {"torch": _error(rows, roofline)})


def _in_hindsight(rows: list[Timed]) -> dict[Timed, float]:
    """For each row the value of the best monotone curve that knows all rows, held out or not: nothing can be better."""
    curves: dict[tuple[str, int], list[Timed]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.nbytes):
        curves[row.kind, row.ranks].append(row)
    best: dict[Timed, float] = {}
    for curve in curves.values():
        best.update(zip(curve, monotone([row.us for row in curve]), strict=True))
    return best


def _error(rows: list[Row], predict: Callable[[Row], float | None]) -> float:
    errors = [abs(us / row.us - 1) for row in rows if (us := predict(row)) is not None]
    return sum(errors) / len(errors) if errors else nan


def _percent(error: float) -> str:
    return "     -" if isnan(error) else f"{error:6.1%}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=DATA, help="the folder of collectives.csv and matmuls.csv")
    arguments.add_argument("--write", action="store_true", help="fit the presets anew and write them")
    options = arguments.parse_args()
    if not (options.data / "collectives.csv").is_file():
        print(f"no measured rows in {options.data}: the presets stay as they are, and nothing is judged")
        return
    warnings.simplefilter("ignore", WeftWarning)  # held-out rows beyond the last knot are extrapolated, and counted
    timed, shapes = collectives(options.data), matmuls(options.data)
    if options.write:
        for recipe in RECIPES:
            path, text = fitted_file(recipe, timed, shapes)
            path.write_text(text, encoding="utf-8")
    print(_HEADING)
    verdicts = judge(timed, shapes)
    for verdict in (*verdicts, *_overall(verdicts)):
        print(verdict)


if __name__ == "__main__":
    main()
