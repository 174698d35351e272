"""Fake tensors where torch does not expect them: meshes that compute with ranks, models that change their dtype."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def valued_meshes() -> Iterator[None]:
    """Inside, a DeviceMesh is made, flattened and unflattened with the ranks themselves, in any fake mode."""
    kept = {name: vars(DeviceMesh)[name] for name in ("__init__", "_flatten", "_unflatten")}
    for name, method in kept.items():
        setattr(DeviceMesh, name, _valued(method))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(DeviceMesh, name, method)


def _valued(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def valued(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return method(*args, **kwargs)

    return valued


@contextmanager
def convertible(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, `module.to(dtype)` takes modules with fake parameters of `mode`.

    It swaps the new parameter's content into the old one, and refuses if somebody has a weak reference to either.
    The mode has: it remembers which fake tensor stands for which meta tensor. After a swap that would be wrong, so it
    is made to forget.
    """
    swap = torch.utils.swap_tensors

    def forget_and_swap(one: Tensor, other: Tensor) -> None:
        _forget(mode, one)
        _forget(mode, other)
        swap(one, other)  # type: ignore[no-untyped-call]

    torch.utils.swap_tensors = forget_and_swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def _forget(mode: FakeTensorMode, tensor: Tensor) -> None:
    """Drop the mode's weak reference to a tensor; nobody may hold on to the reference itself."""
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef):
            mode.fake_tensor_converter.tensor_memo.pop(reference.key, None)
