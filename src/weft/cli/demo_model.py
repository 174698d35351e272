"""The small model of `weft demo`: two Llama-like layers, sharded over two ranks by hand.

The attention weights are sharded as FSDP does it: gathered before use, their gradients scattered. The MLP is tensor
parallel with the sequence sharded around it: tokens are gathered, the hidden dimension is split, results scattered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import (
    all_gather_single_autograd,
    all_reduce,
    reduce_scatter_single_autograd,
)
from torch.nn import functional

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, TOKENS = 2, 32, 4, 64, 64, 16


def parameters(ranks: int, seed: int) -> list[Tensor]:
    """The shards that one rank holds: embedding, and per layer norm, qkv, out, norm, up, down; then the head."""
    random = torch.Generator().manual_seed(seed)

    def shard(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).mul(shape[-1] ** -0.5)

    layer = [(WIDTH,), (3 * WIDTH // ranks, WIDTH), (WIDTH // ranks, WIDTH), (WIDTH,)]
    layer += [(HIDDEN // ranks, WIDTH), (WIDTH, HIDDEN // ranks)]
    shapes = [(VOCABULARY // ranks, WIDTH), *(layer * LAYERS), (VOCABULARY // ranks, WIDTH)]
    return [shard(*shape) for shape in shapes]


def tokens(seed: int) -> tuple[Tensor, Tensor]:
    """One rank's batch: tokens and the tokens that follow them."""
    random = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCABULARY, (TOKENS + 1,), generator=random)
    return text[:-1], text[1:]


@dataclass(frozen=True)
class Step:
    """A training step. `data` is the group over which weights are sharded, `tensor` the one that shares an MLP."""

    data: dist.ProcessGroup
    tensor: dist.ProcessGroup

    def __call__(self, shards: list[Tensor], text: Tensor, following: Tensor) -> list[Tensor]:
        """The loss, averaged over the ranks, and the gradient of every shard."""
        leaves = [shard.detach().requires_grad_() for shard in shards]
        loss = functional.cross_entropy(self.forward(leaves, text), following)
        gradients = torch.autograd.grad(loss, leaves)
        # Weights are sharded, so their gradients come out summed; norms are whole on every rank, and are averaged.
        averaged = [all_reduce(one, "avg", self.data) if one.dim() == 1 else one for one in gradients]
        return [all_reduce(loss.detach(), "avg", self.data), *averaged]

    def forward(self, shards: list[Tensor], text: Tensor) -> Tensor:
        embedding, *rest, head = shards
        x = functional.embedding(text, self.whole(embedding))
        for layer in range(LAYERS):
            norm, qkv, out, norm_mlp, up, down = rest[6 * layer : 6 * layer + 6]
            x = x + _attention(functional.rms_norm(x, (WIDTH,), norm), self.whole(qkv), self.whole(out))
            x = x + self.mlp(functional.rms_norm(x, (WIDTH,), norm_mlp), up, down)
        return torch.mm(x, self.whole(head).t())

    def mlp(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        everybodys = all_gather_single_autograd(x, 0, self.tensor)
        hidden = functional.silu(everybodys @ up.t())
        own: Tensor = reduce_scatter_single_autograd(hidden @ down.t(), "sum", 0, self.tensor)
        return own

    def whole(self, shard: Tensor) -> Tensor:
        whole: Tensor = all_gather_single_autograd(shard, 0, self.data)
        return whole


def _attention(x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    q, k, v = (part.view(TOKENS, HEADS, -1).transpose(0, 1) for part in (x @ qkv.t()).chunk(3, dim=-1))
    scores = (q @ k.transpose(1, 2)) * (WIDTH // HEADS) ** -0.5
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=x.device).triu(1)
    mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return torch.mm(mixed.transpose(0, 1).reshape(TOKENS, WIDTH), out.t())
