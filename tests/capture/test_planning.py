"""What people do with models and meshes before a step is captured, on tensors that have no values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import weft
from weft.parallel import data_parallel


def pair() -> nn.Sequential:
    """Two layers that share their weight."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    return model


def test_a_model_changes_its_dtype_and_keeps_its_parameters() -> None:
    with weft.planning({"data": 2}):
        model = pair()
        weight = model[0].weight
        model.to(torch.bfloat16)
        assert model[1].weight is model[0].weight
        assert model[0].weight is weight
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert model[2].running_mean.dtype == torch.bfloat16
        assert model.double()[0].weight.dtype == torch.float64
        program = weft.capture(model, (torch.ones(2, 4, dtype=torch.float64),))
    assert program["_0_weight"].out[0].dtype == "f64"


def test_a_parallel_model_changes_its_dtype() -> None:
    with weft.planning({"data": 2}) as mesh:
        model = data_parallel(pair(), mesh, "fully_shard").to(torch.bfloat16)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        assert {local.to_local().dtype for local in model.parameters() if isinstance(local, DTensor)} == {
            torch.bfloat16
        }


def test_a_gradient_changes_with_its_parameter() -> None:
    with weft.planning({"data": 2}):
        model = nn.Linear(4, 4)
        model(torch.ones(2, 4)).sum().backward()
        model.bfloat16()
        assert model.weight.grad is not None
        assert model.weight.grad.dtype == torch.bfloat16


def test_meshes_are_flattened_and_made() -> None:
    with weft.planning({"data": 4, "expert": 2}, rank=3) as mesh:
        flat = mesh["data", "expert"]._flatten()
        assert (flat.size(), flat.get_local_rank()) == (8, 3)
        assert DeviceMesh("cpu", [[0, 1, 2, 3], [4, 5, 6, 7]]).get_coordinate() == (0, 3)


def test_planning_puts_back_what_it_changes() -> None:
    before = torch.utils.swap_tensors, DeviceMesh.__init__, DeviceMesh._flatten, DeviceMesh._unflatten
    with pytest.raises(ZeroDivisionError), weft.planning({"data": 2}):
        raise ZeroDivisionError
    assert before == (torch.utils.swap_tensors, DeviceMesh.__init__, DeviceMesh._flatten, DeviceMesh._unflatten)
