"""The layer that GPT-2 and the vision transformer share: LayerNorm before each part, biases everywhere, a GELU MLP."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """`gelu` is "none" for the exact function, "tanh" for the approximation that GPT-2 was trained with."""

    def __init__(self, width: int, heads: int, causal: bool, epsilon: float, gelu: str) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.attention = SelfAttention(width, heads, causal)
        self.mlp_norm = nn.LayerNorm(width, epsilon)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out
