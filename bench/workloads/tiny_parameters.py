"""A model bound by latency: hundreds of parameters, each of them so small that a collective is all overhead."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.cli import tasks


@dataclass(frozen=True)
class TinyParametersConfig:
    """Four parameters a layer, none larger than `width` squared."""

    width: int = 64
    layers: int = 200
    classes: int = 10
    context: int = 1


def tiny_parameters() -> TinyParametersConfig:
    return TinyParametersConfig()


def tiny_parameters_tiny() -> TinyParametersConfig:
    return TinyParametersConfig(width=8, layers=10)


class SmallLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + functional.gelu(self.linear(self.norm(x)))
        return out


class TinyParameters(nn.Module):
    """Vectors [batch, width] to logits [batch, classes], through many small residual layers."""

    def __init__(self, config: TinyParametersConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SmallLayer(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.classes)
        self.apply(tasks.initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.head.weight.dtype)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def batch(config: TinyParametersConfig, size: int, device: tasks.Device = None) -> tasks.Batch:
    vectors = torch.randn(size, config.width, device=device)
    return vectors, torch.randint(config.classes, (size,), device=device)
