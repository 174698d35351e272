"""Captured steps: exactly which collectives each mode makes, in which dtype, with make_fx and with torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import weft
from tests.parallel import models
from weft.parallel import data_parallel

# Net has ten parameters: one is tied, one is a scalar. Six are read again by its backward: the tied one, two linear
# weights, weight and bias of the norm, which its derivative takes both, and the gain that multiplies.
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, int]]] = {
    "replicate": ((4,), {}, {"all_reduce": 10, "wait_tensor": 10}),
    "fully_shard": (
        (4,),
        {},
        {"all_gather_into_tensor": 9 + 6, "all_reduce": 1, "reduce_scatter_tensor": 9, "wait_tensor": 25},
    ),
    "fully_shard, kept": (
        (4,),
        {"reshard_after_forward": False},
        {"all_gather_into_tensor": 9, "all_reduce": 1, "reduce_scatter_tensor": 9, "wait_tensor": 19},
    ),
    "hybrid_shard": (
        (2, 2),
        {},
        {"all_gather_into_tensor": 9 + 6, "all_reduce": 9 + 2, "reduce_scatter_tensor": 9, "wait_tensor": 35},
    ),
}


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with models.fake_world(4):
        yield


def parallel_net(case: str, **more: Any) -> nn.Module:
    shape, options, _ = CASES[case]
    return data_parallel(models.net(), init_device_mesh("cpu", shape), case.split(",")[0], **options, **more)  # type: ignore[arg-type]


def capture(model: nn.Module) -> GraphModule:
    return models.step_graph(model, models.loss_of, torch.arange(8))


def compiled_graphs(model: nn.Module, *args: Tensor) -> list[GraphModule]:
    """The forward and backward graphs that torch.compile makes of a model; all in one frame, or it raises."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    torch.compiler.reset()
    torch.compile(model, fullgraph=True, backend=backend)(*args).sum().backward()
    return graphs


@pytest.mark.parametrize("case", CASES)
def test_make_fx_sees_every_collective(case: str) -> None:
    graph = capture(parallel_net(case))
    assert models.collectives(graph) == CASES[case][2]
    weft.verify(weft.from_fx(graph))


@pytest.mark.parametrize("case", CASES)
def test_torch_compile_sees_every_collective(case: str) -> None:
    forward, backward = map(models.collectives, compiled_graphs(parallel_net(case), torch.arange(8)))
    together = {kind: forward.get(kind, 0) + backward.get(kind, 0) for kind in forward | backward}
    expected = dict(CASES[case][2])
    if "all_gather_into_tensor" in forward and "kept" not in case:
        # The partitioner would rather gather the other gain and sum it again than keep the sum.
        expected["all_gather_into_tensor"] += 1
        expected["wait_tensor"] += 1
    assert together == expected
    assert forward.get("all_gather_into_tensor", 0) == (0 if case == "replicate" else 9)


def test_few_bytes_travel() -> None:
    """Gathers in the dtype of the computation, reductions in theirs, gradients in the parameters' own."""
    model = parallel_net("fully_shard", param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    program = weft.from_fx(capture(model))
    travelled = {(op.comm.kind, op.out[0].dtype) for op in program.starts if op.comm is not None}
    assert travelled == {("all_gather", "bf16"), ("reduce_scatter", "f32"), ("all_reduce", "f32")}
    made = {op.name: op.out[0].dtype for op in program.ops}
    assert {made[ref.name] for ref in program.outputs if isinstance(ref, weft.Ref)} == {"f32"}


def test_gradients_travel_as_they_are_without_a_reduce_dtype() -> None:
    program = weft.from_fx(capture(parallel_net("replicate", param_dtype=torch.bfloat16)))
    assert {op.out[0].dtype for op in program.starts} == {"bf16"}


def test_padding_only_where_sizes_are_uneven() -> None:
    even = data_parallel(nn.Linear(4, 8), init_device_mesh("cpu", (4,)), "fully_shard")
    graph = models.step_graph(even, lambda call, x: call(x).sum(), torch.randn(2, 4))
    assert not [node for node in graph.graph.nodes if "pad" in str(node.target)]


def test_every_rank_has_the_same_operators() -> None:
    """The last rank holds short and empty pieces."""
    first = [str(node.target) for node in capture(parallel_net("fully_shard")).graph.nodes]
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    assert [str(node.target) for node in capture(parallel_net("fully_shard")).graph.nodes] == first


class Watch(nn.Module):
    """Remembers the storage of the weight that its forward saw."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second.weight
        self.seen.append(StorageWeakRef(weight.untyped_storage()))  # type: ignore[no-untyped-call]
        return nn.functional.linear(self.first(x), weight)


@pytest.mark.parametrize("reshard", [True, False])
def test_a_gathered_parameter_is_freed_after_the_forward(reshard: bool) -> None:
    mesh = init_device_mesh("cpu", (4,))
    model = data_parallel(Watch(), mesh, "fully_shard", reshard_after_forward=reshard)
    loss = model(torch.randn(2, 8)).sum()
    assert isinstance(model, Watch)
    assert [seen.expired() for seen in model.seen] == [reshard]  # type: ignore[no-untyped-call]
    loss.backward()


class Shared(nn.Module):
    """A tied parameter that is first used inside one checkpointed region, then in another and outside of both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.two.weight = self.three.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.one, x, use_reentrant=False)
        x = checkpoint(self.two, x, use_reentrant=False)
        out: Tensor = self.three(x)
        return out


def test_tied_parameters_cross_checkpointed_regions() -> None:
    model = data_parallel(Shared(), init_device_mesh("cpu", (4,)), "fully_shard")
    forward, backward = map(models.collectives, compiled_graphs(model, torch.randn(2, 8)))
    assert forward["all_gather_into_tensor"] == 1
    assert backward["reduce_scatter_tensor"] == 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


def test_checkpointed_blocks_gather_twice_not_thrice() -> None:
    model = data_parallel(Block(), init_device_mesh("cpu", (4,)), "fully_shard")
    graph = models.step_graph(model, lambda call, x: call(x).sum(), torch.randn(2, 8))
    assert models.collectives(graph)["all_gather_into_tensor"] == 2 * 4
    forward, backward = map(models.collectives, compiled_graphs(model, torch.randn(2, 8)))
    assert forward["all_gather_into_tensor"] == 4
    assert backward["all_gather_into_tensor"] == 3  # nobody asks for the last bias again


def test_a_repeated_layer_is_compiled_once() -> None:
    model = data_parallel(
        nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), init_device_mesh("cpu", (4,)), "fully_shard"
    )
    counter = CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    for layer in model.children():
        layer.compile(fullgraph=True, backend=counter)
    model(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert counter.frame_count == 1


def tensor_parallel(mesh: DeviceMesh, mode: Any) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return data_parallel(parallelize_module(models.net(hidden=16), mesh["tensor"], plan), mesh["data"], mode)


@pytest.mark.parametrize("mode", ["replicate", "fully_shard"])
def test_tensor_parallel_modules_capture(mode: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    expected = dict(CASES[mode][2])
    expected["all_reduce"] += 2  # the activation in the forward, its gradient in the backward
    expected["wait_tensor"] += 2
    assert models.collectives(capture(tensor_parallel(mesh, mode))) == expected
    forward, backward = map(models.collectives, compiled_graphs(tensor_parallel(mesh, mode), torch.arange(8)))
    assert forward.get("all_gather_into_tensor", 0) == (9 if mode == "fully_shard" else 0)
    assert backward.get("all_gather_into_tensor", 0) == (7 if mode == "fully_shard" else 0)


def with_a_part() -> nn.Module:
    """A net whose first linear layer is kept together by half of the ranks only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
    model = models.net()
    data_parallel(model.up, mesh["data"], "fully_shard", gradient_divisor=2)
    return data_parallel(model, mesh["data", "expert"]._flatten(), "fully_shard")


def test_a_part_keeps_its_mesh_and_joins_the_model() -> None:
    graph = capture(with_a_part())
    assert models.collectives(graph) == CASES["fully_shard"][2]
    own = [op.comm for op in weft.from_fx(graph).starts if op.comm is not None and op.comm.group.size == 2]
    # The weight is read again by the backward and the bias is not.
    assert [comm.kind for comm in own] == ["all_gather"] * 3 + ["reduce_scatter"] * 2
    assert {comm.group.ranks for comm in own} == {(0, 2)}
    assert len([node for node in graph.graph.nodes if "div.Tensor" in str(node.target) and node.args[1] == 2]) == 2


def test_torch_compile_takes_a_model_with_a_part() -> None:
    forward, backward = map(models.collectives, compiled_graphs(with_a_part(), torch.arange(8)))
    assert forward["all_gather_into_tensor"] == 9
    assert backward["reduce_scatter_tensor"] == 9
