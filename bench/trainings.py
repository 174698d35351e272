"""Steps of training that `bench.real` runs: forward, backward and optimiser of a Llama that two ranks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bench.workloads.parallel import tensor_parallel
from weft.cli.llama import Llama, LlamaConfig, batch
from weft.cli.tasks import loss
from weft.parallel import data_parallel
from weft.run.hosts import RANKS

# By default it is 25 MB, and then all gradients of the model below would be in one bucket or two.
_DDP_BUCKET_MB = 1
_LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Size:
    """How large a step is: the model, and the samples of a rank."""

    config: LlamaConfig
    samples: int


# Many tokens for few weights, so that the link is slow: what Gloo and the kernel compute for a byte is not hidden, as
# they share the rank's core. A second or so of compute.
_DATA = Size(LlamaConfig(vocabulary=256, width=256, layers=2, heads=4, kv_heads=4, hidden=704, context=128), samples=40)
# Here it is the width that makes the link slow.
_TENSOR = Size(
    LlamaConfig(vocabulary=256, width=1024, layers=1, heads=16, kv_heads=8, hidden=2816, context=512), samples=1
)
SIZES: Mapping[str, Size] = {"ddp": _DATA, "fsdp": _DATA, "tp": _TENSOR}


@dataclass(frozen=True)
class Training:
    """A model in training. `run` is the model, compiled or not."""

    model: nn.Module
    run: Callable[..., Any]
    inputs: Tensor
    targets: Tensor
    optimizer: torch.optim.Optimizer

    def __call__(self) -> None:
        """One step."""
        self.forward().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forward(self) -> Tensor:
        """The loss."""
        return loss(self.run, self.inputs, self.targets)  # type: ignore[arg-type]

    def state(self) -> list[Tensor]:
        """What this rank holds of each parameter."""
        return [_local(parameter).clone() for parameter in self.model.parameters()]


def training(model: nn.Module, run: Callable[..., Any], given: tuple[Tensor, Tensor]) -> Training:
    return Training(model, run, *given, torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE))


def parallel_model(kind: str, config: LlamaConfig) -> nn.Module:
    """The same model on every call, spread over the ranks the way that one of SIZES says."""
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    model = Llama(config)
    if kind == "tp":
        tensor_parallel(model, mesh)
        return model
    return data_parallel(model, mesh, "fully_shard" if kind == "fsdp" else "replicate")


def torch_ddp(config: LlamaConfig) -> nn.Module:
    """The same model in torch's own wrapper."""
    torch.manual_seed(0)
    return DistributedDataParallel(Llama(config), bucket_cap_mb=_DDP_BUCKET_MB)


def data(kind: str, size: Size, rank: int) -> tuple[Tensor, Tensor]:
    """A rank's own batch; tensor-parallel ranks share one."""
    torch.manual_seed(1 if kind == "tp" else 1 + rank)
    return batch(size.config, size.samples)


def apart(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """The largest difference between two states, relative to the largest number in a parameter."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(one, other, strict=True))


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
