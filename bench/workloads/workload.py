"""What a workload is: a model, its batch, its loss, and the machines and parallelism that it is meant for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from bench.workloads.gpt2 import GPT2Config
from bench.workloads.tiny_parameters import TinyParametersConfig
from bench.workloads.vit import ViTConfig
from weft.cli.llama import LlamaConfig
from weft.cli.tasks import Batch, Device

Config = LlamaConfig | GPT2Config | ViTConfig | TinyParametersConfig
DataParallel = Literal["replicate", "fully_shard", "hybrid_shard"]


@dataclass(frozen=True)
class Plan:
    """How a model is spread, in place, over one axis of the mesh, before data parallelism is applied to it."""

    axis: str
    apply: Callable[[nn.Module, DeviceMesh], None]


@dataclass(frozen=True)
class Workload:
    """A training step to plan for. Nothing here allocates until `model` or `inputs` is called.

    mesh: the names and sizes of its axes; ranks of the last axis are neighbours. Axes named "data", "replicate",
        "shard" and "expert" see different batches; the ranks of a "tensor" axis share one.
    data_parallel: what keeps the ranks with different batches together, or None if there are none.
    plan: tensor or expert parallelism, or None.
    micro_batch: the samples of one rank in one step.
    dtype: of the weights in matrix products; a data-parallel model keeps its own weights in float32.
    """

    name: str
    description: str
    mesh: tuple[tuple[str, int], ...]
    data_parallel: DataParallel | None
    plan: Plan | None
    micro_batch: int
    config: Config
    make_model: Callable[[Any], nn.Module]
    make_inputs: Callable[[Any, int, Device], Batch]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    dtype: torch.dtype = torch.bfloat16

    @property
    def world_size(self) -> int:
        return prod(size for _, size in self.mesh)

    @property
    def sequence_length(self) -> int:
        """The positions of one sample."""
        return self.config.context

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes of the mesh whose ranks see different batches."""
        return tuple(name for name, _ in self.mesh if name != "tensor")

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The whole model, not yet spread over anything, on torch's default device."""
        with _default_dtype(dtype):
            return self.make_model(self.config)

    def inputs(self, device: Device = None) -> Batch:
        """One rank's batch: `loss(model, *inputs)` is what it trains on."""
        return self.make_inputs(self.config, self.micro_batch, device)

    def with_layers(self, layers: int) -> Workload:
        """The same workload with a model of another depth."""
        return replace(self, config=replace(self.config, layers=layers))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
