"""What a language model is trained on: random batches of the right shapes, first weights, and the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Device = torch.device | str | None  # None: torch's default device, which `with torch.device(...)` sets
Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in float32 of what the model says about `inputs`, whose last dimension is the classes."""
    logits: Tensor = model(inputs)
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def text(vocabulary: int, size: int, length: int, device: Device) -> Batch:
    """`size` sequences of `length` tokens, and for each token the one that follows it."""
    drawn = torch.randint(vocabulary, (size, length + 1), device=device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def initialise(module: nn.Module) -> None:
    """Small normal weights and zero biases for a linear layer or an embedding; others are left alone."""
    if not isinstance(module, nn.Linear | nn.Embedding):
        return
    nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
