"""Operators of a library that Weft has never heard of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


@torch.library.custom_op("weft_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """Functional: nothing but its result."""
    return x * 2


@torch.library.custom_op("weft_test::bump_", mutates_args={"x"})
def bump_(x: Tensor, y: Tensor) -> None:
    """Writes its first argument."""
    x.add_(y)


@torch.library.custom_op("weft_test::bump_and_twice_", mutates_args={"x"})
def bump_and_twice_(x: Tensor, y: Tensor) -> Tensor:
    """Writes its first argument, and has a result."""
    x.add_(y)
    return y * 2


@torch.library.custom_op("weft_test::exchange", mutates_args=())
def exchange(x: Tensor, group_name: str) -> Tensor:
    """Communicates in a way of its own."""
    return x.clone()


@torch.library.custom_op("weft_test::exchange_", mutates_args={"x"})
def exchange_(x: Tensor, group_name: str) -> None:
    """Communicates in a way of its own, in place."""


@torch.library.custom_op("weft_test::over_mesh", mutates_args=())
def over_mesh(x: Tensor, where: DeviceMesh) -> Tensor:
    """Is given a mesh, over which it may communicate."""
    return x.clone()


@torch.library.custom_op("weft_test::channels", mutates_args=())
def channels(x: Tensor, group: int) -> Tensor:
    """Has a `group` that is a number, as norms do."""
    return x.clone()


for made in (twice, exchange, over_mesh, channels):
    made.register_fake(lambda x, *rest: torch.empty_like(x))
bump_and_twice_.register_fake(lambda x, y: torch.empty_like(y))

library = torch.ops.weft_test


def plain(x: Tensor) -> Tensor:
    """A function that is no operator."""
    return x + 1
