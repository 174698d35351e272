"""The vision transformer (Dosovitskiy et al., 2020): an image as a sequence of patches behind a class token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.workloads.blocks import Block
from weft.cli import tasks


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of the model; `pixels` is the side of an image and `patch` the side of a patch."""

    pixels: int = 224
    patch: int = 16
    width: int = 1024
    layers: int = 24
    heads: int = 16
    classes: int = 1000

    @property
    def context(self) -> int:
        """The length of the sequence: the patches and the class token."""
        return (self.pixels // self.patch) ** 2 + 1


def vit_l16() -> ViTConfig:
    return ViTConfig()


def vit_h14() -> ViTConfig:
    return ViTConfig(patch=14, width=1280, layers=32)


def vit_tiny() -> ViTConfig:
    return ViTConfig(pixels=16, patch=4, width=32, layers=2, heads=4, classes=10)


class ViT(nn.Module):
    """Images [batch, 3, pixels, pixels] to logits [batch, classes]."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, config.context, config.width))
        self.layers = nn.ModuleList(
            Block(config.width, config.heads, causal=False, epsilon=1e-6, gelu="none") for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width, 1e-6)
        self.head = nn.Linear(config.width, config.classes)
        nn.init.normal_(self.positions, std=0.02)
        self.apply(tasks.initialise)

    def forward(self, images: Tensor) -> Tensor:
        weights = self.patches.weight
        patches = self.patches(images.to(weights.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits


def batch(config: ViTConfig, size: int, device: tasks.Device = None) -> tasks.Batch:
    images = torch.randn(size, 3, config.pixels, config.pixels, device=device)
    return images, torch.randint(config.classes, (size,), device=device)
