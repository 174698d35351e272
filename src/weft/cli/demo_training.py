"""The first half of `weft demo`: two ranks train a small Llama over a slow link, as it is written and with Weft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import weft
from weft.cli import tasks
from weft.cli.common import warnings_told
from weft.cli.llama import Llama, LlamaConfig, batch
from weft.cli.progress import stage_progress
from weft.cost import Machine
from weft.parallel import data_parallel
from weft.run.hosts import RANKS, Hosts, why_no_link
from weft.run.local import local_ranks
from weft.run.measuring import Spread, calibrated, local_hosts, slowdown, slowest
from weft.run.samples import Effort, from_all

WRITTEN, TRACED, WEFT = "as written", "traced", "Weft"
STEPS = 10
# With this link, what the model below communicates takes about as long as what it computes on one core.
RATE = 150e6  # bits per second

_TRIES = 2  # of what is measured to see how much communication slows compute down
_LEARNING_RATE = 0.05
_TIME_LIMIT_S = 600
_ROLES = ("forward", "backward")


@dataclass(frozen=True)
class Size:
    """How large the training is: the model, the samples of a rank, and how much time a calibration takes."""

    config: LlamaConfig
    samples: int
    effort: Effort


# Many tokens for few weights, as in large models: on one core, more weights would need a faster link, and what Gloo
# and the kernel compute for a byte cannot be hidden.
SMALL = Size(
    LlamaConfig(vocabulary=256, width=192, layers=2, heads=4, kv_heads=4, hidden=512, context=128),
    samples=24,
    effort=Effort(rounds=3, sample_s=0.005, growth=8, longest_s=0.02),
)
TINY = Size(
    LlamaConfig(vocabulary=64, width=32, layers=1, heads=4, kv_heads=2, hidden=48, context=16),
    samples=2,
    effort=Effort(rounds=1, sample_s=1e-4, growth=64, longest_s=1e-4),
)


@dataclass(frozen=True)
class Way:
    """One way to train: the loss of each step, mean of the ranks, and what a step takes without the first one.

    `predicted_us` is what the simulator says of its graphs; None where there are none.
    """

    name: str
    losses: tuple[float, ...]
    took: Spread
    predicted_us: float | None


@dataclass(frozen=True)
class Trained:
    """All ways. `same`: losses and parameters are equal bit by bit, on every rank. `why_no_link`: if it has no rate."""

    ways: tuple[Way, ...]
    same: bool
    why_no_link: str | None


def train(size: Size) -> Trained:
    """Start the ranks, over a link with a rate if that can be had here, and return what they found."""
    why = why_no_link()
    with local_hosts(limited=why is None) as hosts:
        found = local_ranks(_rank, RANKS, hosts, size, time_limit_s=_TIME_LIMIT_S, before=hosts.enter)
    ways, same = found[0]
    return Trained(ways, same, why)


# In a rank


class _Training:
    """A model in training. `run` is the model, compiled or not."""

    def __init__(self, model: nn.Module, run: Callable[..., Any], given: tasks.Batch) -> None:
        self.model, self._run, self._given = model, run, given
        self._optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        self.losses: list[float] = []

    def step(self) -> float:
        """One step; the microseconds that it took."""
        dist.barrier()
        begin = perf_counter()
        loss = tasks.loss(self._run, *self._given)  # type: ignore[arg-type]
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses.append(float(loss.detach()))
        return (perf_counter() - begin) * 1e6

    def state(self) -> list[Tensor]:
        """What this rank holds of each parameter."""
        return [_local(parameter) for parameter in self.model.parameters()]


def _rank(rank: int, hosts: Hosts, size: Size) -> tuple[tuple[Way, ...], bool]:
    given = _batch(rank, size)
    mesh = init_device_mesh("cpu", (RANKS,))
    # Buckets are larger than what so short a calibration measures. Over a link with a rate that needs no warning.
    with warnings_told(quiet=True), stage_progress(quiet=rank != 0) as stage:
        if hosts.limited:
            hosts.set_rate(RATE)
        stage("calibrating the processes and their link")
        machine = _machine(hosts, size, given)
        trainings: dict[str, _Training] = {}
        for name, way in _ways(machine).items():
            stage(f"first step: {name}")
            model = _model(size, mesh)
            trainings[name] = _Training(model, way(model), given)
            trainings[name].step()
        times = _timed(trainings, stage)
    predicted = _predictions()
    ways = (Way(name, _means(one.losses), times[name], predicted.get(name)) for name, one in trainings.items())
    return tuple(ways), all(from_all(_same(trainings)))


def _batch(rank: int, size: Size) -> tasks.Batch:
    """A rank's own samples."""
    torch.manual_seed(1 + rank)
    return batch(size.config, size.samples)


def _model(size: Size, mesh: DeviceMesh) -> nn.Module:
    """The same model on every call."""
    torch.manual_seed(0)
    return data_parallel(Llama(size.config), mesh, "fully_shard")


def _ways(machine: Machine) -> Mapping[str, Callable[[nn.Module], Callable[..., Any]]]:
    return {
        WRITTEN: lambda model: model,
        TRACED: lambda model: torch.compile(model, backend="aot_eager"),
        WEFT: lambda model: weft.compile(model, machine=machine, mode="eager"),
    }


def _machine(hosts: Hosts, size: Size, given: tasks.Batch) -> Machine:
    """The machine as it is. How much slower compute is beside communication is told by a step that is not sharded."""
    machine = calibrated(size.effort)
    if not hosts.limited:
        return machine
    torch.manual_seed(0)
    whole = Llama(size.config)
    return replace(machine, compute_slowdown=slowdown(lambda: tasks.loss(whole, *given).backward(), RATE, _TRIES))  # type: ignore[no-untyped-call]


def _timed(trainings: Mapping[str, _Training], stage: Callable[[str], None]) -> dict[str, Spread]:
    """The other steps. The ways take turns, so that a machine that becomes slower does so for all of them."""
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(2, STEPS + 1):
        stage(f"step {number} of {STEPS}, all ways in turn")
        for name, one in trainings.items():
            times[name].append(one.step())
    return slowest(times)


def _predictions() -> dict[str, float]:
    """What is predicted of the traced graphs, and of those that Weft has made of them."""
    reports = [report for role in _ROLES if (report := weft.last_report(role)) is not None]
    before, after = (sum(side) for side in zip(*((r.before.step_us, r.after.step_us) for r in reports), strict=True))
    return {TRACED: before, WEFT: after}


def _same(trainings: Mapping[str, _Training]) -> bool:
    written = trainings[WRITTEN]
    return all(
        one.losses == written.losses and all(map(torch.equal, one.state(), written.state()))
        for one in trainings.values()
    )


def _means(losses: list[float]) -> tuple[float, ...]:
    return tuple(map(mean, zip(*from_all(losses), strict=True)))


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
