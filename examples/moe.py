"""Mixture of experts, the experts spread over the ranks: plan it for any number of ranks on a laptop, or train it.

python examples/moe.py 64
torchrun --nproc-per-node=2 examples/moe.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _run import main, step
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from weft.parallel import data_parallel

WIDTH, HIDDEN, EXPERTS_PER_RANK, CAPACITY = 128, 256, 2, 8


def mesh_for(world_size: int) -> dict[str, int]:
    """The names and sizes of the mesh."""
    return {"expert": world_size}


class Mixture(nn.Module):
    """Each token goes to the expert that the router likes best, as long as that has room."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group, self.ranks = mesh.get_group(), mesh.size()
        self.router = nn.Linear(WIDTH, EXPERTS_PER_RANK * self.ranks, bias=False)
        self.up = nn.Parameter(torch.empty(EXPERTS_PER_RANK, WIDTH, HIDDEN))
        self.down = nn.Parameter(torch.empty(EXPERTS_PER_RANK, HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights, seats = self.route(x)
        sent = torch.einsum("tec,td->ecd", seats, x)
        # From "my tokens for every expert" to "everybody's tokens for my experts", and back.
        arrived = self.exchange(sent).view(self.ranks, EXPERTS_PER_RANK, CAPACITY, WIDTH)
        work = arrived.transpose(0, 1).reshape(EXPERTS_PER_RANK, self.ranks * CAPACITY, WIDTH)
        done = torch.relu(work @ self.up) @ self.down
        back = done.view(EXPERTS_PER_RANK, self.ranks, CAPACITY, WIDTH).transpose(0, 1)
        returned = self.exchange(back.reshape(-1, CAPACITY, WIDTH))
        return x + torch.einsum("tec,ecd->td", seats * weights, returned)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weight of each token's expert, and its seat there: one of `CAPACITY`, or none."""
        scores = self.router(x).softmax(-1)
        chosen = nn.functional.one_hot(scores.argmax(-1), scores.shape[1])
        seat = (chosen.cumsum(0) - 1) * chosen
        seats = nn.functional.one_hot(seat.clamp(max=CAPACITY), CAPACITY + 1)[..., :CAPACITY] * chosen[..., None]
        return scores[..., None], seats.to(x.dtype)

    def exchange(self, x: Tensor) -> Tensor:
        each = [EXPERTS_PER_RANK] * self.ranks
        y: Tensor = all_to_all_single_autograd(x, each, each, self.group)
        return y


def build(mesh: DeviceMesh) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The training step and what it is called with: a model, its optimiser, a batch and its targets."""
    torch.manual_seed(0)
    layers = [Mixture(mesh), Mixture(mesh)]
    torch.manual_seed(mesh.get_rank())
    for layer in layers:
        data_parallel(layer.router, mesh)  # all ranks route alike; their experts are their own
        nn.init.normal_(layer.up, std=WIDTH**-0.5)
        nn.init.normal_(layer.down, std=HIDDEN**-0.5)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return step, (model, optimizer, torch.randn(32, WIDTH), torch.randn(32, WIDTH))


if __name__ == "__main__":
    main(mesh_for, build)
