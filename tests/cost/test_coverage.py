"""Every op that the workloads and the examples run has an estimate that is more than its bytes."""

from __future__ import annotations

import pytest

from bench.capture import captured
from bench.workloads import WORKLOADS
from tests.analysis.texts import program
from tests.cost.toys import Toy
from weft.cost.compute import known
from weft.cost.prices import prices

# All torch targets of the workloads' and the examples' training steps, with AdamW (single, foreach and fused) and SGD.
SEEN = """
aten._foreach_add_.Scalar aten._foreach_add_.Tensor aten._foreach_addcdiv_.ScalarList aten._foreach_addcmul_.Scalar
aten._foreach_div_.ScalarList aten._foreach_lerp_.Scalar aten._foreach_mul_.Scalar aten._foreach_sqrt.default
aten._fused_adamw_.default aten._log_softmax.default aten._log_softmax_backward_data.default
aten._scaled_dot_product_flash_attention_for_cpu.default
aten._scaled_dot_product_flash_attention_for_cpu_backward.default aten._softmax.default
aten._softmax_backward_data.default aten._to_copy.default aten._unsafe_view.default aten.add.Tensor aten.add_.Scalar
aten.add_.Tensor aten.addcdiv_.default aten.addcmul_.default aten.addmm.default aten.arange.default
aten.arange.start_step aten.argmax.default aten.as_strided.default
aten.bitwise_or.Tensor aten.bmm.default aten.cat.default aten.clamp.default
aten.clone.default aten.constant_pad_nd.default aten.convolution.default aten.convolution_backward.default
aten.cos.default aten.cumsum.default aten.detach.default aten.div.Scalar aten.div.Tensor aten.embedding.default
aten.embedding_dense_backward.default aten.eq.Tensor aten.expand.default aten.ge.Scalar aten.gelu.default
aten.gelu_backward.default aten.index_add.default aten.index_put_.default aten.index_select.default aten.lerp_.Scalar
aten.lift_fresh_copy.default aten.lt.Scalar aten.mean.dim aten.mm.default aten.mse_loss.default
aten.mse_loss_backward.default aten.mul.Scalar aten.mul.Tensor aten.mul_.Tensor aten.native_layer_norm.default
aten.native_layer_norm_backward.default aten.neg.default aten.new_zeros.default aten.nll_loss_backward.default
aten.nll_loss_forward.default aten.ones_like.default aten.permute.default aten.pow.Scalar aten.pow.Tensor_Scalar
aten.relu.default aten.rsqrt.default aten.scalar_tensor.default aten.scatter.src aten.select.int
aten.select_backward.default aten.silu.default aten.silu_backward.default aten.sin.default aten.slice.Tensor
aten.slice_backward.default aten.split.Tensor aten.sqrt.default aten.squeeze.dim aten.stack.default aten.sub.Tensor
aten.sum.dim_IntList aten.t.default aten.threshold_backward.default aten.topk.default aten.transpose.int
aten.unbind.int aten.unsqueeze.default aten.view.default aten.where.self
"""


@pytest.mark.parametrize("target", SEEN.split())
def test_a_target_of_the_workloads_is_known(target: str) -> None:
    traits = "" if program(f"%o: f32[1] = {target}()")["o"].traits.views else " {pure}"
    assert known(program(f"%o: f32[1] = {target}(){traits}")["o"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_priced_without_guessing_and_the_list_is_complete(name: str) -> None:
    subject = captured(WORKLOADS[name].with_layers(1))
    found = prices(subject, Toy())
    assert found.unknown == {}
    assert sum(found.us) > 0
    torch_targets = {op.target for op in subject.ops if "." in op.target and not op.is_start}
    assert sorted(torch_targets - set(SEEN.split())) == []
