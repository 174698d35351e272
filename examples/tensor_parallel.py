"""Tensor parallel, with the sequence sharded in between: plan it for any number of ranks on a laptop, or train it.

python examples/tensor_parallel.py 8
torchrun --nproc-per-node=2 examples/tensor_parallel.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _run import main, step
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def mesh_for(world_size: int) -> dict[str, int]:
    """The names and sizes of the mesh."""
    return {"tensor": world_size}


def build(mesh: DeviceMesh) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The training step and what it is called with: a model, its optimiser, a batch and its targets."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
    model = nn.Sequential(*layers)
    # The batch is sharded between the layers: gathered before the first matmul, scattered after the second.
    plan = {"*.0": ColwiseParallel(input_layouts=Shard(0)), "*.2": RowwiseParallel(output_layouts=Shard(0))}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(mesh.get_rank())
    return step, (model, optimizer, torch.randn(32, 256), torch.randn(32, 256))


if __name__ == "__main__":
    main(mesh_for, build)
