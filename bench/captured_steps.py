"""The steps that `bench.captured` runs, as a rank captures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from bench.workloads.parallel import layer_plan, settled
from weft.cli.llama import Llama, LlamaConfig, LlamaLayer, SwiGLU, batch
from weft.cli.rotary import angles
from weft.cli.tasks import initialise, loss
from weft.parallel import data_parallel
from weft.parallel.checks import Mode
from weft.run.hosts import RANKS
from weft.run.steps import Step, captured_step


@dataclass(frozen=True)
class Size:
    """How large a step is: the model, and the samples of a rank."""

    config: LlamaConfig
    samples: int


# About 250 ms on a core; a TP rank receives 1 MB for each gather.
_BLOCK = Size(LlamaConfig(width=1024, heads=16, kv_heads=8, hidden=2816, context=512), samples=1)
# Many tokens for few weights, and few layers: on one core, a model with more would need a link that keeps the core
# busy, and the collectives of many small weights take a while at any rate.
_MODEL = Size(
    LlamaConfig(vocabulary=512, width=384, layers=2, heads=6, kv_heads=6, hidden=1056, context=256), samples=6
)
SIZES: Mapping[str, Size] = {"tp": _BLOCK, "fsdp": _MODEL, "ddp": _MODEL}


def step(name: str, size: Size) -> Step:
    """This rank's part of one of SIZES, captured in the process group that is here."""
    if name == "tp":
        return _tensor_parallel(size)
    return _data_parallel(size, "fully_shard" if name == "fsdp" else "replicate")


def _tensor_parallel(size: Size) -> Step:
    """A block with tensor and sequence parallelism, forward and backward, between two others that are not here."""
    mesh, config = init_device_mesh("cpu", (RANKS,)), size.config
    torch.manual_seed(0)
    layer = LlamaLayer(config, SwiGLU(config.width, config.hidden)).apply(initialise)
    parallelize_module(layer, mesh, layer_plan(), src_data_rank=None)
    shape = (size.samples, config.context, config.width)
    given, arrives = (torch.randn(shape).chunk(RANKS, dim=1)[mesh.get_rank()].contiguous() for _ in range(2))
    turns = angles(config.context, config.head_width, config.rotary_base, torch.device("cpu"))
    return captured_step(_block_step, (layer, given.requires_grad_(), turns, arrives))


def _block_step(layer: nn.Module, given: Tensor, turns: Tensor, arrives: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the block gives, and the gradient of what it was given; `arrives` is the gradient of what it gives."""
    result: Tensor = layer(given, turns)
    torch.autograd.backward(result, arrives)
    _settle(layer)
    return result.detach(), given.grad


def _data_parallel(size: Size, mode: Mode) -> Step:
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    model = data_parallel(Llama(size.config), mesh, mode)
    torch.manual_seed(1 + mesh.get_rank())
    return captured_step(_model_step, (model, *batch(size.config, size.samples)))


def _model_step(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    found = loss(model, tokens, targets)
    torch.autograd.backward(found)
    return found.detach()


def _settle(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = settled(parameter, parameter.grad)
