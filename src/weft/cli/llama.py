"""Llama 3 (Llama Team, 2024): RMSNorm before each part, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from weft.cli import tasks
from weft.cli.rotary import angles, rotate


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of the model; `context` is the length of a training sequence."""

    vocabulary: int = 128_256
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    context: int = 8192
    rotary_base: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def llama3_8b() -> LlamaConfig:
    """The sizes of Llama 3 8B."""
    return LlamaConfig()


def llama3_70b() -> LlamaConfig:
    """The sizes of Llama 3 70B."""
    return LlamaConfig(width=8192, layers=80, heads=64, hidden=28_672)


def llama_tiny() -> LlamaConfig:
    """Sizes for tests."""
    return LlamaConfig(vocabulary=64, width=32, layers=2, heads=4, kv_heads=2, hidden=48, context=16)


class Attention(nn.Module):
    """Causal attention in which several query heads share one key and value head.

    The number of heads is read off the projections, so that each rank of a tensor-parallel group may hold some.
    """

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.q = nn.Linear(width, heads * self.head_width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(heads * self.head_width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head_width)) for part in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in (rotate(q, turns), rotate(k, turns), v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class SwiGLU(nn.Module):
    """The gated MLP of Shazeer (2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class LlamaLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to what came in. `turns` are the angles of the positions."""

    def __init__(self, config: LlamaConfig, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config.width, config.heads, config.kv_heads)
        self.mlp_norm = nn.RMSNorm(config.width, config.epsilon)
        self.mlp = mlp

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(nn.Module):
    """Tokens [batch, length] to logits [batch, length, vocabulary]. `mlp` makes a layer's MLP, if not a SwiGLU."""

    def __init__(self, config: LlamaConfig, mlp: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        make_mlp = mlp or (lambda: SwiGLU(config.width, config.hidden))
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(LlamaLayer(config, make_mlp()) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(tasks.initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        turns = angles(tokens.shape[1], self.config.head_width, self.config.rotary_base, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turns)
        logits: Tensor = self.head(self.norm(x))
        return logits


def batch(config: LlamaConfig, size: int, device: tasks.Device = None) -> tasks.Batch:
    """`size` random sequences, and for each token the one that follows it."""
    return tasks.text(config.vocabulary, size, config.context, device)
