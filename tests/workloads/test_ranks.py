"""Real processes: a model spread over two ranks computes what the whole model computes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from bench.workloads.parallel import expert_parallel, expert_parameters, settled, tensor_parallel
from bench.workloads.tasks import loss
from tests.workloads.models import assert_alike, lively
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
