"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm before each part, and one table for tokens and head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.workloads.blocks import Block
from weft.cli import tasks


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of the model; `context` is both the number of positions and the length of a training sequence."""

    vocabulary: int = 50_257
    context: int = 1024
    width: int = 1600
    layers: int = 48
    heads: int = 25


def gpt2_xl() -> GPT2Config:
    return GPT2Config()


def gpt2_tiny() -> GPT2Config:
    return GPT2Config(vocabulary=64, context=16, width=32, layers=2, heads=4)


class GPT2(nn.Module):
    """Tokens [batch, length] to logits [batch, length, vocabulary]. No dropout: a step must be repeatable."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(
            Block(config.width, config.heads, causal=True, epsilon=1e-5, gelu="tanh") for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width, 1e-5)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(tasks.initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def batch(config: GPT2Config, size: int, device: tasks.Device = None) -> tasks.Batch:
    return tasks.text(config.vocabulary, size, config.context, device)
