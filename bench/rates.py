"""Times of calls that two ranks make in turn, and the rate of a link at which communication takes as long as it should.

`alone` has two calls: what a step computes without its communication, under COMPUTE, and what it communicates without
its compute, under COMMUNICATION. Every rank must call these functions, and gets the same answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist

from bench.hosts import Hosts
from bench.reality import in_turn
from weft.run.probes import waited
from weft.run.samples import from_all

COMPUTE, COMMUNICATION = "compute alone", "communication alone"

_FIRST_RATE, _SLOWEST, _FASTEST = 300e6, 1e6, 1e11  # bits per second
_TUNINGS, _CLOSE = 6, 0.03  # how often a rate is corrected, and how near is near enough
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


def say(rank: int, line: str) -> None:
    """Tell of progress, once."""
    if rank == 0:
        print(line, file=sys.stderr, flush=True)


def measured(calls: Mapping[str, Call], repetitions: int) -> tuple[dict[str, Spread], float]:
    """The times of each call, of the slower rank, in turn; and the share of the cores that others had meanwhile."""
    for call in calls.values():
        call()
    busy, own, begun = _busy_s(), process_time(), perf_counter()
    times = in_turn(calls, repetitions)
    cores = (perf_counter() - begun) * (os.cpu_count() or 1)
    left = _busy_s() - busy - sum(from_all(process_time() - own))
    ranks = from_all(times)
    slower = {name: [max(both) for both in zip(*(one[name] for one in ranks), strict=True)] for name in calls}
    return {name: Spread.of(one) for name, one in slower.items()}, max(0.0, median(from_all(left / cores)))


def tuned(hosts: Hosts, alone: Mapping[str, Call], ratio: float, tries: int) -> float:
    """The rate, in bits per second, at which communication takes `ratio` times as long as compute; it is set."""
    rate = _FIRST_RATE
    for _ in range(_TUNINGS):
        hosts.set_rate(rate)
        times, _ = measured(alone, tries)  # in turn: compute takes longer after something else has had the caches
        off = times[COMMUNICATION].median / times[COMPUTE].median / ratio
        if abs(off - 1) <= _CLOSE:
            break
        rate = min(max(rate * off, _SLOWEST), _FASTEST)
    hosts.set_rate(rate)
    return rate


def slowdown(compute: Call, rate: float, tries: int) -> float:
    """How many times as long compute takes beside communication, by the step's compute beside one long all-reduce.

    A calibration tells it by flights of a few milliseconds, and other processes hold matmuls up for as long.
    """
    alone, _ = measured({COMPUTE: compute}, tries)
    seconds = _FLIGHT * alone[COMPUTE].median / 1e6
    whole = torch.ones(max(1, int(rate / 32 * seconds)))  # each of two ranks sends all of it, 32 bits an element
    world = dist.group.WORLD
    assert world is not None
    start = partial(torch.ops._c10d_functional.all_reduce, whole, "sum", world.group_name)
    calls = {COMPUTE: compute, COMMUNICATION: waited(start), "both": waited(start, compute)}
    times, _ = measured(calls, tries)
    held = times["both"].median - times[COMPUTE].median
    return 1 / (1 - min(max(held / times[COMMUNICATION].median, 0.0), _MOST_HELD))


def _busy_s() -> float:
    """Seconds for which the cores of this machine have been busy, all together."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
