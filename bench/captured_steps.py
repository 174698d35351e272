"""The steps that `bench.captured` runs, as a rank captures them; and the compute and communication of each alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import weft
from bench.hosts import RANKS
from bench.workloads.llama import Llama, LlamaConfig, LlamaLayer, SwiGLU, batch
from bench.workloads.parallel import layer_plan, settled
from bench.workloads.rotary import angles
from bench.workloads.tasks import initialise, loss
from weft.errors import WeftError
from weft.fx.collectives import WAIT, write_collective
from weft.ir import Op, Program
from weft.parallel import data_parallel
from weft.parallel.checks import Mode
from weft.run.inputs import writer

_C10D = torch.ops._c10d_functional


@dataclass(frozen=True)
class Size:
    """How large a step is: the model, and the samples of a rank."""

    config: LlamaConfig
    samples: int


@dataclass(frozen=True)
class Step:
    """A rank's step and its own tensors, in the order of the program's inputs."""

    program: Program
    inputs: tuple[Tensor, ...]

    def call(self, program: Program | None = None) -> Callable[[], Any]:
        """The step, or what became of its program, ready to be run."""
        module = weft.to_fx(self.program if program is None else program)
        return lambda: module(*self.inputs)


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
    return _captured(_block_step, layer, given.requires_grad_(), turns, arrives)


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
    return _captured(_model_step, model, *batch(size.config, size.samples))


def _model_step(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    found = loss(model, tokens, targets)
    torch.autograd.backward(found)
    return found.detach()


def _settle(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = settled(parameter, parameter.grad)


def _captured(function: Callable[..., Any], model: nn.Module, *tensors: Tensor) -> Step:
    program = weft.capture(function, (model, *tensors))
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = iter(tensors)
    return Step(program, tuple(_local(held[op.origin] if op.origin else next(given)) for op in program.inputs))


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


# Compute alone: each collective is done with what this rank has.


def _gathered(own: Tensor, ranks: int, group: str) -> Tensor:
    return torch.cat([own] * ranks)


def _scattered(whole: Tensor, reduce_op: str, ranks: int, group: str) -> Tensor:
    return whole.chunk(ranks)[0].clone()


def _reduced(own: Tensor, reduce_op: str, group: str) -> Tensor:
    return own.clone()


def _awaited(own: Tensor) -> Tensor:
    return own


_ALONE: Mapping[Any, Callable[..., Tensor]] = {
    _C10D.all_gather_into_tensor.default: _gathered,
    _C10D.reduce_scatter_tensor.default: _scattered,
    _C10D.all_reduce.default: _reduced,
    WAIT: _awaited,
}


def compute_alone(step: Step) -> Callable[[], Any]:
    """The step without its communication: same kernels, other numbers."""
    module = weft.to_fx(step.program)
    for node in module.graph.nodes:
        if getattr(node.target, "namespace", "") == "_c10d_functional":
            if node.target not in _ALONE:
                raise WeftError(f"%{node.name}: nothing stands for {node.target} when compute is measured alone")
            node.target = _ALONE[node.target]
    module.recompile()
    return lambda: module(*step.inputs)


def communication_alone(*programs: Program) -> Callable[[], Any]:
    """The collectives of programs, each waited for before the next."""
    calls = [_collective(program, op) for program in programs for op in program.starts]

    def run() -> None:
        for call in calls:
            flying = call()
            for one in flying if isinstance(flying, list) else [flying]:  # a coalesced bucket has several results
                WAIT(one)

    return run


def _collective(program: Program, op: Op) -> Callable[[], Any]:
    kwargs = {name: arg for name, arg in op.kwargs.items() if name != "group"}
    function, args, named = write_collective(replace(op, kwargs=kwargs), writer(program, torch.device("cpu")))
    return lambda: function(*args, **named)
