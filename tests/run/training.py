"""A small model that is trained in every way that people train: what a rank does, and what it ends with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft
from weft.parallel import data_parallel

WIDTH, BATCH, STEPS = 16, 8, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """Two blocks, computed twice in the backward if they are `checkpointed`."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


@dataclass(frozen=True)
class Case:
    """What is trained and how.

    - `kind`: "ddp", "fsdp", "hsdp" or "tp", which has the batch sharded between the layers
    - `gradients`: the dtype in which gradients travel, of a data parallel model
    - `micro_batches`: how many backwards there are before a step
    - `evaluated`: every few steps, the model is called without gradients
    - `lengths`: the sizes of batches, in turn; if it is for one `alone`, only the last rank sees others than the first
    """

    kind: str
    gradients: torch.dtype | None = None
    micro_batches: int = 1
    checkpointed: bool = False
    evaluated: bool = False
    lengths: tuple[int, ...] = (BATCH,)
    alone: bool = False


@dataclass(frozen=True)
class Trained:
    """The losses of all steps, the parameters in the end, and what Weft had to say."""

    losses: list[Tensor]
    parameters: list[Tensor]
    reports: list[str]
    warned: list[str]


Compile = Callable[[nn.Module], Callable[[Tensor], Tensor]]


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(0)
    net, world = Net(case.checkpointed), dist.get_world_size()
    if case.kind == "tp":
        up, down = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
        plan = {"layers.*.up": up, "layers.*.down": down}
        return parallelize_module(net, init_device_mesh("cpu", (world,)), plan)
    mode = {"ddp": "replicate", "fsdp": "fully_shard", "hsdp": "hybrid_shard"}[case.kind]
    shape = (2, world // 2) if case.kind == "hsdp" else (world,)
    return data_parallel(net, init_device_mesh("cpu", shape), mode, reduce_dtype=case.gradients)  # type: ignore[arg-type]


def trained(rank: int, case: Case, compiled: Compile) -> Trained:
    """Train for STEPS steps."""
    torch._dynamo.reset()
    model = model_of(case)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        losses = _train(rank, case, model, compiled(model))
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    reports = [str(report) for role in ("forward", "backward") if (report := weft.last_report(role)) is not None]
    texts = [str(one.message) for one in warned if issubclass(one.category, weft.WeftWarning)]
    return Trained(losses, [one.detach().clone() for one in whole], reports, texts)


def _train(rank: int, case: Case, model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = torch.Generator().manual_seed(rank if case.kind != "tp" else 0)
    losses = []
    for step in range(STEPS):
        if case.evaluated and step % 5 == 2:
            with torch.no_grad():
                losses.append(run(_batch(case, rank, step, numbers)).square().mean())
        for _ in range(case.micro_batches):
            loss = run(_batch(case, rank, step, numbers)).square().mean()
            (loss / case.micro_batches).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _batch(case: Case, rank: int, step: int, numbers: torch.Generator) -> Tensor:
    """Of a tensor parallel model each rank gets its share of one batch."""
    changes = not case.alone or rank == dist.get_world_size() - 1
    length = case.lengths[step % len(case.lengths) if changes else 0]
    whole = torch.randn(length, WIDTH, generator=numbers)
    return whole.chunk(dist.get_world_size())[rank] if case.kind == "tp" else whole


def compare(rank: int, cases: Sequence[Case], ways: Sequence[dict[str, Any] | None]) -> list[list[Trained]]:
    """For each case, what comes of each way: None is as written, {} torch.compile alone, else options of Weft."""
    found = []
    for number, case in enumerate(cases):
        found.append([trained(rank, case, _compiled(way, f"{number} {place}")) for place, way in enumerate(ways)])
    return found


def _compiled(way: dict[str, Any] | None, label: str) -> Compile:
    if way is None:
        return lambda model: model
    if not way:
        return torch.compile
    return lambda model: weft.compile(model, label=label, **way)
