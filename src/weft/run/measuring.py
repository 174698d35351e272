"""Times of whole steps that real ranks make in turn, and the machine that they run on, calibrated on the spot."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist

from weft.cost.machine import Machine
from weft.run.calibrate import calibrate
from weft.run.hosts import Hosts
from weft.run.probes import waited
from weft.run.samples import Effort, from_all

# A rank keeps the memory that it has freed, as the allocators of accelerators do. Otherwise a step that keeps many
# results takes new pages from the system for each, more or fewer of them depending on what was freed before, and its
# communication takes longer by an amount that no machine file could tell. For the environment of the ranks.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_MAX_": "0"}
# Collectives of the size of a small step's take a tenth of a second over a slow link.
EFFORT = Effort(rounds=3, sample_s=0.01, growth=4, longest_s=0.1)

_FLIGHT, _MOST_HELD = 0.6, 0.5  # how long an all-reduce flies beside compute, and how much of that it may hold it up

Call = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """Times in microseconds: the median, and the quartiles between which half of them are."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(times: Sequence[float]) -> Spread:
        low, median, high = quantiles([*times, *times] if len(times) == 1 else times, method="inclusive")
        return Spread(median, low, high)

    def __str__(self) -> str:
        return f"{self.median / 1e3:,.1f} ms ({self.low / 1e3:,.1f} to {self.high / 1e3:,.1f})"


@contextmanager
def local_hosts(limited: bool) -> Iterator[Hosts]:
    """Where ranks run that are measured. Those that are started inside inherit the environment that they need."""
    kept = dict(os.environ)
    os.environ.update(MALLOC)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Hosts(Path(folder), limited)
    finally:
        os.environ.clear()
        os.environ.update(kept)


def calibrated(effort: Effort) -> Machine:
    """The machine as it is now, by way of its file. Every rank must call this, and gets the same."""
    text = calibrate(effort).text("here")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(text)
        return Machine.load(path)


def in_turn(calls: Mapping[str, Call], repetitions: int) -> dict[str, list[float]]:
    """Microseconds of each call, once in each of so many turns; the ranks begin together."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            dist.barrier()
            begin = perf_counter()
            results = call()
            times[name].append((perf_counter() - begin) * 1e6)
            del results  # what a step returns is freed before the next one begins, as in training
    return times


def measured(calls: Mapping[str, Call], repetitions: int) -> tuple[dict[str, Spread], float]:
    """The times of each call, of the slowest rank, in turn; and the share of the cores that others had meanwhile."""
    for call in calls.values():
        call()
    busy, own, begun = _busy_s(), process_time(), perf_counter()
    times = in_turn(calls, repetitions)
    cores = (perf_counter() - begun) * (os.cpu_count() or 1)
    left = _busy_s() - busy - sum(from_all(process_time() - own))
    return slowest(times), max(0.0, median(from_all(left / cores)))


def slowest(times: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """What all ranks measured in the same turns: a turn has taken as long as on the slowest of them."""
    ranks = from_all(times)
    most = {name: [max(turn) for turn in zip(*(one[name] for one in ranks), strict=True)] for name in times}
    return {name: Spread.of(one) for name, one in most.items()}


def slowdown(compute: Call, rate: float, tries: int) -> float:
    """How many times as long compute takes beside communication, by the step's compute beside one long all-reduce.

    A calibration tells it by flights of a few milliseconds, and other processes hold matmuls up for as long.
    """
    alone, flying, both = "compute alone", "communication alone", "both"
    times, _ = measured({alone: compute}, tries)
    seconds = _FLIGHT * times[alone].median / 1e6
    whole = torch.ones(max(1, int(rate / 32 * seconds)))  # each of two ranks sends all of it, 32 bits an element
    world = dist.group.WORLD
    assert world is not None
    start = partial(torch.ops._c10d_functional.all_reduce, whole, "sum", world.group_name)
    times, _ = measured({alone: compute, flying: waited(start), both: waited(start, compute)}, tries)
    held = times[both].median - times[alone].median
    return 1 / (1 - min(max(held / times[flying].median, 0.0), _MOST_HELD))


def _busy_s() -> float:
    """Seconds for which the cores of this machine have been busy, all together."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
