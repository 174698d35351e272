"""What autograd saves of a gathered parameter: not the tensor, but how to gather it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from weft.errors import WeftError
from weft.parallel.gather import Route, gather


@dataclass(eq=False)
class Recipe:
    """One gathered parameter of one forward. It is gathered again once, however many operators saved it."""

    name: str
    parameter: DTensor
    route: Route
    uses: int = 0
    _unpacked: int = 0
    _whole: Tensor | None = None
    _version: int = field(init=False)

    def __post_init__(self) -> None:
        self._version = self.parameter._version

    def make(self) -> Tensor:
        """The gathered parameter, kept until the last of its uses has had it."""
        if self.parameter._version != self._version:
            raise WeftError(
                f"parameter {self.name} was changed between the forward and the backward that gathers it again; "
                "step the optimiser after the backward, or pass reshard_after_forward=False"
            )
        if self._whole is None:
            self._whole = gather(self.parameter._local_tensor, self.route)
        whole = self._whole
        self._unpacked += 1
        if self._unpacked % self.uses == 0:
            self._whole = None
        return whole


@dataclass(frozen=True)
class Packed:
    """A view of a gathered parameter, as autograd keeps it."""

    recipe: Recipe
    size: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    wrap: Callable[[Tensor], Tensor] | None  # into the DTensor that the module's own tensor parallelism uses


class Known:
    """The gathered parameters of the forward that is running, recognised by their storage."""

    def __init__(self) -> None:
        self._recipes: dict[StorageWeakRef, Recipe] = {}

    def add(self, whole: Tensor, recipe: Recipe) -> None:
        # The weak reference keeps the address from being used again, not the memory.
        self._recipes[_storage(whole)] = recipe

    def clear(self) -> None:
        self._recipes.clear()

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: Tensor) -> Tensor | Packed:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        recipe = self._find(local)
        if recipe is None:
            return tensor
        recipe.uses += 1
        wrap = _rewrap(tensor) if isinstance(tensor, DTensor) else None
        return Packed(recipe, local.shape, local.stride(), local.storage_offset(), wrap)

    def _find(self, tensor: Tensor) -> Recipe | None:
        if tensor.layout is not torch.strided:
            return None
        recipe = self._recipes.get(_storage(tensor))
        dtype = None if recipe is None else recipe.route.param_dtype or recipe.parameter.dtype
        return recipe if tensor.dtype == dtype else None


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def hooks_in_force() -> bool:
    """Whether someone, we included, already decides what autograd saves."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _unpack(saved: Tensor | Packed) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    view = _view(saved.recipe.make(), saved.size, saved.stride, saved.offset)
    return view if saved.wrap is None else saved.wrap(view)


def _view(whole: Tensor, size: torch.Size, stride: tuple[int, ...], offset: int | torch.SymInt) -> Tensor:
    """The view of `whole` with this geometry: itself or a permutation where that says it, which reads better."""
    order: list[int] = []
    for wanted in zip(size, stride, strict=True):
        free = (d for d in range(whole.ndim) if d not in order and (whole.shape[d], whole.stride(d)) == wanted)
        order.extend(d for d in [next(free, None)] if d is not None)
    if len(order) != whole.ndim or len(size) != whole.ndim or offset != whole.storage_offset():
        return whole.as_strided(size, stride, offset)
    return whole if order == sorted(order) else whole.permute(order)


def _rewrap(tensor: DTensor) -> Callable[[Tensor], Tensor]:
    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()

    def wrap(local: Tensor) -> Any:
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)

    return wrap
