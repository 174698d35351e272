"""What the examples share: plan a step for any world, or train it as a rank of a real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import weft

Build = Callable[[DeviceMesh], tuple[Callable[..., Tensor], tuple[Any, ...]]]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, targets: Tensor) -> Tensor:
    """One step of training; returns the loss."""
    loss = nn.functional.mse_loss(model(batch), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(mesh_for: Callable[[int], dict[str, int]], build: Build) -> None:
    """Train if torchrun started this process; otherwise plan for the number of ranks on the command line."""
    if "RANK" in os.environ:
        train(mesh_for, build)
    else:
        ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 64
        mesh = mesh_for(ranks)
        if (found := prod(mesh.values())) != ranks:
            sys.exit(f"this example has no mesh of {ranks} ranks, but one of {found}: {_text(mesh)}")
        plan(mesh, build)


def plan(mesh: dict[str, int], build: Build) -> None:
    """Capture the step on fake tensors and say what it communicates."""
    with weft.planning(mesh) as made:
        function, args = build(made)
        program = weft.capture(function, args)
    weft.verify(program)
    said = f"{len(program)} ops, {len(program.starts)} collectives on {_text(mesh)}"
    if not program.starts:  # a rank that is alone has nobody to talk to
        print(said)
        return
    print(f"{said}; the first and the last:")
    for op in (program.starts[0], program.starts[-1]):
        print(f"  {weft.print_op(op)}")


def _text(mesh: dict[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in mesh.items())


def train(mesh_for: Callable[[int], dict[str, int]], build: Build, steps: int = 5) -> None:
    """Train for a few steps on Gloo."""
    dist.init_process_group("gloo")
    mesh = mesh_for(dist.get_world_size())
    function, args = build(init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh)))
    for number in range(steps):
        loss = function(*args)
        if dist.get_rank() == 0:
            print(f"step {number}: loss {loss:.6f}")
    dist.destroy_process_group()
