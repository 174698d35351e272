"""What `data_parallel` cannot take, refused in words that say what to do."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parameter import UninitializedParameter

from weft.errors import WeftError
from weft.parallel.modules import SCOPE

Mode = Literal["replicate", "fully_shard", "hybrid_shard"]

Names = Mapping[nn.Parameter, list[str]]


def check_mesh(mesh: DeviceMesh, mode: str) -> None:
    """Raise unless the mode exists and `mesh` is one that it can use from this rank."""
    if mode not in get_args(Mode):
        raise WeftError(f"unknown mode {mode!r}; the modes are {', '.join(get_args(Mode))}")
    if not (dist.is_available() and dist.is_initialized()):
        raise WeftError(
            "no process group is initialised; start the ranks with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    if not isinstance(mesh, DeviceMesh):
        raise WeftError(
            f"mesh is {mesh!r}, not a DeviceMesh; make one with torch.distributed.device_mesh.init_device_mesh"
        )
    wanted = 2 if mode == "hybrid_shard" else 1
    if mesh.ndim != wanted:
        need = "two dimensions, replicas × shards" if wanted == 2 else "one dimension"
        hint = "make one with init_device_mesh" if mesh.ndim < wanted else 'pass a part of it, such as mesh["data"]'
        raise WeftError(f'mode "{mode}" needs a mesh of {need}, and {mesh} has {mesh.ndim}; {hint}')
    if not hasattr(mesh, "_dim_group_names"):
        raise WeftError(f"{mesh} has no process groups; make it with init_device_mesh, which creates them")
    if mesh.get_coordinate() is None:
        raise WeftError(f"rank {dist.get_rank()} is not in {mesh}; call data_parallel on the ranks of the mesh only")


def check_modules(model: nn.Module) -> None:
    """Raise if the model is parallel already or a module in it is of a kind whose class cannot be changed."""
    if SCOPE in vars(model):
        raise WeftError(f"the model ({type(model).__name__}) was made parallel already; call data_parallel once")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"module {name}" if name else "the model"
            raise WeftError(f"{where} is a TorchScript module, which cannot be made parallel; use the original module")


def check_divisor(divisor: float) -> None:
    """Raise unless gradients can be divided by it and keep their direction."""
    if not 0 < divisor < float("inf"):
        raise WeftError(f"gradient_divisor is {divisor}; pass a positive number")


def check_parameters(names: Names, placed: Set[nn.Parameter], mesh: DeviceMesh) -> None:
    """Raise if a parameter has no values yet, is `placed` already or is on another kind of device than the mesh."""
    for parameter, (name, *_) in names.items():
        if parameter in placed:
            raise WeftError(
                f"parameter {name} is shared with a part of the model that was made parallel already; "
                "call data_parallel on a module that holds all of its uses"
            )
        if isinstance(parameter, UninitializedParameter):
            raise WeftError(f"parameter {name} has no shape yet; run the lazy module once before data_parallel")
        if parameter.device.type not in (mesh.device_type, "meta"):
            raise WeftError(
                f"parameter {name} is on {parameter.device} and the mesh is of {mesh.device_type} devices; "
                f'move the model first: model.to("{mesh.device_type}")'
            )


def tensor_mesh(names: Names, mesh: DeviceMesh) -> DeviceMesh | None:
    """The mesh that the DTensors among the parameters share: other dimensions of the mesh that `mesh` is a part of."""
    found: DeviceMesh | None = None
    for parameter, (name, *_) in names.items():
        if not isinstance(parameter, DTensor):
            continue
        own = parameter.device_mesh
        _check_beside(name, own, mesh)
        if found is not None and own != found:
            raise WeftError(
                f"parameter {name} is a DTensor on {own} and another one is on {found}; "
                "use one tensor-parallel mesh for the whole model"
            )
        if any(placement.is_partial() for placement in parameter.placements):
            raise WeftError(f"parameter {name} is a DTensor with a Partial placement; redistribute it first")
        found = own
    return found


def _check_beside(name: str, own: DeviceMesh, mesh: DeviceMesh) -> None:
    same_root = own._get_root_mesh() == mesh._get_root_mesh()
    if same_root and not set(own.mesh_dim_names or ("",)) & set(mesh.mesh_dim_names or ("",)):
        return
    raise WeftError(
        f"parameter {name} is a DTensor on {own}, which is not another dimension of the mesh that {mesh} is a part of; "
        'make one mesh with named dimensions, and call parallelize_module over mesh["tensor"] and data_parallel over '
        'mesh["data"]'
    )
