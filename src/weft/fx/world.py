"""A world to plan in: a process group of any size, and tensors that take no memory, on one machine without peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.errors import GraphError
from weft.fx.fakes import convertible, valued_meshes
from weft.fx.places import called_at


@contextmanager
def planning(mesh: Mapping[str, int], *, rank: int = 0) -> Iterator[DeviceMesh]:
    """Inside, torch.distributed believes in a world of this mesh, and new tensors have shapes but no memory.

    Build models of any size, make them parallel over the mesh that you get, and `capture` their steps:

        with weft.planning({"data": 8, "tensor": 8}) as mesh:
            model = data_parallel(Llama(), mesh["data"], mode="fully_shard")
            program = weft.capture(step, (model, optimizer, batch))

    Everything is put back afterwards. A process that is in a process group already cannot pretend to be in another.
    """
    with world(prod(mesh.values()), rank):
        made = make_mesh(mesh)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, valued_meshes(), convertible(mode):
            yield made


@contextmanager
def world(world_size: int, rank: int = 0) -> Iterator[None]:
    """Inside, torch.distributed believes in `world_size` ranks that answer nothing."""
    if not 0 <= rank < world_size:
        raise GraphError(f"rank {rank} is not one of {world_size} ranks")
    if dist.is_initialized():
        raise GraphError(
            f"this process is already rank {dist.get_rank()} of {dist.get_world_size()}, so it cannot plan for another "
            "world; leave world_size out, or plan in a process of its own"
        )
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_mesh(mesh: Mapping[str, int]) -> DeviceMesh:
    """A mesh of the present world; GraphError if it does not fit."""
    if not dist.is_initialized():
        raise GraphError(
            f"a mesh needs a world, and there is none, at {called_at()}; "
            "say world_size, or initialise torch.distributed first"
        )
    size = prod(mesh.values())
    if size != dist.get_world_size():
        shape = " x ".join(f"{name}={length}" for name, length in mesh.items())
        raise GraphError(
            f"a mesh of {shape} takes {size} ranks, and the world has {dist.get_world_size()}, at {called_at()}; "
            "change one of them so that they agree"
        )
    return init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
