"""The operator `weft::pack`: tensors copied into one buffer to be sent, and converted on the way.

It is plain torch, so it runs on any device that copies tensors; a list of copies is one kernel where torch has one.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("weft::pack", mutates_args=())
def pack(inputs: list[Tensor], dtype: torch.dtype, rows: int) -> Tensor:
    """A flat buffer of `rows` equal rows. Each input, cut into as many, has a part in every row, in order.

    What is sent to each rank is packed with a row for each; what is sent to all, as one row.
    """
    for one in inputs:
        if rows < 1 or one.numel() % rows:
            raise ValueError(f"weft::pack: {list(one.shape)} cannot be cut into {rows} equal rows")
    buffer = inputs[0].new_empty((rows, sum(one.numel() for one in inputs) // rows), dtype=dtype)
    cut = [_in_rows(one, rows) for one in inputs]
    parts = buffer.split_with_sizes([one.numel() // rows for one in inputs], dim=1)
    torch._foreach_copy_([part.view(one.shape) for part, one in zip(parts, cut, strict=True)], cut)
    return buffer.view(-1)


@pack.register_fake
def unfilled(inputs: list[Tensor], dtype: torch.dtype, rows: int) -> Tensor:
    """The buffer before anything is in it."""
    return inputs[0].new_empty((sum(one.numel() for one in inputs),), dtype=dtype)


def _in_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor with the rows as its first dimension: a view, unless a row ends inside of a slice of the tensor."""
    if tensor.dim() == 0 or tensor.shape[0] % rows:
        return tensor.reshape(rows, -1)
    return tensor.view(rows, tensor.shape[0] // rows, *tensor.shape[1:])
