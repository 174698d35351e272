"""What matmuls with a collective inside them compute, on virtual ranks: the whole collective, and the whole matmul.

That is what the fused operators are specified to give. They multiply shard by shard where here the matmul is one, so on
a device the last bits may be others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.ir.program import Op

Given = Mapping[str, Any]  # the arguments of an operator by the names in its schema


def run_fused(op: Op, given: Sequence[Given], rank: int, reduced: Callable[[list[Tensor], str], Tensor]) -> Any:
    """What a rank gets, as the operator gives it back.

    `given` are the arguments of the ranks of the group in order, of which it is number `rank`; `reduced` adds up.
    """
    if op.inside is not None and op.inside.kind == "all_gather":
        return _gathered(given, rank)
    return _scattered(given, rank, reduced)


def _gathered(given: Sequence[Given], rank: int) -> tuple[Tensor | None, list[Tensor]]:
    own = given[rank]
    dim, shards = own["gather_dim"], [one["A"] for one in given]
    whole = torch.cat(shards, dim)
    products = []
    for number, right in enumerate(own["Bs"]):
        if "A_scale" not in own:
            products.append(_laid_out(whole @ right, dim))
            continue
        scale = _row_scale([one["A_scale"] for one in given], shards, dim, rank)
        listed = (own[name][number] for name in ("biases", "result_scales", "out_dtypes", "use_fast_accum"))
        products.append(_laid_out(_scaled(whole, right, scale, own["B_scales"][number], *listed), dim))
    return (_laid_out(whole, dim) if own.get("return_A", True) else None), products


def _scattered(given: Sequence[Given], rank: int, reduced: Callable[[list[Tensor], str], Tensor]) -> Tensor:
    own = given[rank]
    dim = own.get("scatter_dim", own.get("orig_scatter_dim"))
    whole = reduced([_product(one) for one in given], own["reduce_op"])
    return whole.chunk(len(given), dim)[rank].contiguous()


def _product(one: Given) -> Tensor:
    if "A_scale" not in one:
        return torch.matmul(one["A"], one["B"])
    options = (one.get(name) for name in ("bias", "result_scale", "out_dtype"))
    made = _scaled(one["A"], one["B"], one["A_scale"], one["B_scale"], *options, one.get("use_fast_accum", False))
    return made.view(one["output_shape"])


def _scaled(left: Tensor, right: Tensor, scale: Tensor, right_scale: Tensor, *options: Any) -> Tensor:
    rows = scale if scale.numel() == 1 else scale.flatten(0, -2)
    made: Tensor = torch.ops.aten._scaled_mm(left.flatten(0, -2), right, rows, right_scale, *options)
    return made.view(*left.shape[:-1], made.shape[-1])


def _row_scale(scales: Sequence[Tensor], shards: Sequence[Tensor], dim: int, rank: int) -> Tensor:
    """The scale of what is gathered: one for all, one for each row, or one for each row of the rank's own shard."""
    if scales[rank].shape[:-1] == shards[rank].shape[:-1] and scales[rank].shape[-1] == 1:
        return torch.cat(list(scales), dim)
    return scales[rank]


def _laid_out(value: Tensor, dim: int) -> Tensor:
    """The value as the operator lays it out: with the dimension that is gathered outermost."""
    return value.movedim(dim, 0).contiguous().movedim(0, dim)
