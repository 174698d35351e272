"""How much measured times of small collectives scatter, and what that leaves to any prediction.

    python -m bench.scatter               # from the rows that presets are fitted on when they are judged
    python -m bench.scatter --data DIR    # where collectives.csv is

A larger message does not take less time, so where neighbouring sizes of a sweep fall, that is scatter. The best
monotone curves in hindsight follow it as far as they can, and so flatter. By how much is found by trial: rising curves,
with the scatter of the measured times drawn anew, so much of it that hindsight misses them by as much as it misses the
measured times. Whoever knows those curves to the letter misses the same times by the error that is printed as `floor`.
With few rows it is too low rather than too high.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path
from random import Random

from bench.measured import Timed, collectives
from weft.cost.fitting import monotone

DATA = Path("../shared/data")
_SMALL = 2**20
_LATENT = 2**16  # up to so many bytes a time is latency
_TRIALS = 20
_HALVINGS = 8

Sweep = Sequence[float]  # the times of one kind among so many ranks, by rising sizes


@dataclass(frozen=True)
class Scatter:
    """What small collectives of a device show: of neighbouring sizes that differ by latency alone, how many there are,
    fall, and differ by more than two; and the mean errors of hindsight and of somebody who knows the true curves."""

    device: str
    rows: int
    pairs: int
    falls: int
    doubled: int
    hindsight: float
    floor: float

    def __str__(self) -> str:
        pairs = f"{self.falls:>3} of {self.pairs:>3} neighbours fall, {self.doubled:>2} differ by more than two"
        return (
            f"{self.device:<13} {self.rows:>4} rows  {pairs}  hindsight {self.hindsight:6.1%}  floor {self.floor:6.1%}"
        )


def scatter(device: str, rows: Sequence[Timed]) -> Scatter:
    """What the small collectives among these rows show."""
    sweeps: dict[tuple[str, int], list[Timed]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.nbytes):
        if row.nbytes <= _SMALL:
            sweeps[row.kind, row.ranks].append(row)
    latent = [pair for sweep in sweeps.values() for pair in pairwise(sweep) if pair[1].nbytes <= _LATENT]
    times = [[row.us for row in sweep] for sweep in sweeps.values()]
    return Scatter(
        device,
        sum(map(len, times)),
        len(latent),
        sum(low.us > high.us for low, high in latent),
        sum(max(low.us, high.us) > 2 * min(low.us, high.us) for low, high in latent),
        _error([monotone(sweep) for sweep in times], times),
        _floor(times),
    )


def _floor(times: Sequence[Sweep]) -> float:
    """The error of the true curves, taken to be those in hindsight, at the scatter at which hindsight misses times as
    it misses these."""
    true = [monotone(sweep) for sweep in times]
    target = _error(true, times)
    strays = [[log(us / at) for us, at in zip(*both, strict=True)] for both in zip(times, true, strict=True)]
    low, high = 0.0, 4.0  # the error of hindsight grows with the scatter
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _trial(true, strays, middle)[0] > target else (middle, high)
    return _trial(true, strays, low)[1]


def _trial(true: Sequence[Sweep], strays: Sequence[Sweep], scale: float) -> tuple[float, float]:
    """The errors of hindsight and of the true curves on times that stray from them as the measured ones, so many times
    as far. A sweep has its own scatter: some have none."""
    random = Random(0)
    hindsight = known = 0.0
    for _ in range(_TRIALS):
        drawn = [
            [at * exp(scale * random.choice(stray)) for at in curve] for curve, stray in zip(true, strays, strict=True)
        ]
        hindsight += _error([monotone(sweep) for sweep in drawn], drawn) / _TRIALS
        known += _error(true, drawn) / _TRIALS
    return hindsight, known


def _error(predicted: Sequence[Sweep], times: Sequence[Sweep]) -> float:
    pairs = [pair for both in zip(predicted, times, strict=True) for pair in zip(*both, strict=True)]
    return sum(abs(guess / us - 1) for guess, us in pairs) / len(pairs)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=DATA, help="the folder of collectives.csv")
    options = arguments.parse_args()
    if not (options.data / "collectives.csv").is_file():
        print(f"no measured rows in {options.data}")
        return
    rows = [row for row in collectives(options.data) if not row.held_out]
    for device in dict.fromkeys(row.device for row in rows):
        print(scatter(device, [row for row in rows if row.device == device]))


if __name__ == "__main__":
    main()
