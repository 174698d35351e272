"""What `data_parallel` refuses, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.parallel.models import Net, fake_world
from weft.errors import WeftError
from weft.parallel import data_parallel


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (4,))


def square() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def lines_of(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, outputs))


def twice() -> None:
    data_parallel(data_parallel(nn.Linear(2, 2), line()), line())


def shared_with_a_part() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    data_parallel(model[0], line())
    model[1].weight = model[0].weight
    data_parallel(model, line())


def on_another_device() -> None:
    data_parallel(nn.Linear(2, 2), init_device_mesh("meta", (4,)))


def on_the_data_mesh() -> None:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(DTensor.from_local(torch.ones(1, 4), line(), [Shard(0)]))
    data_parallel(model, line(), "fully_shard")


def unevenly_split_twice() -> None:
    mesh = square()
    data_parallel(
        parallelize_module(lines_of(6), mesh["tensor"], {"0": ColwiseParallel()}), mesh["data"], "fully_shard"
    )


def replaced() -> None:
    model = data_parallel(lines_of(4), line())
    model[0].weight = nn.Parameter(torch.ones(4, 4))  # type: ignore[index]
    model(torch.ones(1, 4))


def stepped_too_early() -> None:
    model = data_parallel(lines_of(4), line(), "fully_shard")
    loss = model(torch.ones(1, 4, requires_grad=True)).sum()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    loss.backward()


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown mode": (
        lambda: data_parallel(Net(), line(), "zero3"),  # type: ignore[arg-type]
        "unknown mode 'zero3'; the modes are replicate, fully_shard, hybrid_shard",
    ),
    "no mesh": (
        lambda: data_parallel(Net(), None),  # type: ignore[arg-type]
        "mesh is None, not a DeviceMesh; make one with torch.distributed.device_mesh.init_device_mesh",
    ),
    "two dimensions": (
        lambda: data_parallel(Net(), square(), "fully_shard"),
        "mode \"fully_shard\" needs a mesh of one dimension, and DeviceMesh((data=2, tensor=2), 'cpu', stride=(2, 1)) "
        'has 2; pass a part of it, such as mesh["data"]',
    ),
    "one dimension": (
        lambda: data_parallel(Net(), line(), "hybrid_shard"),
        'mode "hybrid_shard" needs a mesh of two dimensions, replicas × shards, and '
        "DeviceMesh((4,), 'cpu', stride=(1,)) has 1; make one with init_device_mesh",
    ),
    "no groups": (
        lambda: data_parallel(Net(), DeviceMesh("cpu", [0, 1, 2, 3], _init_backend=False)),
        "DeviceMesh((4,), 'cpu', stride=(1,)) has no process groups; make it with init_device_mesh, which creates them",
    ),
    "another rank": (
        lambda: data_parallel(Net(), DeviceMesh("cpu", [2, 3])),
        "rank 0 is not in DeviceMesh((2,), 'cpu', stride=(1,)); call data_parallel on the ranks of the mesh only",
    ),
    "another device": (
        on_another_device,
        'parameter weight is on cpu and the mesh is of meta devices; move the model first: model.to("meta")',
    ),
    "twice": (twice, "the model (ParallelLinear) was made parallel already; call data_parallel once"),
    "shared with a part": (
        shared_with_a_part,
        "parameter 1.weight is shared with a part of the model that was made parallel already; "
        "call data_parallel on a module that holds all of its uses",
    ),
    "no divisor": (
        lambda: data_parallel(Net(), line(), gradient_divisor=0),
        "gradient_divisor is 0; pass a positive number",
    ),
    "lazy": (
        lambda: data_parallel(nn.Sequential(nn.LazyLinear(3)), line()),
        "parameter 0.weight has no shape yet; run the lazy module once before data_parallel",
    ),
    "scripted": (
        lambda: data_parallel(nn.Sequential(torch.jit.script(nn.Linear(2, 2))), line()),
        "module 0 is a TorchScript module, which cannot be made parallel; use the original module",
    ),
    "on the data mesh": (
        on_the_data_mesh,
        "parameter weight is a DTensor on DeviceMesh((4,), 'cpu', stride=(1,)), which is not another dimension of the "
        "mesh that DeviceMesh((4,), 'cpu', stride=(1,)) is a part of; make one mesh with named dimensions, "
        'and call parallelize_module over mesh["tensor"] and data_parallel over mesh["data"]',
    ),
    "split twice": (
        unevenly_split_twice,
        "parameter 0.weight of shape (6, 4) is split 2 ways by tensor parallelism and cannot be split evenly over 2 "
        'data ranks as well; make dimension 0 a multiple of 4, or use mode="replicate"',
    ),
    "replaced": (
        replaced,
        "parameter 0.weight is no longer a DTensor; keep the parameters that data_parallel made, and load values into "
        "them with load_state_dict",
    ),
    "stepped too early": (
        stepped_too_early,
        "parameter 0.weight was changed between the forward and the backward that gathers it again; step the "
        "optimiser after the backward, or pass reshard_after_forward=False",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals_say_what_to_do(case: str) -> None:
    call, message = CASES[case]
    with fake_world(4), pytest.raises(WeftError) as caught:
        call()
    assert str(caught.value) == message


def test_a_process_group_is_needed() -> None:
    with pytest.raises(WeftError, match=r"no process group is initialised; start the ranks with torchrun"):
        data_parallel(Net(), None)  # type: ignore[arg-type]


def test_outside_a_forward_a_parameter_is_the_one_that_optimisers_see() -> None:
    with fake_world(4):
        model = data_parallel(Net(), line(), "fully_shard")
        assert isinstance(model, Net)
        assert model.up.weight is dict(model.named_parameters())["up.weight"]
        assert model.head.weight is model.embed.weight
        assert isinstance(model.scale, DTensor)
        assert model.scale.placements == (Replicate(),)
        nn.init.ones_(model.up.weight)
        assert isinstance(model.up.weight, DTensor)
        assert model.up.weight.to_local().eq(1).all()
        assert type(model.up).__name__ == "ParallelLinear"
        assert isinstance(model.up, nn.Linear)
