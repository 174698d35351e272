"""The table of workloads: what it holds, and that every one of them builds and traces at full width."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from bench.workloads import WORKLOADS, Workload
from tests.workloads.models import collectives, fake_mesh, step_of

SUMMARY = """
gpt2_xl_ddp          16 data=16             replicate    -      4 x 1024
llama3_8b_fsdp       64 data=64             fully_shard  -      1 x 8192
llama3_70b_fsdp_tp8  64 data=8 tensor=8     fully_shard  tensor 1 x 8192
llama3_8b_hsdp       64 replicate=8 shard=8 hybrid_shard -      1 x 8192
llama3_8b_tp8_sp     8  tensor=8            -            tensor 1 x 8192
mixtral_ep8          64 data=8 expert=8     fully_shard  expert 1 x 4096
vit_l16_ddp          16 data=16             replicate    -      64 x 197
tiny_parameters_ddp  16 data=16             replicate    -      32 x 1
"""


def summary(workload: Workload) -> str:
    mesh = " ".join(f"{name}={size}" for name, size in workload.mesh)
    plan = workload.plan.axis if workload.plan else "-"
    size = f"{workload.micro_batch} x {workload.sequence_length}"
    return (
        f"{workload.name:<20} {workload.world_size:<2} {mesh:<19} {workload.data_parallel or '-':<12} {plan:<6} {size}"
    )


def test_the_table() -> None:
    assert "\n".join(map(summary, WORKLOADS.values())) == SUMMARY.strip()
    assert list(WORKLOADS) == [workload.name for workload in WORKLOADS.values()]


def traced(workload: Workload) -> GraphModule:
    """One rank's step in the workload's dtype, spread as its plan says, on fake tensors."""
    names, sizes = zip(*workload.mesh, strict=True)
    with ExitStack() as stack:
        stack.enter_context(fake_mesh(workload.world_size))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model, batch = workload.model(workload.dtype), workload.inputs()
        if workload.plan is not None:
            workload.plan.apply(model, mesh[workload.plan.axis])
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        step: Callable[..., list[Tensor]] = step_of(model)
        return make_fx(step, tracing_mode="real")(parameters, *batch)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_workload_traces_at_full_width_without_memory(workload: Workload) -> None:
    module = traced(workload.with_layers(2))
    kinds = {
        None: set(),
        "tensor": {"all_gather_into_tensor", "reduce_scatter_tensor"},
        "expert": {"all_to_all_single"},
    }
    assert set(collectives(module)) == kinds[workload.plan.axis if workload.plan else None]
    attentions = [node for node in module.graph.nodes if "flash_attention" in str(node.target)]
    assert len(attentions) == (0 if workload.name == "tiny_parameters_ddp" else 4)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_workload_builds_on_the_meta_device(workload: Workload) -> None:
    with torch.device("meta"):
        model, batch = workload.model(), workload.inputs()
    assert all(tensor.is_meta for tensor in (*model.parameters(), *batch))
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.get_default_dtype() == torch.float32


def test_a_workload_of_another_depth_differs_in_nothing_else() -> None:
    workload = WORKLOADS["llama3_8b_fsdp"].with_layers(3)
    with torch.device("meta"):
        assert len(list(workload.model().named_parameters())) == 3 * 9 + 3
    assert workload.sequence_length == 8192
