"""Weft inside of torch.compile: one line of a training script.

torchrun --nproc-per-node=2 examples/compiled.py
python examples/compiled.py 64
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _run import main, step
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from weft.parallel import data_parallel


def mesh_for(world_size: int) -> dict[str, int]:
    """The names and sizes of the mesh."""
    return {"data": world_size}


def build(mesh: DeviceMesh) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The training step and what it is called with: a model, its optimiser, a batch and its targets."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(2)]
    model = data_parallel(nn.Sequential(*layers), mesh, mode="fully_shard")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(mesh.get_rank())
    planned = dist.get_backend() == "fake"  # ranks that are only planned have nothing to compile for
    compiled = model if planned else torch.compile(model, backend="weft")
    return step, (compiled, optimizer, torch.randn(32, 256), torch.randn(32, 256))


if __name__ == "__main__":
    main(mesh_for, build)
