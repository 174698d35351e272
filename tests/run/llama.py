"""A small Llama-like block, sharded: weights of attention by FSDP-style gathers, the MLP by tensor parallelism."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import (
    all_gather_single_autograd,
    all_reduce,
    reduce_scatter_single_autograd,
)
from torch.nn import functional

WIDTH, HEADS, HIDDEN, TOKENS = 16, 2, 32, 8


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (WIDTH,), self.weight)


class Attention(nn.Module):
    """Weights are sharded over `group` and gathered before use."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.qkv = nn.Parameter(torch.randn(3 * WIDTH // group.size(), WIDTH) / WIDTH**0.5)
        self.out = nn.Parameter(torch.randn(WIDTH // group.size(), WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        qkv = all_gather_single_autograd(self.qkv, 0, self.group)
        out: Tensor = all_gather_single_autograd(self.out, 0, self.group)
        q, k, v = (part.view(TOKENS, HEADS, -1).transpose(0, 1) for part in (x @ qkv.t()).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.mm(mixed.transpose(0, 1).reshape(TOKENS, WIDTH), out.t())


class ParallelMLP(nn.Module):
    """The hidden dimension is split over `group`; the tokens are gathered before and scattered after."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.gate = nn.Linear(WIDTH, HIDDEN // group.size(), bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN // group.size(), bias=False)
        self.down = nn.Linear(HIDDEN // group.size(), WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        everybodys = all_gather_single_autograd(x, 0, self.group)
        hidden = functional.silu(self.gate(everybodys)) * self.up(everybodys)
        own: Tensor = reduce_scatter_single_autograd(self.down(hidden), "sum", 0, self.group)
        return own


class Llama(nn.Module):
    def __init__(self, data: dist.ProcessGroup, tensor: dist.ProcessGroup, layers: int = 2) -> None:
        super().__init__()
        self.data = data
        self.norms = nn.ModuleList(Norm() for _ in range(2 * layers))
        self.attentions = nn.ModuleList(Attention(data) for _ in range(layers))
        self.mlps = nn.ModuleList(ParallelMLP(tensor) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * layer](x))
            x = x + mlp(self.norms[2 * layer + 1](x))
        loss: Tensor = all_reduce(x.square().mean(), "sum", self.data)
        return loss
