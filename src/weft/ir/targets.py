"""The one table of what Weft knows of targets: their traits, and the names of its own ops.

Torch's operators are listed so that a program written by hand needs no annotations; for a graph that comes from
torch, `fx/` reads the traits of the operators that are not here from their schemas. A test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.ir.traits import BARRIER, PURE, Traits

# What communicates: target -> kind. The in-place and `out` forms are targets of their own, since they write.
STARTS: Mapping[str, str] = {
    "all_gather.start": "all_gather",
    "all_gather_out.start": "all_gather",
    "reduce_scatter.start": "reduce_scatter",
    "reduce_scatter_out.start": "reduce_scatter",
    "all_reduce.start": "all_reduce",
    "all_reduce_.start": "all_reduce",
    "all_to_all.start": "all_to_all",
    "broadcast.start": "broadcast",
    "broadcast_.start": "broadcast",
}

# Matmuls with a collective inside them: target -> kind. What they are given is what torch's operators of `symm_mem` are
# given, without group and reduction. The first two give back what was gathered, then the products.
FUSED: Mapping[str, str] = {
    "all_gather_matmul.fused": "all_gather",
    "all_gather_scaled_matmul.fused": "all_gather",
    "matmul_reduce_scatter.fused": "reduce_scatter",
    "scaled_matmul_reduce_scatter.fused": "reduce_scatter",
}

_OWN: Mapping[str, Traits] = {
    "input": PURE,
    "get_attr": PURE,
    "getitem": Traits(views=(0,)),
    "wait": Traits(views=(0,)),
    "weft.pack.default": PURE,  # (inputs, dtype, rows): a buffer to send, as fx/pack.py has it
    "all_gather.start": Traits(communicates=True),
    "all_gather_out.start": Traits(communicates=True, views=("out",), mutates=("out",)),
    "reduce_scatter.start": Traits(communicates=True),
    "reduce_scatter_out.start": Traits(communicates=True, views=("out",), mutates=("out",)),
    "all_reduce.start": Traits(communicates=True),
    "all_reduce_.start": Traits(communicates=True, views=(0,), mutates=(0,)),
    "all_to_all.start": Traits(communicates=True),
    "broadcast.start": Traits(communicates=True),
    "broadcast_.start": Traits(communicates=True, views=(0,), mutates=(0,)),
    **dict.fromkeys(FUSED, Traits(communicates=True, matmul=True)),
}

_VIEWS = """
aten.alias.default aten.as_strided.default aten.chunk.default aten.detach.default aten.diagonal.default
aten.expand.default aten.permute.default aten.select.int aten.slice.Tensor aten.split.Tensor
aten.split_with_sizes.default aten.squeeze.default aten.squeeze.dim aten.squeeze.dims aten.t.default
aten.transpose.int aten.unbind.int aten.unfold.default aten.unsqueeze.default aten.view.default aten.view.dtype
aten.view_as_complex.default aten.view_as_real.default aten._unsafe_view.default aten._reshape_alias.default
prims.broadcast_in_dim.default
"""

# Views where the layout or the device allows it, copies where not.
_MAYBE_VIEWS = """
aten.contiguous.default aten.flatten.using_ints aten.reshape.default aten.reshape_as.default aten.to.device
aten.to.dtype aten.to.dtype_layout aten.to.other aten.type_as.default prims.device_put.default
"""

_MATMULS = """
aten.mm.default aten.bmm.default aten.addmm.default aten.baddbmm.default aten.linear.default aten.matmul.default
aten._scaled_mm.default aten._grouped_mm.default aten._scaled_grouped_mm.default aten._int_mm.default
aten.mm.dtype aten.bmm.dtype aten.addmm.dtype
"""

_RANDOM = """
aten.bernoulli.default aten.bernoulli.p aten.multinomial.default aten.native_dropout.default aten.normal.Tensor_Tensor
aten.rand.default aten.rand_like.default aten.randint.default aten.randint.low aten.randn.default
aten.randn_like.default aten.randperm.default prims.inductor_seed.default prims.inductor_seeds.default
aten._scaled_dot_product_flash_attention.default aten._scaled_dot_product_efficient_attention.default
aten._scaled_dot_product_cudnn_attention.default aten._scaled_dot_product_fused_attention_overrideable.default
aten._scaled_dot_product_flash_attention_for_cpu.default
aten._scaled_dot_product_efficient_attention_backward.default
aten._scaled_dot_product_cudnn_attention_backward.default
"""

# Written argument 0, which is also the result.
_IN_PLACE = """
aten.add_.Tensor aten.add_.Scalar aten.addcdiv_.default aten.addcmul_.default aten.copy_.default aten.div_.Scalar
aten.div_.Tensor aten.fill_.Scalar aten.fill_.Tensor aten.index_put_.default aten.lerp_.Scalar aten.mul_.Scalar
aten.mul_.Tensor aten.neg_.default aten.relu_.default aten.sqrt_.default aten.sub_.Scalar aten.sub_.Tensor
aten.zero_.default
"""

# Written argument 0, a list of tensors; nothing is returned.
_FOREACH = """
aten._foreach_add_.List aten._foreach_add_.Scalar aten._foreach_add_.ScalarList aten._foreach_addcdiv_.Scalar
aten._foreach_addcdiv_.ScalarList aten._foreach_addcmul_.Scalar aten._foreach_copy_.default
aten._foreach_div_.List aten._foreach_div_.Scalar aten._foreach_div_.ScalarList aten._foreach_lerp_.Scalar
aten._foreach_mul_.List aten._foreach_mul_.Scalar aten._foreach_mul_.Tensor aten._foreach_neg_.default
aten._foreach_sqrt_.default aten._foreach_sub_.List aten._foreach_sub_.Scalar aten._foreach_zero_.default
"""

_PURE = """
aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default aten._foreach_add.List
aten._foreach_add.Scalar aten._foreach_addcdiv.Scalar aten._foreach_addcmul.Scalar aten._foreach_div.List
aten._foreach_div.Scalar aten._foreach_mul.List aten._foreach_mul.Scalar aten._foreach_norm.Scalar
aten._foreach_sqrt.default aten._foreach_sub.List aten._local_scalar_dense.default aten._log_softmax.default
aten._log_softmax_backward_data.default aten._native_batch_norm_legit_no_training.default
aten._scaled_dot_product_flash_attention_backward.default
aten._scaled_dot_product_flash_attention_for_cpu_backward.default
aten._softmax.default
aten._softmax_backward_data.default aten._to_copy.default aten._unsafe_index.Tensor aten._unsafe_index_put.default
aten.abs.default aten.add.Scalar aten.add.Tensor aten.addcdiv.default aten.addcmul.default aten.all.default
aten.amax.default aten.amin.default aten.any.default aten.any.dim aten.arange.default aten.arange.start
aten.arange.start_step aten.argmax.default aten.avg_pool2d.default aten.avg_pool2d_backward.default
aten.bitwise_and.Tensor aten.bitwise_not.default aten.bitwise_or.Tensor aten.cat.default aten.clamp.default
aten.clamp_min.default aten.clamp_max.default aten.clone.default aten.constant_pad_nd.default aten.convolution.default
aten.convolution_backward.default aten.copy.default aten.cos.default aten.cumsum.default aten.div.Scalar
aten.div.Tensor aten.div.Tensor_mode aten.embedding.default aten.embedding_dense_backward.default
aten.empty.memory_format aten.empty_like.default aten.empty_strided.default aten.eq.Scalar aten.eq.Tensor
aten.erf.default aten.exp.default aten.expm1.default aten.fill.Scalar aten.flip.default aten.floor.default
aten.full.default aten.full_like.default aten.gather.default aten.ge.Scalar aten.ge.Tensor aten.gelu.default
aten.gelu_backward.default aten.gt.Scalar aten.gt.Tensor aten.index.Tensor aten.index_add.default
aten.index_put.default aten.index_select.default aten.isinf.default aten.isnan.default aten.le.Scalar aten.le.Tensor
aten.lerp.Scalar aten.log.default aten.log1p.default aten.log2.default aten.logical_and.default
aten.logical_not.default aten.logical_or.default aten.lt.Scalar aten.lt.Tensor aten.masked_fill.Scalar
aten.masked_fill.Tensor aten.masked_scatter.default aten.max.default aten.max.dim
aten.max_pool2d_with_indices.default aten.max_pool2d_with_indices_backward.default aten.maximum.default
aten.mean.default aten.mean.dim aten.min.dim aten.minimum.default aten.mul.Scalar aten.mul.Tensor
aten.native_dropout_backward.default aten.native_group_norm.default aten.native_group_norm_backward.default
aten.native_layer_norm.default aten.native_layer_norm_backward.default aten.ne.Scalar aten.ne.Tensor
aten.neg.default aten.new_empty.default aten.new_zeros.default aten.nll_loss_backward.default
aten.nll_loss_forward.default aten.nonzero.default aten.ones.default aten.ones_like.default aten.pow.Scalar
aten.pow.Tensor_Scalar aten.pow.Tensor_Tensor aten.prod.dim_int aten.reciprocal.default aten.relu.default
aten.remainder.Scalar aten.remainder.Tensor aten.repeat.default aten.round.default aten.rsqrt.default
aten.rsub.Scalar aten.scalar_tensor.default aten.scatter.src aten.scatter.value aten.scatter_add.default
aten.select_backward.default aten.select_scatter.default aten.sigmoid.default aten.sigmoid_backward.default
aten.sign.default aten.silu.default aten.silu_backward.default aten.sin.default aten.slice_backward.default
aten.slice_scatter.default aten.softplus.default aten.sort.default aten.sqrt.default aten.stack.default
aten.sub.Scalar aten.sub.Tensor aten.sum.default aten.sum.dim_IntList aten.sym_numel.default aten.sym_size.int
aten.sym_storage_offset.default aten.sym_stride.int aten.tanh.default aten.tanh_backward.default
aten.threshold_backward.default aten.topk.default aten.tril.default aten.triu.default aten.unfold_backward.default
aten.upsample_nearest2d.vec aten.var.correction aten.var_mean.correction aten.where.self aten.zeros.default
aten.zeros_like.default
prims.convert_element_type.default prims.div.default
prims.fma.default prims.inductor_force_stride_order.default prims.inductor_lookup_seed.default
prims.inductor_random.default prims.inductor_randint.default prims.iota.default prims.mul.default prims.sum.default
"""


def _rows() -> Iterator[tuple[str, Traits]]:
    yield from _OWN.items()
    for names, traits in (
        (_VIEWS, Traits(views=(0,))),
        (_MAYBE_VIEWS, Traits(views=(0,), copies=True)),
        (_MATMULS, Traits(matmul=True)),
        (_RANDOM, Traits(random=True)),
        (_IN_PLACE, Traits(views=(0,), mutates=(0,))),
        (_FOREACH, Traits(mutates=(0,))),
        (_PURE, PURE),
    ):
        for name in names.split():
            yield name, traits


TARGETS: Mapping[str, Traits] = dict(_rows())


def traits_of(target: str) -> Traits:
    """The traits of a target; an unknown one is a barrier."""
    return TARGETS.get(target, BARRIER)
