"""Tensor, sequence and expert parallelism: the collectives that it traces to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from bench.workloads import moe
from bench.workloads.parallel import expert_parallel, tensor_parallel
from tests.workloads.models import collectives, fake_mesh, step_of, tiny
from weft.cli.tasks import loss

Spread = Callable[[nn.Module, DeviceMesh], None]

# Two layers. Tensor parallel: attention and MLP gather tokens before and scatter them after; so do the embedding
# (scatters) and the head (gathers tokens, then logits, whose gradient every rank has). Mixture: to and fro.
TENSOR_FORWARD = {"all_gather_into_tensor": 6, "reduce_scatter_tensor": 5}
TENSOR_BACKWARD = {"all_gather_into_tensor": 5, "reduce_scatter_tensor": 5}
EXPERT_FORWARD = EXPERT_BACKWARD = {"all_to_all_single": 4}
CASES = [
    pytest.param("llama", tensor_parallel, TENSOR_FORWARD, TENSOR_BACKWARD, id="tensor"),
    pytest.param("moe", expert_parallel, EXPERT_FORWARD, EXPERT_BACKWARD, id="expert"),
]


@pytest.mark.parametrize(("name", "spread", "forward", "backward"), CASES)
def test_make_fx_traces_the_collectives(
    name: str, spread: Spread, forward: dict[str, int], backward: dict[str, int]
) -> None:
    with fake_mesh(2) as mesh:
        model, batch = tiny(name)
        spread(model, mesh)
        traced = make_fx(step_of(model), tracing_mode="fake")(dict(model.named_parameters()), *batch)
    assert collectives(traced) == {kind: forward[kind] + backward[kind] for kind in forward}


@pytest.mark.parametrize(("name", "spread", "forward", "backward"), CASES)
def test_compile_hands_over_the_collectives_in_two_whole_graphs(
    name: str, spread: Spread, forward: dict[str, int], backward: dict[str, int]
) -> None:
    graphs: list[dict[str, int]] = []

    def keep(module: GraphModule, inputs: Any) -> Any:
        graphs.append(collectives(module))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    with fake_mesh(2) as mesh:
        model, batch = tiny(name)
        spread(model, mesh)
        backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
        torch.autograd.backward(torch.compile(loss, fullgraph=True, backend=backend)(model, *batch))
    assert graphs == [forward, backward]


@pytest.mark.parametrize(("name", "spread"), [("llama", tensor_parallel), ("moe", expert_parallel)])
def test_a_model_on_the_meta_device_is_spread_and_traces(name: str, spread: Spread) -> None:
    with fake_mesh(2) as mesh:
        with torch.device("meta"):
            model, batch = tiny(name)
        spread(model, mesh)
        traced = make_fx(step_of(model), tracing_mode="fake")(dict(model.named_parameters()), *batch)
    assert collectives(traced)


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "GPT2"), ("moe", "MoETransformer")])
def test_only_a_llama_has_a_tensor_parallel_plan(name: str, kind: str) -> None:
    with fake_mesh(2) as mesh, pytest.raises(TypeError, match=f"not for {kind}"):
        tensor_parallel(tiny(name)[0], mesh)


def test_heads_must_fill_the_mesh() -> None:
    with fake_mesh(4) as mesh, pytest.raises(ValueError, match="2 key and value heads cannot be split over 4 ranks"):
        tensor_parallel(tiny("llama")[0], mesh)


def test_experts_must_fill_the_mesh() -> None:
    with fake_mesh(3) as mesh, pytest.raises(ValueError, match="4 experts cannot be spread evenly over 3 ranks"):
        expert_parallel(moe.MoETransformer(moe.moe_tiny()), mesh)
