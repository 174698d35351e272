"""How one parameter travels: gathered on the way in, its gradient averaged on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

_OPS = torch.ops._c10d_functional


@dataclass(frozen=True)
class Route:
    """The communication of one parameter.

    `rows` is the length of dimension 0 of the gathered tensor; it is split over the `shard_size` ranks of `shard_group`
    in equal pieces, the last of which may be short or empty. Without a `shard_group` every rank has all rows. The
    gradient is also averaged over each of `average_groups`, and divided by `divisor`.
    """

    rows: int
    shard_group: str | None
    shard_size: int
    average_groups: tuple[str, ...]
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    divisor: float = 1

    @property
    def piece(self) -> int:
        """The rows of one rank, padding included."""
        return -(-self.rows // self.shard_size)

    @property
    def uneven(self) -> bool:
        return self.rows % self.shard_size != 0


class Gather(torch.autograd.Function):
    """From a rank's shard to the whole parameter; the gradient comes back averaged, in the shard's shape and dtype."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, route: Route) -> Tensor:
        ctx.route, ctx.rows, ctx.dtype = route, shard.shape[0] if shard.ndim else 1, shard.dtype
        whole = gather(shard, route)
        return whole.view_as(whole) if whole is shard else whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return average(gradient, ctx.route, ctx.rows).to(ctx.dtype), None


def gather(shard: Tensor, route: Route) -> Tensor:
    """The whole parameter in the dtype of the computation. The cast comes first: the fewest bytes travel."""
    if route.param_dtype is not None:
        shard = shard.to(route.param_dtype)
    if route.shard_group is None:
        return shard
    # Every rank pads, by nothing if its piece is full, so that all ranks have the same graph.
    piece = _pad_rows(shard, route.piece) if route.uneven else shard
    whole: Tensor = _OPS.wait_tensor(_OPS.all_gather_into_tensor(piece, route.shard_size, route.shard_group))
    return whole[: route.rows] if route.uneven else whole


def average(gradient: Tensor, route: Route, rows: int) -> Tensor:
    """The first `rows` rows of this rank's piece of the gradient, averaged over the route's groups and divided."""
    if route.reduce_dtype is not None:
        gradient = gradient.to(route.reduce_dtype)
    if route.shard_group is not None:
        whole = _pad_rows(gradient, route.piece * route.shard_size) if route.uneven else gradient
        start = _OPS.reduce_scatter_tensor(whole.contiguous(), "avg", route.shard_size, route.shard_group)
        gradient = _OPS.wait_tensor(start)
    for group in route.average_groups:
        gradient = _OPS.wait_tensor(_OPS.all_reduce(gradient.contiguous(), "avg", group))
    if route.shard_group is not None and route.uneven:
        gradient = gradient[:rows]
    return gradient if route.divisor == 1 else gradient / route.divisor


def _pad_rows(tensor: Tensor, rows: int) -> Tensor:
    return pad(tensor, [0, 0] * (tensor.ndim - 1) + [0, rows - tensor.shape[0]])
