"""Where parameters live: the mesh, the placements, and a rank's own piece."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from weft.errors import WeftError
from weft.parallel.gather import Route
from weft.parallel.modules import TensorParallel


@dataclass(frozen=True)
class Layout:
    """How the data ranks hold a model. `shard_dim` is the dimension of `data` to shard over; others are replicas.

    `tensor` is the mesh of the model's own tensor parallelism; then all parameters live on `data` × `tensor`.
    Averaged gradients are divided by `divisor`.
    """

    data: DeviceMesh
    shard_dim: int | None
    tensor: DeviceMesh | None
    mesh: DeviceMesh
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    divisor: float

    @staticmethod
    def over(
        data: DeviceMesh,
        shard_dim: int | None,
        tensor: DeviceMesh | None,
        dtypes: tuple[torch.dtype | None, torch.dtype | None],
        divisor: float,
    ) -> Layout:
        with unset_fake_temporarily():  # a mesh computes with the ranks themselves, also where nothing else has values
            mesh = data if tensor is None else DeviceMesh._concatenate([data, tensor])
        return Layout(data, shard_dim, tensor, mesh, *dtypes, divisor)

    def place(self, name: str, parameter: nn.Parameter) -> tuple[nn.Parameter, Route]:
        """The parameter as a DTensor that holds this rank's piece of it, and how it is to travel. No communication."""
        local = _local(parameter)
        shard_dim = self.shard_dim if local.ndim and local.numel() else None
        placements = self._placements(name, parameter, shard_dim)
        piece = local if shard_dim is None else _piece(local, self.data.size(shard_dim), self._rank(shard_dim))
        stride = parameter.stride() if shard_dim is None else make_contiguous_strides_for(parameter.shape)
        placed = DTensor.from_local(piece, self.mesh, placements, run_check=False, shape=parameter.shape, stride=stride)
        new = nn.Parameter(placed, requires_grad=parameter.requires_grad)
        vars(new).update(vars(parameter))  # people tag parameters
        return new, self._route(local, shard_dim)

    def _placements(self, name: str, parameter: Tensor, shard_dim: int | None) -> list[Placement]:
        data: list[Placement] = [Replicate() for _ in range(self.data.ndim)]
        inner: list[Placement] = []
        if self.tensor is not None:
            own = parameter.placements if isinstance(parameter, DTensor) else None
            inner = list(own) if own is not None else [Replicate() for _ in range(self.tensor.ndim)]
        if shard_dim is not None:
            data[shard_dim] = self._sharded(name, parameter, shard_dim, inner)
        return data + inner

    def _sharded(self, name: str, parameter: Tensor, shard_dim: int, inner: list[Placement]) -> Placement:
        splits = [self._tensor_size(dim) for dim, kind in enumerate(inner) if kind.is_shard(0)]
        if not splits:
            return Shard(0)
        # Tensor parallelism split dimension 0 first: a data rank has a piece of each tensor rank's piece.
        factor = prod(splits)
        if parameter.shape[0] % (factor * self.data.size(shard_dim)):
            raise WeftError(
                f"parameter {name} of shape {tuple(parameter.shape)} is split {factor} ways by tensor parallelism and "
                f"cannot be split evenly over {self.data.size(shard_dim)} data ranks as well; make dimension 0 a "
                f'multiple of {factor * self.data.size(shard_dim)}, or use mode="replicate"'
            )
        return _StridedShard(0, split_factor=factor)

    def _route(self, local: Tensor, shard_dim: int | None) -> Route:
        floating = local.is_floating_point()
        sharded = shard_dim is not None and self.data.size(shard_dim) > 1
        return Route(
            rows=local.shape[0] if local.ndim else 1,
            shard_group=self._group(cast(int, shard_dim)) if sharded else None,
            shard_size=self.data.size(cast(int, shard_dim)) if sharded else 1,
            average_groups=tuple(
                self._group(dim) for dim in range(self.data.ndim) if dim != shard_dim and self.data.size(dim) > 1
            ),
            param_dtype=self.param_dtype if floating else None,
            reduce_dtype=self.reduce_dtype if floating else None,
            divisor=self.divisor,
        )

    def _group(self, dim: int) -> str:
        return cast(str, self.data.get_group(dim).group_name)

    def _rank(self, dim: int) -> int:
        return self.data.get_local_rank(dim)

    def _tensor_size(self, dim: int) -> int:
        return cast(DeviceMesh, self.tensor).size(dim)


def tensor_parallel(parameter: nn.Parameter) -> TensorParallel | None:
    """The layout that the module's own tensor parallelism gave the parameter, if it did."""
    if not isinstance(parameter, DTensor):
        return None
    return TensorParallel(parameter.device_mesh, tuple(parameter.placements))


def _local(parameter: Tensor) -> Tensor:
    return (parameter._local_tensor if isinstance(parameter, DTensor) else parameter).detach()


def _piece(whole: Tensor, size: int, rank: int) -> Tensor:
    """The rows of one rank, in memory of their own so that the whole can be freed."""
    rows = -(-whole.shape[0] // size)
    return whole[min(rank * rows, whole.shape[0]) : (rank + 1) * rows].clone(memory_format=torch.contiguous_format)
