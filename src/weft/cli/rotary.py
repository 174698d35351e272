"""Rotary position embeddings (Su et al., 2021): pairs of channels are turned by an angle that grows with position."""

from __future__ import annotations

import torch
from torch import Tensor


def angles(length: int, width: int, base: float, device: torch.device) -> Tensor:
    """The angle of each position (rows) and pair of channels (columns), in float32: position * base^(-2 pair / width).

    It is computed, not stored, so that a model built on the meta device has nothing to restore.
    """
    speeds = base ** (-torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    return torch.outer(positions, speeds)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn `x` [batch, length, heads, width] by `turns` [length, width / 2]. Computed in float32; the dtype is kept."""
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = turns.cos()[:, None, :], turns.sin()[:, None, :]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).type_as(x)
