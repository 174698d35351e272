"""Real processes: a model spread over several ranks computes what the whole model computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from bench.workloads import WORKLOADS, moe
from bench.workloads.parallel import expert_parallel, expert_parameters, settled, tensor_parallel
from bench.workloads.spread import spread
from bench.workloads.workload import DataParallel
from tests.workloads.models import assert_alike, lively
from weft.cli.tasks import loss
from weft.run import local_ranks


def gradients(value: Tensor, model: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def tensor_ranks_agree(rank: int, mesh: DeviceMesh) -> None:
    """A Llama on two ranks that share a batch, against the whole one."""
    whole, batch = lively("llama")
    expected = loss(whole, *batch)
    model, _ = lively("llama")
    tensor_parallel(model, mesh)
    found = loss(model, *batch)
    assert_alike(found, expected)
    whole_gradients = {}
    for name, gradient in gradients(found, model).items():
        parameter = model.get_parameter(name)
        laid_out = settled(parameter, gradient)
        assert isinstance(parameter, DTensor)
        assert isinstance(laid_out, DTensor)
        assert laid_out.placements == parameter.placements
        whole_gradients[name] = laid_out.full_tensor()
    assert_alike(whole_gradients, gradients(expected, whole))


def expert_ranks_agree(rank: int, mesh: DeviceMesh) -> None:
    """A mixture of which each of two ranks has half of the experts and of the batch, against the whole one."""
    whole, (tokens, targets) = lively("moe", size=4)
    expected = loss(whole, tokens, targets)
    wanted = gradients(expected, whole)
    model, _ = lively("moe", size=4)
    expert_parallel(model, mesh)
    found = loss(model, tokens.chunk(2)[rank], targets.chunk(2)[rank])
    experts = expert_parameters(model)
    assert len(experts) == 6
    means = {}
    for name, gradient in gradients(found, model).items():
        if model.get_parameter(name) in experts:
            wanted[name] = wanted[name].chunk(2)[rank]
        else:
            dist.all_reduce(gradient)
        means[name] = gradient / 2
    assert_alike(means, wanted)
    mean = found.detach().clone()
    dist.all_reduce(mean)
    assert_alike(mean / 2, expected.detach())


def ranks_agree(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    tensor_ranks_agree(rank, mesh)
    expert_ranks_agree(rank, mesh)


@pytest.mark.gloo
def test_two_ranks_compute_what_one_computes() -> None:
    local_ranks(ranks_agree, 2)


def trained(model: nn.Module, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """The losses of three steps. Plain gradient descent: it shows the scale of a gradient, which Adam would hide."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        value = loss(model, tokens, targets)
        optimiser.zero_grad()
        torch.autograd.backward(value)
        optimiser.step()
        losses.append(value.detach())
    return losses


def workload_ranks_agree(rank: int, mode: DataParallel) -> None:
    """The mixture as the benchmark spreads it, two data ranks of two expert ranks, against the whole one."""
    workload = replace(
        WORKLOADS["mixtral_ep8"],
        mesh=(("data", 2), ("expert", 2)),
        config=moe.moe_tiny(),
        dtype=torch.float32,
        data_parallel=mode,
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
    whole, (tokens, targets) = lively("moe", size=4)
    model, _ = lively("moe", size=4)
    spread(workload, model, mesh)
    losses = torch.stack(trained(model, tokens.chunk(4)[rank], targets.chunk(4)[rank]))
    dist.all_reduce(losses)
    assert_alike(losses / 4, torch.stack(trained(whole, tokens, targets)))
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        wanted = whole.get_parameter(name)
        parts = 2 if ".experts." in name else 1
        for found, expected in ((parameter, wanted), (parameter.grad, wanted.grad)):
            assert expected is not None
            assert_alike(found.full_tensor(), expected.chunk(parts)[mesh.get_local_rank("expert") % parts])


def workload_modes_agree(rank: int) -> None:
    workload_ranks_agree(rank, "replicate")
    workload_ranks_agree(rank, "fully_shard")


@pytest.mark.gloo
def test_four_ranks_with_experts_of_their_own_train_like_one() -> None:
    local_ranks(workload_modes_agree, 4)
