"""Gathers over Gloo that may be under way together.

torch 2.13 runs a functional all-gather over Gloo through `allgather_coalesced`. If two of them are under way in one
group, which prefetching is about, it corrupts the heap once in some ten thousand calls. `_allgather_base` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.library import Library

_C10D = torch.ops._c10d_functional


@cache
def keep_gathers_apart() -> Library:
    """From now on functional gathers of tensors on the CPU go through `_allgather_base`, in all of this process."""
    # It lives as long as what is returned, which the cache keeps.
    library = Library("_c10d_functional", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    for name, function in (("", _gathered), ("_coalesced", _all_gathered)):
        library.impl(f"all_gather_into_tensor{name}", function)  # type: ignore[no-untyped-call]
    return library


def _gathered(piece: Tensor, size: int, group: str) -> Tensor:
    if piece.is_complex():  # which Gloo does not know
        return torch.view_as_complex(_gathered(torch.view_as_real(piece), size, group))
    whole = piece.new_empty((piece.shape[0] * size, *piece.shape[1:]))
    found: Tensor = _C10D.all_gather_into_tensor_out(piece.contiguous(), size, group, out=whole)
    return found


def _all_gathered(pieces: Sequence[Tensor], size: int, group: str) -> list[Tensor]:
    return [_gathered(piece, size, group) for piece in pieces]
