"""A Llama whose MLPs are mixtures of experts, as in Mixtral (Jiang et al., 2024): each token goes to its top experts.

Every expert has room for a fixed number of tokens (Lepikhin et al., 2020), so that all shapes are known beforehand; a
token that finds its expert full is passed over by it. Experts may be spread over a group: see `expert_parallel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional

from weft.cli.llama import Llama, LlamaConfig


@dataclass(frozen=True)
class MoEConfig(LlamaConfig):
    """Sizes of the model. An expert has room for `capacity` times the tokens that it would get from an even router."""

    experts: int = 8
    chosen: int = 2
    capacity: float = 1.25


def mixtral_8x7b() -> MoEConfig:
    return MoEConfig(vocabulary=32_000, context=4096, rotary_base=1_000_000.0)


def moe_tiny() -> MoEConfig:
    """With room for every token at every expert: nothing is ever dropped."""
    return MoEConfig(
        vocabulary=64, width=32, layers=2, heads=4, kv_heads=2, hidden=48, experts=4, capacity=2.0, context=16
    )


@dataclass(frozen=True)
class Routes:
    """Where tokens go: per token and choice its place among all experts' rooms, and the weight of what comes back.

    A place is expert * room + position; the one past the last is for choices that found no room.
    """

    places: Tensor
    weights: Tensor
    room: int


class Router(nn.Module):
    """Chooses the top experts of each token; their scores, softmaxed among themselves, weigh the results."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.experts, self.chosen, self.capacity = config.experts, config.chosen, config.capacity
        self.score = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, tokens: Tensor) -> Routes:
        room = ceil(self.capacity * self.chosen * len(tokens) / self.experts)
        scores, experts = self.score(tokens).float().topk(self.chosen, dim=-1)
        choices = experts.flatten()[:, None] == torch.arange(self.experts, device=tokens.device)
        positions = (choices.long().cumsum(0) * choices).sum(1) - 1  # how many chose the same expert before
        places = torch.where(positions < room, experts.flatten() * room + positions, self.experts * room)
        return Routes(places, scores.softmax(-1).type_as(tokens), room)


class Experts(nn.Module):
    """SwiGLU experts. With a group, this rank holds its share, and tokens travel to and fro.

    The matrices of all experts are one below the other: data ranks that shard the rows have equal parts, also where
    there are fewer experts than ranks.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = None
        self.width, self.hidden = config.width, config.hidden
        self.gate = nn.Parameter(torch.empty(config.experts * config.width, config.hidden))
        self.up = nn.Parameter(torch.empty(config.experts * config.width, config.hidden))
        self.down = nn.Parameter(torch.empty(config.experts * config.hidden, config.width))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(self, rooms: Tensor) -> Tensor:
        """`rooms` [all experts, room, width], each expert's tokens of this rank, to the same of results."""
        if self.group is None:
            return self.run(rooms)
        ranks, (experts, room, width) = self.group.size(), rooms.shape
        arrived = _exchange(rooms, self.group).view(ranks, experts // ranks, room, width)  # by rank of origin
        done = self.run(arrived.transpose(0, 1).flatten(1, 2)).view(experts // ranks, ranks, room, width)
        return _exchange(done.transpose(0, 1).flatten(0, 1), self.group)

    def run(self, rooms: Tensor) -> Tensor:
        gate, up = (part.view(-1, self.width, self.hidden) for part in (self.gate, self.up))
        down = self.down.view(-1, self.hidden, self.width)
        return torch.bmm(functional.silu(rooms @ gate) * (rooms @ up), down)


def _exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The i-th part of `x` goes to rank i; what comes from rank i is the i-th part of the result."""
    exchanged: Tensor = all_to_all_single_autograd(x.contiguous(), None, None, group)
    return exchanged


class MoE(nn.Module):
    """The routed MLP."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        routes = self.router(tokens)
        count, chosen, width = self.router.experts, self.router.chosen, tokens.shape[1]
        rooms = tokens.new_zeros(count * routes.room + 1, width)
        rooms = rooms.index_add(0, routes.places, tokens.repeat_interleave(chosen, 0))
        results = self.experts(rooms[:-1].view(count, routes.room, width)).flatten(0, 1)
        nothing = results.new_zeros(1, width)
        found = torch.cat((results, nothing)).index_select(0, routes.places).view(-1, chosen, width)
        mixed: Tensor = (found * routes.weights[..., None]).sum(1)
        return mixed.view_as(x)


class MoETransformer(Llama):
    """Tokens [batch, length] to logits [batch, length, vocabulary]; a Llama in all but its MLPs."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config, lambda: MoE(config))
