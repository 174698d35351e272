"""How long one compute op takes alone on a device.

Matmuls, attention and convolutions are priced as matrix products, everything else by the bytes that it moves. Tables
say which is which. An op that is in none of them is estimated from its bytes too, and `known` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from weft.analysis.kernels import KERNELS, Kernel, kernel
from weft.cost import products
from weft.cost.products import Device, Inputs, streamed
from weft.cost.sizes import read_bytes, total
from weft.ir.args import refs
from weft.ir.program import Op
from weft.ir.specs import DTYPES
from weft.ir.targets import FUSED


def op_us(device: Device, op: Op, inputs: Inputs) -> float:
    """The time of one op, as a kernel of its own; `inputs` are the specs of its tensor arguments, in order."""
    if kernel(op, inputs) is Kernel.FREE:
        return 0.0
    row = ESTIMATES.get(op.target)
    # A program written by hand may leave out arguments that a matmul needs; its bytes are still there.
    if row is None or len(inputs) < row.least:
        return by_bytes(device, op, inputs)
    return row.estimate(device, op, inputs)


def known(op: Op) -> bool:
    """Whether the time of an op is more than a guess from its bytes."""
    return priced(op.target) or kernel(op, ()) is Kernel.FREE


def priced(target: str) -> bool:
    """Whether there is more to say of a target than how many bytes it moves."""
    return target in KERNELS or target in ESTIMATES or target in FUSED


def by_bytes(device: Device, op: Op, inputs: Inputs) -> float:
    """A kernel that reads its arguments and writes its results once."""
    return streamed(device, read_bytes(op, inputs) + total(op.out))


class Row(NamedTuple):
    """How to estimate an op, and how many tensor arguments that takes at least."""

    least: int
    estimate: Callable[[Device, Op, Inputs], float]


def _forward(device: Device, op: Op, inputs: Inputs, causal_at: int) -> float:
    return products.attention(device, op, inputs, _is_causal(op, causal_at))


def _backward(device: Device, op: Op, inputs: Inputs, causal_at: int) -> float:
    return products.attention_backward(device, op, inputs, _is_causal(op, causal_at))


def _is_causal(op: Op, place: int) -> bool:
    return op.argument(place) is True or op.argument("is_causal") is True


def _flex(device: Device, op: Op, inputs: Inputs) -> float:
    """Which blocks are masked is known only when it runs: all of them count."""
    return products.attention(device, op, inputs, causal=False)


def _flex_backward(device: Device, op: Op, inputs: Inputs) -> float:
    return products.attention_backward(device, op, inputs, causal=False, first=0)


def _lists(device: Device, op: Op, inputs: Inputs, written: tuple[int, ...]) -> float:
    """A kernel over lists of tensors: it reads all of them and writes those at the places `written`."""
    lengths = [len(refs(arg)) for arg in op.args]
    moved = total(inputs) + total(op.out)
    for place in written:
        begin = sum(lengths[:place])
        moved += total(inputs[begin : begin + sum(lengths[place : place + 1])])
    return streamed(device, moved)


def _scattered_in_place(device: Device, op: Op, inputs: Inputs) -> float:
    """It touches as much of what it writes as it is given to write there, once to read and once to write."""
    return streamed(device, 3 * total(inputs[1:]))


def _scattered_on_zeros(device: Device, op: Op, inputs: Inputs) -> float:
    """It fills its result with zeros and adds the first argument to it row by row."""
    return streamed(device, total(op.out) + total(inputs) + 2 * total(inputs[:1]))


def _picked(device: Device, op: Op, inputs: Inputs) -> float:
    """It reads one number of the first argument for each element of the second."""
    return streamed(device, 2 * total(inputs[1:2]) + total(op.out))


def _passes(device: Device, op: Op, inputs: Inputs, count: int) -> float:
    return count * by_bytes(device, op, inputs)


def _sorted(device: Device, op: Op, inputs: Inputs) -> float:
    """By radix, a byte of the key in each pass."""
    return _passes(device, op, inputs, DTYPES[inputs[0].dtype])


_MATMULS = """
aten.mm.default aten.mm.dtype aten.bmm.default aten.bmm.dtype aten.matmul.default aten._int_mm.default
aten._scaled_mm.default aten._scaled_mm_v2.default aten.mv.default aten.dot.default
"""
_BIASED_MATMULS = "aten.addmm.default aten.addmm.dtype aten.baddbmm.default aten.addmv.default"
_GROUPED_MATMULS = "aten._grouped_mm.default aten._scaled_grouped_mm.default"
_CONVOLUTIONS = "aten.convolution.default aten._convolution.default aten.convolution_overrideable.default"

# Where the flag is that says whether an attention is causal.
_ATTENTION = {
    "aten.scaled_dot_product_attention.default": 5,
    "aten._scaled_dot_product_attention_math.default": 5,
    "aten._scaled_dot_product_cudnn_attention.default": 6,
    "aten._scaled_dot_product_efficient_attention.default": 6,
    "aten._scaled_dot_product_flash_attention.default": 4,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 4,
    "aten._scaled_dot_product_fused_attention_overrideable.default": 5,
}
_ATTENTION_BACKWARD = {
    "aten._scaled_dot_product_cudnn_attention_backward.default": 14,
    "aten._scaled_dot_product_efficient_attention_backward.default": 11,
    "aten._scaled_dot_product_flash_attention_backward.default": 11,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 7,
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default": 13,
}

_SCATTERS_IN_PLACE = """
aten.index_add_.default aten.index_put_.default aten.masked_scatter_.default aten.scatter_.src aten.scatter_.value
aten.scatter_add_.default
"""

# They do move their bytes once, or a few of them once more; as kernels of their own.
_BY_BYTES = """
aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default aten._adaptive_avg_pool3d.default
aten._chunk_cat.default aten._local_scalar_dense.default aten._native_batch_norm_legit.default
aten._native_batch_norm_legit.no_stats aten._native_batch_norm_legit_no_training.default
aten._unsafe_index_put.default aten.avg_pool2d.default aten.avg_pool2d_backward.default aten.bincount.default
aten.bucketize.Tensor aten.cumprod.default aten.cumsum.default aten.equal.default aten.index_add.default
aten.index_copy.default aten.index_fill.int_Scalar aten.index_put.default aten.masked_scatter.default
aten.masked_select.default aten.max_pool2d_with_indices.default aten.max_pool2d_with_indices_backward.default
aten.multinomial.default aten.native_batch_norm.default aten.native_batch_norm_backward.default
aten.native_group_norm.default aten.native_group_norm_backward.default aten.nonzero.default aten.one_hot.default
aten.scatter.src aten.scatter.value aten.scatter_add.default aten.scatter_reduce.two aten.searchsorted.Tensor
aten.split_with_sizes_copy.default aten.unfold_backward.default aten.upsample_bilinear2d.vec
aten.upsample_nearest2d.vec
fsdp.all_gather_copy_in.default fsdp.chunk_cat.default fsdp.split_with_sizes_copy.default weft.pack.default
"""

_FOREACH = """
aten._foreach_abs.default aten._foreach_add.List aten._foreach_add.Scalar aten._foreach_add.ScalarList
aten._foreach_add.Tensor aten._foreach_addcdiv.Scalar aten._foreach_addcdiv.ScalarList aten._foreach_addcmul.Scalar
aten._foreach_clamp_max.Scalar aten._foreach_clamp_min.Scalar aten._foreach_clone.default aten._foreach_copy_.default
aten._foreach_div.List aten._foreach_div.Scalar aten._foreach_div.ScalarList aten._foreach_div.Tensor
aten._foreach_exp.default aten._foreach_lerp.List aten._foreach_lerp.Scalar aten._foreach_max.default
aten._foreach_maximum.List aten._foreach_minimum.List aten._foreach_mul.List aten._foreach_mul.Scalar
aten._foreach_mul.ScalarList aten._foreach_mul.Tensor aten._foreach_neg.default aten._foreach_norm.Scalar
aten._foreach_pow.List aten._foreach_pow.Scalar aten._foreach_pow.ScalarAndTensor aten._foreach_reciprocal.default
aten._foreach_rsqrt.default aten._foreach_sign.default aten._foreach_sqrt.default aten._foreach_sub.List
aten._foreach_sub.Scalar aten._foreach_zero_.default
"""  # those that overwrite a list without reading it move as much as those that make one

_FOREACH_IN_PLACE = """
aten._foreach_abs_.default aten._foreach_add_.List aten._foreach_add_.Scalar aten._foreach_add_.ScalarList
aten._foreach_add_.Tensor aten._foreach_addcdiv_.Scalar aten._foreach_addcdiv_.ScalarList
aten._foreach_addcdiv_.Tensor aten._foreach_addcmul_.Scalar aten._foreach_addcmul_.ScalarList
aten._foreach_addcmul_.Tensor aten._foreach_clamp_max_.Scalar aten._foreach_clamp_min_.Scalar
aten._foreach_div_.List aten._foreach_div_.Scalar aten._foreach_div_.ScalarList aten._foreach_div_.Tensor
aten._foreach_exp_.default aten._foreach_lerp_.List aten._foreach_lerp_.Scalar aten._foreach_maximum_.List
aten._foreach_minimum_.List aten._foreach_mul_.List aten._foreach_mul_.Scalar aten._foreach_mul_.ScalarList
aten._foreach_mul_.Tensor aten._foreach_neg_.default aten._foreach_pow_.Scalar aten._foreach_reciprocal_.default
aten._foreach_rsqrt_.default aten._foreach_sign_.default aten._foreach_sqrt_.default aten._foreach_sub_.List
aten._foreach_sub_.Scalar
"""

# Which of their lists the fused optimisers write; the gradients only if they are scaled, which is rare.
_OPTIMISERS = {
    "aten._fused_adagrad_.default": (0, 2),
    "aten._fused_adam_.default": (0, 2, 3, 4),
    "aten._fused_adam_.tensor_lr": (0, 2, 3, 4),
    "aten._fused_adamw_.default": (0, 2, 3, 4),
    "aten._fused_adamw_.tensor_lr": (0, 2, 3, 4),
    "aten._fused_sgd_.default": (0, 2),
    "aten._fused_sgd_.tensor_lr": (0, 2),
}


def _rows() -> Mapping[str, Row]:
    rows = {
        "aten.linear.default": Row(2, products.linear),
        "aten.convolution_backward.default": Row(3, products.convolution_backward),
        "higher_order.flex_attention": Row(3, _flex),
        "higher_order.flex_attention_backward": Row(3, _flex_backward),
        "aten.embedding_dense_backward.default": Row(1, _scattered_on_zeros),
        "aten.nll_loss_forward.default": Row(2, _picked),
        "aten.topk.default": Row(1, partial(_passes, count=2)),
        "aten.randperm.default": Row(0, partial(_passes, count=DTYPES["i64"])),
    }
    rows |= {target: Row(3, partial(_forward, causal_at=place)) for target, place in _ATTENTION.items()}
    rows |= {target: Row(4, partial(_backward, causal_at=place)) for target, place in _ATTENTION_BACKWARD.items()}
    rows |= {target: Row(1, partial(_lists, written=places)) for target, places in _OPTIMISERS.items()}
    for names, row in (
        (_MATMULS, Row(2, products.matmul)),
        (_BIASED_MATMULS, Row(3, products.biased_matmul)),
        (_GROUPED_MATMULS, Row(2, products.grouped_matmul)),
        (_CONVOLUTIONS, Row(2, products.convolution)),
        (_SCATTERS_IN_PLACE, Row(1, _scattered_in_place)),
        ("aten.sort.default aten.sort.stable aten.argsort.default", Row(1, _sorted)),
        (_FOREACH, Row(0, partial(_lists, written=()))),
        (_FOREACH_IN_PLACE, Row(0, partial(_lists, written=(0,)))),
        (_BY_BYTES, Row(0, by_bytes)),
    ):
        rows |= dict.fromkeys(names.split(), row)
    return rows


ESTIMATES: Mapping[str, Row] = _rows()
