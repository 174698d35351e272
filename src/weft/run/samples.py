"""Times of calls that ranks make together: long enough samples, in rounds, agreed on by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

import torch
import torch.distributed as dist

Key = TypeVar("Key")
# What is measured now, and for how many more seconds; None while that is being found out.
Progress: TypeAlias = Callable[[str, float | None], None]

_TRIALS = 3


@dataclass(frozen=True)
class Effort:
    """How much time to spend.

    - `rounds`: samples of each call; the median counts
    - `sample_s`: how long a sample takes at least. A call is repeated so often that noise that comes and goes within
      milliseconds weighs on a short call as it does on a step.
    - `growth`: the factor from one size to the next
    - `longest_s`: sizes grow until a call takes so long
    """

    rounds: int
    sample_s: float
    growth: int
    longest_s: float


FULL = Effort(rounds=7, sample_s=0.02, growth=2, longest_s=0.2)
QUICK = Effort(rounds=5, sample_s=0.01, growth=4, longest_s=0.05)


@dataclass(frozen=True)
class Probe(Generic[Key]):
    """A call to be timed, and what its time is a time of."""

    key: Key
    call: Callable[[], object]


@dataclass(frozen=True)
class Found(Generic[Key]):
    """Probes that are ready to be sampled, and about how many seconds each takes."""

    probes: tuple[Probe[Key], ...]
    seconds: tuple[float, ...]

    def __add__(self, other: Found[Key]) -> Found[Key]:
        return Found(self.probes + other.probes, self.seconds + other.seconds)


def found(probes: Iterable[Probe[Key]], device: torch.device) -> Found[Key]:
    """Run each probe for the first time, which also makes room and picks algorithms."""
    ready = tuple(probes)
    return Found(ready, tuple(_first(probe.call, device) for probe in ready))


def grown(batches: Iterable[Sequence[Probe[Key]]], effort: Effort, device: torch.device) -> Found[Key]:
    """Probes batch by batch, each larger than the one before, until one takes too long; at least two batches."""
    whole: Found[Key] = Found((), ())
    for number, batch in enumerate(batches, 1):
        more = found(batch, device)
        whole += more
        if number >= 2 and max(more.seconds) > effort.longest_s:
            break
    return whole


def sample(ready: Found[Key], effort: Effort, device: torch.device, progress: Progress) -> Mapping[Key, float]:
    """Microseconds of each probe: the median of its samples, and then of all ranks.

    Every round samples every probe, so that a machine that becomes slower does so for all of them.
    """
    repeats = [max(1, ceil(effort.sample_s / seconds)) for seconds in ready.seconds]
    spans = [times * seconds for times, seconds in zip(repeats, ready.seconds, strict=True)]
    left = effort.rounds * sum(spans)
    taken: list[list[float]] = [[] for _ in ready.probes]
    for _ in range(effort.rounds):
        for place, probe in enumerate(ready.probes):
            progress(str(probe.key), left)
            taken[place].append(_sample_us(probe.call, repeats[place], device))
            left -= spans[place]
    ranks = from_all([median(times) for times in taken])
    return {probe.key: median(times) for probe, *times in zip(ready.probes, *ranks, strict=True)}


def from_all(value: Any) -> list[Any]:
    """What every rank has to say, in their order."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _first(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call on the slowest rank: all ranks have to repeat it equally often.

    The quickest of a few, so that a moment in which the machine did something else does not end the growth of sizes.
    """
    call()
    quickest = min(_sample_us(call, 1, device) for _ in range(_TRIALS))
    seconds: float = max(from_all(quickest)) / 1e6
    return seconds


def _sample_us(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Microseconds of a call in a row of them. The host's clock will do for accelerators too: the row is long."""
    dist.barrier()
    _synchronise(device)
    begin = perf_counter()
    for _ in range(repeats):
        call()
    _synchronise(device)
    return (perf_counter() - begin) * 1e6 / repeats


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
