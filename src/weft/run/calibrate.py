"""`calibrate`: measures the cluster that is here, and describes it as a machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from time import perf_counter

import torch
import torch.distributed as dist

from weft.cost.curves import Curve
from weft.cost.matmul import Surface
from weft.cost.topology import Level
from weft.errors import WeftError
from weft.run import fit
from weft.run.benchmark import device_name, free_bytes, present_device
from weft.run.machine_text import machine_text
from weft.run.probes import DTYPES, KINDS, Key, Product, Ranks, Transfer, beside, collectives, groups, kernels, matmuls
from weft.run.samples import FULL, Effort, Found, Progress, found, from_all, grown, sample

_MEMORY_SHARE = 1 / 32  # of what is free, for the largest tensor: every size has one, and every kind a result
_FLIGHT_US = 5000.0  # about how long the collectives fly beside which matmuls are measured
_COVER = 3  # and for how many times as long the matmuls go on: so long that they do not end before, slow as they are
_BESIDE = ("all_gather", "reduce_scatter", "all_reduce")  # what training does beside compute


@dataclass(frozen=True)
class Calibration:
    """What was measured, the same on all ranks but for the seconds that it took."""

    accelerator: str
    memory_gb: float
    ranks: int
    memory: fit.Memory
    surfaces: tuple[Surface, ...]
    curves: tuple[Curve, ...]
    levels: tuple[Level, ...]
    start_us: float
    slowdown: float
    fits: tuple[fit.Fit, ...]
    seconds: float

    def text(self, name: str) -> str:
        """The machine as a file that `Machine.load` reads."""
        return machine_text(self, name)


def calibrate(
    effort: Effort = FULL, *, ranks_per_node: int | None = None, progress: Progress = lambda what, left: None
) -> Calibration:
    """Measure what this process group runs on. Every rank must call this, and gets the same answer.

    `ranks_per_node` is how many consecutive ranks make an innermost domain; if not given, those on one host. Raises
    WeftError if there are fewer than two ranks, or hosts have different numbers of them.
    """
    if not dist.is_initialized() or dist.get_world_size() < 2:
        raise WeftError("a calibration measures collectives, which takes two ranks: torchrun --nproc-per-node=2 ...")
    begin = perf_counter()
    device = present_device() if "nccl" in str(dist.get_backend()) else torch.device("cpu")
    inside = _ranks_per_node(ranks_per_node)
    teams = groups(inside)
    with torch.no_grad():
        times = _times(effort, teams, inside, device, progress)
        times = {**times, **_contention(times, effort, teams[-1], device, progress)}
    return _fitted(times, teams, inside, device, perf_counter() - begin)


def _fitted(
    times: Mapping[Key, float], teams: Sequence[Ranks], inside: int, device: torch.device, seconds: float
) -> Calibration:
    memory = fit.memory(times)
    surfaces = [fit.surface(times, dtype) for dtype in DTYPES]
    curves = [fit.curve(times, kind, team.size, team.nodes) for team in teams for kind in KINDS]
    levels, start_us = fit.links([curve for curve, _ in curves], inside if len(teams) > 1 else None)
    # Ranks may have different devices; a machine has one.
    (accelerator, memory_gb), *_ = from_all((device_name(device), _memory_gb(device, inside)))
    return Calibration(
        accelerator=accelerator,
        memory_gb=memory_gb,
        ranks=dist.get_world_size(),
        memory=memory,
        surfaces=tuple(surface for surface, _ in surfaces),
        curves=tuple(curve for curve, _ in curves),
        levels=levels,
        start_us=start_us,
        slowdown=fit.slowdown(times),
        fits=(*(one for _, one in curves), *(one for _, one in surfaces), memory.fit),
        seconds=seconds,
    )


def _times(
    effort: Effort, teams: Sequence[Ranks], inside: int, device: torch.device, progress: Progress
) -> Mapping[Key, float]:
    """Everything that is measured by itself, in one go."""
    progress("finding sizes", None)
    most = min(from_all(free_bytes(device))) * _MEMORY_SHARE
    most = int(most / inside if device.type == "cpu" else most)
    ready: Found[Key] = found(kernels(device), device)
    for dtype in DTYPES:
        ready += grown(matmuls(dtype, most, device), effort, device)
    for team in teams:
        ready += grown(collectives(team, effort.growth, most, device), effort, device)
    return sample(ready, effort, device, progress)


def _contention(
    times: Mapping[Key, float], effort: Effort, team: Ranks, device: torch.device, progress: Progress
) -> Mapping[Key, float]:
    """Matmuls beside collectives of a few milliseconds."""
    flights = [_nearest(times, kind, team) for kind in _BESIDE]
    squares = {
        key.k: us for key, us in times.items() if isinstance(key, Product) and key.dtype == "f32" and key.side == key.k
    }
    side = min(squares, key=lambda k: abs(squares[k] - _FLIGHT_US / 4))  # several for each flight
    times_each = ceil(_COVER * max(times[key] for key in flights) / squares[side])
    ready = found(beside(team, {key.kind: key.nbytes for key in flights}, side, times_each, device), device)
    return sample(ready, effort, device, progress)


def _nearest(times: Mapping[Key, float], kind: str, team: Ranks) -> Transfer:
    """The collective among those measured that takes most nearly as long as a flight should."""
    same = [key for key in times if isinstance(key, Transfer) and key[:3] == (kind, team.size, team.nodes)]
    return min(same, key=lambda key: abs(times[key] - _FLIGHT_US))


def _ranks_per_node(given: int | None) -> int:
    """How many consecutive ranks share a node, by the names of their hosts unless somebody knows better."""
    world = dist.get_world_size()
    if given is not None:
        if given < 1 or world % given:
            raise WeftError(f"{world} ranks cannot be nodes of {given} each")
        return given
    hosts = from_all(socket.gethostname())
    counts = [len(list(ranks)) for _, ranks in groupby(hosts)]
    if len(counts) != len(set(hosts)) or len(set(counts)) > 1:
        raise WeftError(
            f"ranks are not spread evenly over hosts in their order: {', '.join(hosts)}. Start as many on each, or say "
            "with --ranks-per-node how many are neighbours"
        )
    return counts[0]


def _memory_gb(device: torch.device, ranks_per_node: int) -> float:
    """The memory of a rank: that of its accelerator, or its share of the host's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks_per_node / 1e9
