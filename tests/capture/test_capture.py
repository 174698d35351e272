"""Capturing modules and steps: what comes in, under which names, from where; and that nothing is left behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single_autograd, all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft
from weft.errors import GraphError
from weft.ir import Program


class MLP(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MLP(), MLP()])
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss


def lines(program: Program) -> list[str]:
    """The ops without their origins."""
    return [line.split("  #")[0] for line in str(program).splitlines() if line.startswith(("%", "return"))]


def test_a_module_becomes_a_program_with_its_parameters_as_inputs() -> None:
    assert lines(weft.capture(MLP(), (torch.ones(4, 8),))) == [
        "%arg0_1: f32[4,8] = input()",
        "%up_weight: f32[16,8] = input()",
        "%down_weight: f32[8,16] = input()",
        "%t: f32[8,16;1,8] = aten.t.default(%up_weight)",
        "%mm: f32[4,16] = aten.mm.default(%arg0_1, %t)",
        "%relu: f32[4,16] = aten.relu.default(%mm)",
        "%t_1: f32[16,8;1,16] = aten.t.default(%down_weight)",
        "%mm_1: f32[4,8] = aten.mm.default(%relu, %t_1)",
        "return %mm_1",
    ]


def test_parameters_states_and_buffers_come_in_under_their_own_names() -> None:
    model = Stack()
    program = weft.capture(step, (model, torch.optim.Adam(model.parameters()), torch.ones(4, 8)))
    origins = [op.origin for op in program.inputs]
    names = [name for name, _ in model.named_parameters()]
    states = [f"{name}.{state}" for name in names for state in ("exp_avg", "exp_avg_sq")]
    assert sorted(origins) == sorted(["", "scale", *names, *states])


def test_the_backward_knows_the_module_and_the_line_of_its_forward() -> None:
    model = Stack()
    program = weft.capture(step, (model, torch.optim.SGD(model.parameters()), torch.ones(4, 8)))
    made = {op.target: op.origin.split()[0] for op in program.ops if op.target == "aten.threshold_backward.default"}
    assert made == {"aten.threshold_backward.default": "layers.0"}
    relus = [op.origin for op in program.ops if op.target == "aten.relu.default"]
    backward = [op.origin for op in program.ops if op.target == "aten.threshold_backward.default"]
    assert backward == relus[::-1]
    assert all("test_capture.py:" in origin for origin in relus)


def test_the_optimizer_writes_to_the_parameters_in_place() -> None:
    model = MLP()
    program = weft.capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.5), torch.ones(4, 8)))
    updates = [line for line in lines(program) if "aten.add_.Tensor" in line]
    assert updates == [
        "%add_: f32[16,8] = aten.add_.Tensor(%up_weight, %detach_3, alpha=-0.5)",
        "%add__1: f32[8,16] = aten.add_.Tensor(%down_weight, %detach_1, alpha=-0.5)",
    ]


def test_gradients_that_are_left_on_parameters_are_outputs() -> None:
    model = MLP()

    def loss(x: Tensor) -> Tensor:
        value: Tensor = model(x).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    program = weft.capture(loss, (torch.ones(4, 8),))
    shapes = [program[ref.name].out[0].shape for output in program.outputs for ref in [output] if ref is not None]  # type: ignore[union-attr]
    assert shapes == [(), (16, 8), (8, 16)]


def test_everything_is_put_back() -> None:
    model = Stack()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer, torch.ones(4, 8))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    tensors = [*model.parameters(), *model.buffers()]
    model.layers[0].up.weight.grad = torch.full((16, 8), 3.0)  # type: ignore[union-attr]
    weft.capture(step, (model, optimizer, torch.ones(4, 8)))
    after = (model.state_dict(), optimizer.state_dict())
    assert all(one is other for one, other in zip(tensors, [*model.parameters(), *model.buffers()], strict=True))
    assert torch.equal(model.layers[0].up.weight.grad, torch.full((16, 8), 3.0))  # type: ignore[union-attr]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_tied_parameters_are_one_input() -> None:
    model = MLP()
    model.down.weight = nn.Parameter(torch.ones(8, 16))
    twice = nn.ModuleList([model, nn.Linear(16, 8, bias=False)])
    twice[1].weight = model.down.weight

    def both(x: Tensor) -> Tensor:
        y: Tensor = twice[1](torch.relu(model.up(x))) + model(x)
        return y

    weights = [op.origin for op in weft.capture(both, (torch.ones(4, 8),), {}).inputs if "weight" in op.origin]
    assert len(weights) == 2


def test_a_model_on_the_meta_device_needs_no_memory() -> None:
    with torch.device("meta"):
        model = MLP(width=1 << 16)
    program = weft.capture(model, (torch.ones(4, 1 << 16, device="meta"),))
    assert sum(op.out[0].nbytes for op in program.inputs) > 2 * 32 * (1 << 30)


def test_numbers_and_structures_among_the_arguments_stay_what_they_are() -> None:
    def scaled(inputs: dict[str, Any], factor: float, *, negate: bool) -> dict[str, Tensor]:
        y = inputs["x"] * factor
        return {"y": -y if negate else y}

    program = weft.capture(scaled, ({"x": torch.ones(3)}, 0.5), {"negate": True})
    assert lines(program) == [
        "%arg0_1: f32[3] = input()",
        "%mul: f32[3] = aten.mul.Tensor(%arg0_1, 0.5)",
        "%neg: f32[3] = aten.neg.default(%mul)",
        "return %neg",
    ]


def test_a_world_of_any_size_is_pretended_and_left_again() -> None:
    def mean(x: Tensor) -> Tensor:
        group = dist.group.WORLD
        assert group is not None
        y: Tensor = all_reduce(x, "avg", group)
        return y

    program = weft.capture(mean, (torch.ones(4),), world_size=1024, rank=3)
    assert program.groups[0].ranks == tuple(range(1024))
    assert not dist.is_initialized()


def test_a_mesh_given_by_name_is_made_and_handed_over() -> None:
    def gather(x: Tensor, mesh: DeviceMesh) -> Tensor:
        y: Tensor = all_gather_single_autograd(x, 0, mesh.get_group("tensor"))
        return y

    program = weft.capture(gather, (torch.ones(4),), world_size=64, mesh={"data": 8, "tensor": 8})
    assert program.groups[0].ranks == tuple(range(8))


@pytest.fixture
def planned() -> Iterator[Program]:
    with weft.planning({"data": 2, "tensor": 4}) as mesh:
        model = Stack()
        plan = {
            "layers.*.up": ColwiseParallel(input_layouts=Shard(0)),
            "layers.*.down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(model, mesh["tensor"], plan)
        assert isinstance(model.layers[0].up.weight, DTensor)  # type: ignore[union-attr]
        optimizer = torch.optim.AdamW(model.parameters())
        yield weft.capture(step, (model, optimizer, torch.ones(4, 8)))


def test_tensor_parallelism_of_torch_is_captured_with_its_backward(planned: Program) -> None:
    weft.verify(planned)
    kinds = [op.comm.kind for op in planned.starts if op.comm is not None]
    forward = ["all_gather", "reduce_scatter"] * 2
    assert kinds == [*forward, "all_gather", "reduce_scatter", "all_gather"]
    assert {group.ranks for group in planned.groups} == {(0, 1, 2, 3)}
    assert planned["layers_0_up_weight"].out[0].shape == (4, 8)
    assert all("test_capture.py:" in op.origin for op in planned.starts)


def test_planning_leaves_no_world_behind(planned: Program) -> None:
    del planned
    assert dist.is_initialized()  # still inside


def decide(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_a_decision_by_value_names_the_line_and_the_way_out() -> None:
    line = decide.__code__.co_firstlineno + 1
    with pytest.raises(GraphError, match=rf"by the value of a tensor, at .*test_capture.py:{line}, .* torch.where"):
        weft.capture(decide, (torch.ones(3),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": {"data": 4}}, "a mesh needs a world"),
        ({"world_size": 8, "mesh": {"data": 4, "tensor": 4}}, "data=4 x tensor=4 takes 16 ranks, and the world has 8"),
        ({"world_size": 8, "rank": 8}, "rank 8 is not one of 8 ranks"),
    ],
)
def test_worlds_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        weft.capture(decide, (torch.ones(3),), **options)
    assert not dist.is_initialized()


def test_a_world_inside_another_is_refused() -> None:
    with weft.planning({"data": 2}), pytest.raises(GraphError, match="already rank 0 of 2"):
        weft.capture(decide, (torch.ones(3),), world_size=4)
