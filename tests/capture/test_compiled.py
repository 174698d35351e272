"""`capture_compiled` gives the graphs that torch.compile hands to a backend: the same ops, which compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx import GraphModule

import weft
from tests.parallel import models
from weft import GraphError, Program
from weft.ir.specs import ScalarSpec
from weft.parallel import data_parallel
from weft.run import local_ranks


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


# The mesh, and what makes the model parallel over it.
PARALLEL: dict[str, tuple[dict[str, int], Callable[[nn.Module, DeviceMesh], nn.Module]]] = {
    "replicate": ({"data": 4}, data_parallel),
    "fully_shard": ({"data": 4}, lambda model, mesh: data_parallel(model, mesh, "fully_shard")),
    "kept": ({"data": 4}, lambda model, mesh: data_parallel(model, mesh, "fully_shard", reshard_after_forward=False)),
    "hybrid_shard": ({"replica": 2, "shard": 2}, lambda model, mesh: data_parallel(model, mesh, "hybrid_shard")),
    "tensor": ({"tensor": 4}, tensor_parallel),
    "both": (
        {"data": 2, "tensor": 2},
        lambda model, mesh: data_parallel(tensor_parallel(model, mesh["tensor"]), mesh["data"], "fully_shard"),
    ),
}


def received(model: nn.Module, *args: Any) -> list[list[str]]:
    """The targets of the graphs that a backend of torch.compile is given, in their order."""
    found: list[list[str]] = []

    def record(module: GraphModule, _: Any) -> Any:
        found.append([str(node.target) for node in module.graph.nodes])
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=record,
        bw_compiler=record,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    torch.compiler.reset()
    result = torch.compile(model, backend=backend, dynamic=False)(*args)
    if result.requires_grad:
        result.sum().backward()
    return found


def targets(captured: weft.Compiled) -> list[list[str]]:
    programs = [one for one in (captured.forward, captured.backward) if one is not None]
    return [[str(node.target) for node in weft.to_fx(one).graph.nodes] for one in programs]


@pytest.fixture
def fake_world() -> Iterator[None]:
    with models.fake_world(4):
        yield


@pytest.mark.parametrize("case", PARALLEL)
@pytest.mark.usefixtures("fake_world")
def test_the_graphs_are_those_that_a_backend_receives(case: str) -> None:
    shape, make = PARALLEL[case]
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    model = make(models.net(hidden=16), mesh)
    captured = weft.capture_compiled(model, (torch.arange(8),))
    expected = received(model, torch.arange(8))
    assert targets(captured) == expected
    assert len(expected) == 2


@pytest.mark.parametrize("case", PARALLEL)
def test_planned_without_memory_the_graphs_are_the_same(case: str) -> None:
    shape, make = PARALLEL[case]
    with models.fake_world(4):
        mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
        real = weft.capture_compiled(make(models.net(hidden=16), mesh), (torch.arange(8),))
    with weft.planning(shape) as mesh:
        planned = weft.capture_compiled(make(models.net(hidden=16), mesh), (torch.arange(8),))
    for one, other in ((real.forward, planned.forward), (real.backward, planned.backward)):
        assert one is not None
        assert other is not None
        weft.verify(one)
        weft.verify(other)
        assert calls(one) == calls(other)


def calls(program: Program) -> list[tuple[str, str]]:
    """What each op does, and for whom. Meshes are inputs, and how many of them Dynamo tells apart differs."""
    return [(op.target, op.origin) for op in program.ops if op.out != (ScalarSpec("object"),)]


def starts(program: Program | None) -> list[str]:
    """Kind and origin of each collective, without the file."""
    assert program is not None
    found = [(op.comm.kind, op.origin.split(" tests/")[0]) for op in program.starts if op.comm is not None]
    return [f"{kind}: {origin}" for kind, origin in found]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        out: Tensor = self.down(hidden) * self.scale
        return out


def test_collectives_say_which_parameter_they_serve_and_inputs_what_they_are() -> None:
    with weft.planning({"data": 4}) as mesh:
        model = data_parallel(Pair(), mesh, "fully_shard")
        captured = weft.capture_compiled(model, (torch.ones(2, 4),))
    assert starts(captured.forward) == ["all_gather: up.weight", "all_gather: down.weight"]
    assert starts(captured.backward) == [
        "all_gather: down.weight",
        "reduce_scatter: gradient of down.weight",
        "reduce_scatter: gradient of up.weight",
    ]
    assert [op.origin for op in captured.forward.inputs if op.origin] == ["up.weight", "down.weight", "scale"]


def test_the_backward_knows_the_module_and_the_line_of_its_forward() -> None:
    captured = weft.capture_compiled(nn.Sequential(Pair(), Pair()), (torch.ones(2, 4),))
    assert captured.backward is not None
    line = Pair.forward.__code__.co_firstlineno + 1
    for program, target in ((captured.forward, "aten.relu"), (captured.backward, "aten.threshold_backward")):
        origins = sorted(op.origin for op in program.ops if op.target.startswith(target))
        assert origins == [f"{module} tests/capture/test_compiled.py:{line}" for module in ("0", "1")]


def no_gradients(model: nn.Module) -> weft.Compiled:
    with torch.no_grad():
        return weft.capture_compiled(model, (torch.ones(2, 4),))


def inference(model: nn.Module) -> weft.Compiled:
    with torch.inference_mode():
        return weft.capture_compiled(model, (torch.ones(2, 4),))


def frozen(model: nn.Module) -> weft.Compiled:
    return weft.capture_compiled(model.requires_grad_(False), (torch.ones(2, 4),))


@pytest.mark.parametrize("how", [no_gradients, inference, frozen])
def test_without_gradients_there_is_only_a_forward(how: Callable[[nn.Module], weft.Compiled]) -> None:
    captured = how(Pair())
    assert captured.backward is None
    assert [op.target for op in captured.forward.ops if op.target != "input"] == [
        "aten.t.default",
        "aten.mm.default",
        "aten.relu.default",
        "aten.t.default",
        "aten.mm.default",
        "aten.mul.Tensor",
    ]
    with weft.planning({"data": 4}) as mesh:
        assert how(data_parallel(Pair(), mesh, "fully_shard")).backward is None


def test_buffers_that_a_training_forward_updates_are_written_in_the_graph() -> None:
    captured = weft.capture_compiled(nn.BatchNorm1d(4), (torch.ones(2, 4),))
    written = [captured.forward[op.args[0].name].origin for op in captured.forward.ops if "copy_" in op.target]  # type: ignore[union-attr]
    assert written == ["num_batches_tracked", "running_mean", "running_var"]


def test_a_function_with_keywords_and_a_model_that_it_closes_over() -> None:
    model = Pair()

    def loss(x: Tensor, *, weight: Tensor) -> Tensor:
        value: Tensor = (model(x) * weight).sum()
        return value

    captured = weft.capture_compiled(loss, (torch.ones(2, 4),), {"weight": torch.ones(4)})
    assert sorted(op.origin for op in captured.forward.inputs) == ["", "", "down.weight", "scale", "up.weight"]
    assert captured.backward is not None
    assert modules_of(captured.forward) == ["up", "down"]


def test_a_model_among_the_arguments_and_a_method_of_one() -> None:
    def run(one: nn.Module, *, other: nn.Module) -> Tensor:
        y: Tensor = one(torch.ones(2, 4)) + other(torch.ones(2, 4))
        return y

    both = weft.capture_compiled(run, (Pair(),), {"other": Pair()}).forward
    assert modules_of(both) == ["up", "down", "up", "down"]
    names = [f"Pair_{number}.{name}" for number in (0, 1) for name in ("down.weight", "scale", "up.weight")]
    assert sorted(op.origin for op in both.inputs) == names
    assert modules_of(weft.capture_compiled(Pair().forward, (torch.ones(2, 4),)).forward) == ["up", "down"]


def modules_of(program: Program) -> list[str]:
    """The module of each matrix product."""
    return [op.origin.split()[0] for op in program.ops if op.target == "aten.mm.default"]


def test_progress_is_told_of_the_modules_in_both_graphs() -> None:
    told: list[str] = []
    model = nn.Sequential(Pair(), Pair())
    weft.capture_compiled(model, (torch.ones(2, 4),), progress=lambda where, ops: told.append(where))
    modules = ["0.up", "0", "0.down", "1.up", "1", "1.down"]
    assert [where for where, _ in groupby(told) if where in modules] == [
        "0.up",
        "0",
        "0.down",
        "0",
        "1.up",
        "1",
        "1.down",
        "1",
    ]
    assert {where for where in told if where.startswith("backward of")} == {f"backward of {one}" for one in modules}


# Nothing is left behind


def test_what_was_compiled_before_stays_compiled_and_what_comes_after_is_compiled_anew() -> None:
    torch.compiler.reset()
    model, counter = Pair(), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    compiled(torch.ones(2, 4))
    weft.capture_compiled(model, (torch.ones(2, 4),))
    weft.capture_compiled(model, (torch.ones(3, 4),))
    compiled(torch.ones(2, 4))
    assert counter.frame_count == 1
    torch.compiler.reset()
    weft.capture_compiled(model, (torch.ones(2, 4),))
    compiled(torch.ones(2, 4))
    assert counter.frame_count == 2


def test_another_shape_gives_static_shapes_again() -> None:
    model = Pair()
    for length in (2, 3, 5):
        program = weft.capture_compiled(model, (torch.ones(length, 4),)).forward
        assert {op.out[0].shape[0] for op in program.ops if op.target == "aten.mm.default"} == {length}


def test_nothing_is_computed_and_the_model_stays_as_it_is() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), Pair())
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    tensors = [*model.parameters(), *model.buffers()]
    weft.capture_compiled(model, (torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),))
    assert all(one is other for one, other in zip(tensors, [*model.parameters(), *model.buffers()], strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_what_torch_compile_makes_no_graph_of_is_refused() -> None:
    with pytest.raises(GraphError, match=r"made no graph, at .*test_compiled\.py:\d+: the model computes nothing"):
        weft.capture_compiled(lambda: 3)


# The programs compute what eager computes


def chained(captured: weft.Compiled, inputs: list[Any], results: int) -> tuple[Any, list[Any]]:
    """Run forward and backward as AOTAutograd does: what the forward saved goes to the backward, and a one."""
    assert captured.backward is not None
    with torch.no_grad():
        outputs = weft.to_fx(captured.forward)(*inputs)
    names = [output.name if isinstance(output, weft.Ref) else "" for output in captured.forward.outputs]
    saved = dict(zip(names[results:], outputs[results:], strict=True))
    given = [saved[op.name] if op.name in saved else torch.ones(()) for op in captured.backward.inputs]
    with torch.no_grad():
        return outputs[0], list(weft.to_fx(captured.backward)(*given))


def by_name(model: nn.Module, words: Tensor, captured: weft.Compiled) -> list[Any]:
    """The forward's inputs, from the model's state: a DTensor comes in as what this rank holds, and as its mesh."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    inputs: list[Any] = []
    for op in captured.forward.inputs:
        if op.out == (ScalarSpec("object"),):
            inputs.append(next(one.device_mesh for one in state.values() if isinstance(one, DTensor)))
        else:
            value = state.get(op.origin, words)
            inputs.append(value.to_local() if isinstance(value, DTensor) else value)
    return inputs


def loss_and_gradients(rank: int, case: str) -> dict[str, tuple[Tensor, Tensor]]:
    """What eager computes, and what the captured programs do, under the same names."""
    shape, make = PARALLEL[case]
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    model = make(models.net(hidden=16), mesh)
    words = models.batch(0).chunk(4)[rank // 2 if "tensor" in shape else rank]

    def loss(words: Tensor) -> Tensor:
        return models.loss_of(model, words)

    captured = weft.capture_compiled(loss, (words,))
    value, gradients = chained(captured, by_name(model, words, captured), results=1)
    expected = loss(words)
    expected.backward()  # type: ignore[no-untyped-call]
    both = {"loss": (value, expected.detach())}
    state = dict(model.named_parameters())
    for op, gradient in zip(captured.forward.inputs, gradients, strict=True):
        if op.origin in state:
            own = state[op.origin].grad
            assert own is not None
            both[op.origin] = (gradient, own.to_local() if isinstance(own, DTensor) else own)
    assert both.keys() == {"loss", *state}
    return both


def all_cases(rank: int) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    return {case: loss_and_gradients(rank, case) for case in PARALLEL}


@pytest.mark.gloo
@pytest.mark.slow
def test_on_four_ranks_the_programs_compute_the_loss_and_the_gradients_of_eager() -> None:
    for cases in local_ranks(all_cases, 4, time_limit_s=240):
        for case, values in cases.items():
            for name, (found, expected) in values.items():
                assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6), f"{case}, {name}"
