"""Real ranks: a step captured inside the job, lowered, and run on the rank's own tensors, is the eager step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft
from tests.parallel import models
from weft.ir import Program
from weft.parallel import data_parallel
from weft.parallel.checks import Mode
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

# The shape of the mesh, the mode, the options of data_parallel.
Case = tuple[tuple[int, ...], Mode, dict[str, Any]]
TWO: dict[str, Case] = {
    "replicate": ((2,), "replicate", {}),
    "fully_shard": ((2,), "fully_shard", {}),
    "fully_shard, kept": ((2,), "fully_shard", {"reshard_after_forward": False}),
    "mixed precision": ((2,), "fully_shard", {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}),
}
FOUR: dict[str, Case] = {
    "hybrid_shard": ((2, 2), "hybrid_shard", {}),
    "hybrid_shard, kept": ((2, 2), "hybrid_shard", {"reshard_after_forward": False}),
}


def step(model: nn.Module, words: Tensor) -> Tensor:
    loss = models.loss_of(model, words)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def inputs_of(program: Program, model: nn.Module, *args: Tensor) -> list[Tensor]:
    """What this rank gives to a program: the arguments, and what the model holds under the names of the inputs."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = iter(args)
    return [local(held[op.origin]).detach() if op.origin else next(given) for op in program.inputs]


def compare(model: nn.Module, words: Tensor) -> list[str]:
    """The names of those results of the captured step that are not bit for bit those of the eager one."""
    program = weft.capture(step, (model, words))
    weft.verify(program)
    assert all(parameter.grad is None for parameter in model.parameters())
    found = weft.to_fx(program)(*inputs_of(program, model, words))
    expected = {"loss": step(model, words)}
    expected |= {name: local(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    assert len(expected) == 1 + len(list(model.parameters()))
    return [name for (name, value), one in zip(expected.items(), found, strict=True) if not torch.equal(value, one)]


def agree(rank: int, cases: dict[str, Case]) -> dict[str, list[str]]:
    words = models.batch(0).chunk(dist.get_world_size())[rank]
    differ = {}
    for case, (shape, mode, options) in cases.items():
        model = data_parallel(models.net(), init_device_mesh("cpu", shape), mode, **options)
        differ[case] = compare(model, words)
    return differ


def tensor_parallel_agrees(rank: int) -> dict[str, list[str]]:
    """Two data ranks of two tensor ranks each, which share a batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    words = models.batch(0).chunk(2)[rank // 2]
    differ = {}
    for mode in ("replicate", "fully_shard"):
        model = parallelize_module(models.net(hidden=16), mesh["tensor"], plan)
        differ[mode] = compare(data_parallel(model, mesh["data"], mode), words)
    return differ


def four_ranks(rank: int) -> dict[str, list[str]]:
    return agree(rank, FOUR) | tensor_parallel_agrees(rank)


def test_a_captured_step_is_the_eager_one_on_two_ranks() -> None:
    for differ in local_ranks(agree, 2, TWO):
        assert differ == {case: [] for case in TWO}


@pytest.mark.slow
def test_a_captured_step_is_the_eager_one_on_four_ranks() -> None:
    for differ in local_ranks(four_ranks, 4):
        assert differ == {case: [] for case in (*FOUR, "replicate", "fully_shard")}
