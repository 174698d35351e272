"""What kind of kernel runs each op, as far as fusion and the bytes that it moves are concerned.

The tables name targets; nothing is concluded from the text of a name. An op that is in none of them is a kernel of
its own, of which only the cost model may know more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from weft.ir.args import Arg, refs
from weft.ir.program import Op, Program
from weft.ir.specs import ScalarSpec, TensorSpec, row_major


class Kernel(Enum):
    """How the compiler would run an op."""

    FREE = "free"  # not at all: views, sizes, memory that nobody has filled, what other streams do
    GENERATED = "generated"  # reads nothing: whoever fuses with it makes the numbers anew
    POINTWISE = "pointwise"  # each result from the elements at its place
    REDUCTION = "reduction"  # each result from many elements
    ROWS = "rows"  # a reduction along rows, and a pointwise op that uses it: softmax, norms
    GATHER = "gather"  # reads where an index says, so what it reads must be in memory
    ALONE = "alone"  # a kernel of its own


FUSIBLE = (Kernel.POINTWISE, Kernel.REDUCTION, Kernel.ROWS, Kernel.GATHER)


def kernel(op: Op, inputs: tuple[TensorSpec, ...]) -> Kernel:
    """The kind of an op, whose tensor arguments have these specs."""
    traits, found = op.traits, KERNELS.get(op.target)
    if traits.barrier:
        return Kernel.ALONE
    if op.comm is not None or (traits.views and traits.is_view) or (traits.copies and not _copies(op, inputs)):
        return Kernel.FREE
    if found is None:
        return Kernel.FREE if _is_scalar(op) else Kernel.ALONE
    return found


def input_specs(program: Program, op: Op) -> tuple[TensorSpec, ...]:
    """The specs of an op's tensor arguments, in order; values that are not defined are left out."""
    index, ops = program.index, program.ops
    made = [ops[index[name]].out for name in op.given if name in index]
    return tuple([spec for out in made for spec in out if isinstance(spec, TensorSpec)])


def only_moves(op: Op) -> bool:
    """Whether an op moves data and computes nothing: a view, a copy, a cast, a concatenation."""
    return op.traits.is_view or op.traits.copies or op.target in MOVES


def slice_args(op: Op) -> tuple[Arg, ...]:
    """Dimension, beginning, end and step of a slice, by position or by keyword."""
    return tuple(op.argument(place, name) for place, name in enumerate(("dim", "start", "end", "step"), start=1))


def read_names(op: Op) -> tuple[str, ...]:
    """The values whose elements an op reads, in order: some are only overwritten, or asked for their shape."""
    if op.target not in UNREAD:
        return op.given
    unread = UNREAD[op.target]
    given = [arg for place, arg in enumerate(op.args) if place not in unread]
    return tuple(ref.name for arg in (*given, *op.kwargs.values()) for ref in refs(arg))


def reduced_along_rows(op: Op, spec: TensorSpec) -> bool:
    """Whether a reduction of `spec` takes the last dimensions away and leaves more than one element.

    Then one block has all that a row needs, and goes on with its result; otherwise the blocks have to meet first.
    """
    dims = op.argument(DIMS.get(op.target, 1))
    dims = op.argument("dim") if dims is None else dims
    if isinstance(dims, int):
        dims = (dims,)
    rank = len(spec.shape)
    if not isinstance(dims, tuple) or not dims or rank == 0:
        return False
    reduced = {dim % rank for dim in dims if isinstance(dim, int)}
    return reduced == set(range(rank - len(reduced), rank)) and any(size != 1 for size in spec.shape[: -len(reduced)])


def _is_scalar(op: Op) -> bool:
    """Whether it only computes with numbers of the host. Ops without results work through what they write."""
    return op.target not in KERNELS and bool(op.out) and all(isinstance(spec, ScalarSpec) for spec in op.out)


def _copies(op: Op, inputs: tuple[TensorSpec, ...]) -> bool:
    """Whether an op that gives its argument back where it can cannot: another dtype, device or layout."""
    if not inputs or not op.out or not isinstance(op.out[0], TensorSpec):
        return True
    given, made = inputs[0], op.out[0]
    if (given.dtype, given.device) != (made.dtype, made.device):
        return True
    return op.target in RELAYOUTS and given.strides not in (None, row_major(given.shape))


# Copies where the layout does not allow a view.
RELAYOUTS = frozenset(
    "aten.contiguous.default aten.flatten.using_ints aten.reshape.default aten.reshape_as.default".split()
)

MOVES = frozenset(
    """
    aten._to_copy.default aten.cat.default aten.clone.default aten.constant_pad_nd.default getitem
    prims.convert_element_type.default wait weft.pack.default
    """.split()
)

# They look at shapes, or make memory that nobody has filled.
_FREE = """
input get_attr getitem wait
aten.empty.memory_format aten.empty_like.default aten.empty_strided.default aten.new_empty.default
aten.new_empty_strided.default aten.sym_is_contiguous.default aten.sym_numel.default aten.sym_size.int
aten.sym_storage_offset.default aten.sym_stride.int
"""

_GENERATED = """
aten.arange.default aten.arange.start aten.arange.start_step aten.eye.default aten.eye.m aten.full.default
aten.full_like.default aten.linspace.default aten.new_full.default aten.new_ones.default aten.new_zeros.default
aten.ones.default aten.ones_like.default aten.scalar_tensor.default aten.zeros.default aten.zeros_like.default
prims.inductor_seed.default prims.inductor_seeds.default prims.iota.default
"""

# Tagged so by torch, without the special functions.
_POINTWISE = """
aten.__ilshift__.Scalar aten.__ilshift__.Tensor aten.__ixor__.Scalar aten.__ixor__.Tensor aten.__lshift__.Scalar
aten.__lshift__.Tensor aten.__rshift__.Scalar aten.__rshift__.Tensor aten.__xor__.Scalar aten.__xor__.Tensor
aten._conj_physical.default aten.abs.default aten.acos.default aten.acos_.default aten.acosh.default
aten.acosh_.default aten.add.Scalar aten.add.Tensor aten.add_.Scalar aten.add_.Tensor aten.addcdiv.default
aten.addcdiv_.default aten.addcmul.default aten.addcmul_.default aten.angle.default aten.asin.default
aten.asin_.default aten.asinh.default aten.asinh_.default aten.atan.default aten.atan2.default aten.atan2_.default
aten.atan_.default aten.atanh.default aten.atanh_.default aten.bitwise_and.Scalar aten.bitwise_and.Scalar_Tensor
aten.bitwise_and.Tensor aten.bitwise_and_.Scalar aten.bitwise_and_.Tensor aten.bitwise_left_shift.Scalar_Tensor
aten.bitwise_left_shift.Tensor aten.bitwise_left_shift.Tensor_Scalar aten.bitwise_left_shift_.Tensor
aten.bitwise_left_shift_.Tensor_Scalar aten.bitwise_not.default aten.bitwise_not_.default aten.bitwise_or.Scalar
aten.bitwise_or.Scalar_Tensor aten.bitwise_or.Tensor aten.bitwise_or_.Scalar aten.bitwise_or_.Tensor
aten.bitwise_right_shift.Scalar_Tensor aten.bitwise_right_shift.Tensor aten.bitwise_right_shift.Tensor_Scalar
aten.bitwise_right_shift_.Tensor aten.bitwise_right_shift_.Tensor_Scalar aten.bitwise_xor.Scalar
aten.bitwise_xor.Scalar_Tensor aten.bitwise_xor.Tensor aten.bitwise_xor_.Scalar aten.bitwise_xor_.Tensor
aten.ceil.default aten.ceil_.default aten.celu.default aten.celu_.default aten.clamp.default aten.clamp.Tensor
aten.clamp_.default aten.clamp_.Tensor aten.clamp_max.default aten.clamp_max.Tensor aten.clamp_max_.default
aten.clamp_max_.Tensor aten.clamp_min.default aten.clamp_min.Tensor aten.clamp_min_.default aten.clamp_min_.Tensor
aten.clip.default aten.clip.Tensor aten.clip_.default aten.clip_.Tensor aten.clone.default aten.conj_physical.default
aten.conj_physical_.default aten.copysign.Scalar aten.copysign.Tensor aten.cos.default aten.cos_.default
aten.cosh.default aten.cosh_.default aten.deg2rad.default aten.deg2rad_.default aten.digamma.default
aten.digamma_.default aten.div.Scalar aten.div.Scalar_mode aten.div.Tensor aten.div.Tensor_mode aten.div_.Scalar
aten.div_.Scalar_mode aten.div_.Tensor aten.div_.Tensor_mode aten.elu.default aten.elu_.default aten.eq.Scalar
aten.eq.Tensor aten.erf.default aten.erf_.default aten.erfc.default aten.erfc_.default aten.erfinv.default
aten.erfinv_.default aten.exp.default aten.exp2.default aten.exp2_.default aten.exp_.default aten.expm1.default
aten.expm1_.default aten.float_power.Scalar aten.float_power.Tensor_Scalar aten.float_power.Tensor_Tensor
aten.float_power_.Scalar aten.float_power_.Tensor aten.floor.default aten.floor_.default aten.fmax.default
aten.fmin.default aten.fmod.Scalar aten.fmod.Tensor aten.fmod_.Scalar aten.fmod_.Tensor aten.frac.default
aten.frac_.default aten.frexp.Tensor aten.gcd.default aten.ge.Scalar aten.ge.Tensor aten.gelu.default
aten.gelu_backward.default aten.gt.Scalar aten.gt.Tensor aten.hardshrink.default aten.hardsigmoid.default
aten.hardsigmoid_.default aten.hardtanh.default aten.hardtanh_.default aten.heaviside.default aten.hypot.default
aten.hypot_.default aten.i0.default aten.i0_.default aten.igamma.default aten.igamma_.default aten.igammac.default
aten.igammac_.default aten.isfinite.default aten.isinf.default aten.isnan.default aten.isneginf.default
aten.isposinf.default aten.lcm.default aten.ldexp.Tensor aten.ldexp_.default aten.le.Scalar aten.le.Tensor
aten.leaky_relu.default aten.leaky_relu_.default aten.lerp.Scalar aten.lerp.Tensor aten.lerp_.Scalar aten.lerp_.Tensor
aten.lgamma.default aten.lgamma_.default aten.log.default aten.log10.default aten.log10_.default aten.log1p.default
aten.log1p_.default aten.log2.default aten.log2_.default aten.log_.default aten.logaddexp.default
aten.logaddexp2.default aten.logical_and.default aten.logical_and_.default aten.logical_not.default
aten.logical_not_.default aten.logical_or.default aten.logical_or_.default aten.logical_xor.default
aten.logical_xor_.default aten.logit.default aten.logit_.default aten.logit_backward.default aten.lt.Scalar
aten.lt.Tensor aten.masked_fill.Scalar aten.max.other aten.maximum.default aten.min.other aten.minimum.default
aten.mish.default aten.mul.Scalar aten.mul.Tensor aten.mul_.Scalar aten.mul_.Tensor aten.mvlgamma.default
aten.mvlgamma_.default aten.nan_to_num.default aten.nan_to_num_.default aten.native_dropout_backward.default
aten.ne.Scalar aten.ne.Tensor aten.neg.default aten.neg_.default aten.nextafter.default aten.nextafter_.default
aten.polygamma.default aten.polygamma_.default aten.positive.default aten.pow.Scalar aten.pow.Tensor_Scalar
aten.pow.Tensor_Tensor aten.pow_.Scalar aten.pow_.Tensor aten.rad2deg.default aten.rad2deg_.default
aten.reciprocal.default aten.reciprocal_.default aten.relu.default aten.relu6.default aten.relu_.default
aten.remainder.Scalar aten.remainder.Scalar_Tensor aten.remainder.Tensor aten.remainder_.Scalar aten.remainder_.Tensor
aten.round.default aten.round.decimals aten.round_.default aten.round_.decimals aten.rrelu.default aten.rsqrt.default
aten.rsqrt_.default aten.rsub.Scalar aten.selu.default aten.selu_.default aten.sgn.default aten.sgn_.default
aten.sigmoid.default aten.sigmoid_.default aten.sigmoid_backward.default aten.sign.default aten.sign_.default
aten.signbit.default aten.silu.default aten.silu_.default aten.silu_backward.default aten.sin.default
aten.sin_.default aten.sinc.default aten.sinc_.default aten.sinh.default aten.sinh_.default aten.softplus.default
aten.softshrink.default aten.sqrt.default aten.sqrt_.default aten.square.default aten.square_.default aten.sub.Scalar
aten.sub.Tensor aten.sub_.Scalar aten.sub_.Tensor aten.tan.default aten.tan_.default aten.tanh.default
aten.tanh_.default aten.tanh_backward.default aten.threshold.default aten.threshold_backward.default
aten.true_divide.Tensor aten.trunc.default aten.trunc_.default aten.where.self aten.xlogy.Scalar_Other
aten.xlogy.Scalar_Self aten.xlogy.Tensor aten.xlogy_.Tensor
"""

# The rest of what is computed element by element: copies, casts, masks, random numbers, losses without a sum.
_COPIES_AND_MASKS = """
aten._to_copy.default aten.bernoulli.default aten.bernoulli.p aten.bernoulli_.float aten.cat.default
aten.constant_pad_nd.default aten.contiguous.default aten.copy.default aten.copy_.default aten.diagonal_scatter.default
aten.dropout.default aten.elu_backward.default aten.fill.Scalar aten.fill.Tensor aten.fill_.Scalar aten.fill_.Tensor
aten.flatten.using_ints aten.flip.default aten.glu.default aten.glu_backward.default aten.hardtanh_backward.default
aten.leaky_relu_backward.default aten.lift_fresh_copy.default aten.log_sigmoid_backward.default
aten.log_sigmoid_forward.default aten.masked_fill.Tensor aten.masked_fill_.Scalar aten.masked_fill_.Tensor
aten.mse_loss_backward.default aten.native_dropout.default aten.nll_loss_backward.default aten.normal.Tensor_Tensor
aten.normal_.default aten.rand.default aten.rand_like.default aten.randint.default aten.randint.low
aten.randint_like.low_dtype aten.randn.default aten.randn_like.default aten.repeat.default aten.reshape.default
aten.reshape_as.default aten.roll.default aten.select_backward.default aten.select_scatter.default
aten.slice_backward.default aten.slice_scatter.default aten.smooth_l1_loss_backward.default
aten.softplus_backward.default aten.stack.default aten.to.device aten.to.dtype aten.to.dtype_layout aten.to.other
aten.tril.default aten.tril_.default aten.triu.default aten.triu_.default aten.type_as.default aten.uniform_.default
aten.zero_.default
prims.convert_element_type.default prims.device_put.default prims.div.default prims.fma.default
prims.inductor_force_stride_order.default prims.inductor_lookup_seed.default prims.inductor_randint.default
prims.inductor_random.default prims.mul.default
"""

_REDUCTIONS = """
aten.all.default aten.all.dim aten.all.dims aten.amax.default aten.amin.default aten.aminmax.default aten.any.default
aten.any.dim aten.any.dims aten.argmax.default aten.argmin.default aten.count_nonzero.dim_IntList
aten.linalg_vector_norm.default aten.logsumexp.default aten.max.default aten.max.dim aten.mean.default aten.mean.dim
aten.min.default aten.min.dim aten.mse_loss.default aten.norm.Scalar aten.norm.ScalarOpt_dim aten.prod.default
aten.prod.dim_int aten.smooth_l1_loss.default aten.std.correction aten.sum.default aten.sum.dim_IntList
aten.var.correction aten.var.dim aten.var_mean.correction prims.sum.default
"""

_ROWS = """
aten._fused_rms_norm.default aten._fused_rms_norm_backward.default aten._log_softmax.default
aten._log_softmax_backward_data.default aten._safe_softmax.default aten._softmax.default
aten._softmax_backward_data.default aten.layer_norm.default aten.log_softmax.int aten.native_layer_norm.default
aten.native_layer_norm_backward.default aten.rms_norm.default aten.softmax.int
"""

_GATHERS = """
aten._unsafe_index.Tensor aten.embedding.default aten.gather.default aten.index.Tensor aten.index_select.default
aten.take_along_dim.default
"""


def _rows() -> Mapping[str, Kernel]:
    return {
        target: kind
        for kind, names in (
            (Kernel.FREE, _FREE),
            (Kernel.GENERATED, _GENERATED),
            (Kernel.POINTWISE, _POINTWISE + _COPIES_AND_MASKS),
            (Kernel.REDUCTION, _REDUCTIONS),
            (Kernel.ROWS, _ROWS),
            (Kernel.GATHER, _GATHERS),
        )
        for target in names.split()
    }


KERNELS: Mapping[str, Kernel] = _rows()

# Each element of the result comes from the elements at its place, and it does not matter which place that is.
ELEMENTWISE = frozenset(
    f"""
    {_POINTWISE} aten._to_copy.default aten.contiguous.default aten.copy.default aten.masked_fill.Tensor
    aten.elu_backward.default aten.leaky_relu_backward.default aten.softplus_backward.default aten.to.dtype
    prims.convert_element_type.default prims.div.default prims.fma.default prims.mul.default
    """.split()
) - {"aten.rrelu.default"}

# Which positional arguments give no element: they are overwritten, or only their shape counts.
UNREAD: Mapping[str, tuple[int, ...]] = {
    "aten.copy.default": (0,),
    "aten.copy_.default": (0,),
    "aten.bernoulli_.float": (0,),
    "aten.fill.Scalar": (0,),
    "aten.fill.Tensor": (0,),
    "aten.fill_.Scalar": (0,),
    "aten.fill_.Tensor": (0,),
    "aten.full_like.default": (0,),
    "aten.new_full.default": (0,),
    "aten.new_ones.default": (0,),
    "aten.new_zeros.default": (0,),
    "aten.nll_loss_backward.default": (1,),
    "aten.normal_.default": (0,),
    "aten.ones_like.default": (0,),
    "aten.rand_like.default": (0,),
    "aten.randint_like.low_dtype": (0,),
    "aten.randn_like.default": (0,),
    "aten.uniform_.default": (0,),
    "aten.zero_.default": (0,),
    "aten.zeros_like.default": (0,),
}

# Where a reduction's dimensions are, if not in argument 1.
DIMS: Mapping[str, int] = {"aten.linalg_vector_norm.default": 2, "aten.norm.ScalarOpt_dim": 2}

# Which argument is a table, of which no more is read than what is taken out of it.
INDEXED: Mapping[str, int] = dict.fromkeys(_GATHERS.split(), 0)
