"""Small models with everything that is awkward for data parallelism, and how to train and capture them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

WORDS, WIDTH, BATCH, STEPS = 11, 6, 8, 5


class Net(nn.Module):
    """Tied embedding and head, a scalar, a buffer, sizes that no world divides or that are smaller than it."""

    shift: Tensor

    def __init__(self, hidden: int = 13) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.gains = nn.ParameterList([torch.ones(3, 1), torch.ones(1)])
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words) + self.shift
        hidden = hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        hidden = hidden * self.gains[0].sum() * self.gains[1] * self.scale
        out: Tensor = self.head(hidden)
        return out


def net(hidden: int = 13) -> Net:
    torch.manual_seed(0)
    return Net(hidden)


def batch(step: int) -> Tensor:
    return torch.randint(0, WORDS, (BATCH,), generator=torch.Generator().manual_seed(step))


def loss_of(model: Callable[[Tensor], Tensor], words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(words).float(), (words * 3 + 1) % WORDS)


def train(
    model: nn.Module,
    call: Callable[[Tensor], Tensor] | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    micro_batches: int = 1,
    foreach: bool = True,
) -> dict[str, Tensor]:
    """Five AdamW steps on this rank's part of each batch: the losses, averaged over ranks, and the whole parameters."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=foreach)
    losses = []
    for step in range(STEPS):
        optimiser.zero_grad()
        total = torch.zeros(())
        for micro in batch(step).chunk(world)[rank].chunk(micro_batches):
            loss = loss_of(model if call is None else call, micro) / micro_batches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimiser.step()
        if world > 1:
            dist.all_reduce(total)
        losses.append(total / world)
    return {"losses": torch.stack(losses), **whole(model)}


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with every DTensor gathered."""
    return {
        name: value.full_tensor().detach() if isinstance(value, DTensor) else value.detach().clone()
        for name, value in model.state_dict().items()
    }


@contextmanager
def fake_world(size: int, rank: int = 0) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def step_graph(
    model: nn.Module, loss: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor], words: Tensor
) -> GraphModule:
    """Forward, loss and gradients as one graph whose inputs are the shards."""
    named = dict(model.named_parameters())

    def step(shards: dict[str, Tensor], buffers: dict[str, Tensor], words: Tensor) -> Any:
        state = buffers | {name: _like(shard, named[name]) for name, shard in shards.items()}
        # Not functional_call: a backward that recomputes must find the same parameters.
        with _reparametrize_module(model, state, tie_weights=True):
            value = loss(model, words)
            return value, torch.autograd.grad(value, list(shards.values()))

    shards = {name: p.to_local().detach().requires_grad_() for name, p in named.items() if isinstance(p, DTensor)}
    return make_fx(step, tracing_mode="fake")(shards, dict(model.named_buffers()), words)


def _like(shard: Tensor, parameter: nn.Parameter) -> DTensor:
    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def collectives(graph: GraphModule) -> dict[str, int]:
    """How often each functional collective occurs."""
    targets = [str(node.target) for node in graph.graph.nodes]
    return dict(sorted(Counter(t.split(".")[1] for t in targets if t.startswith("_c10d_functional.")).items()))
