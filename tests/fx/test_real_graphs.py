"""Graphs from AOTAutograd, make_fx and export: every node comes back, and the lowered graph computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.distributed._functional_collectives import all_gather_single_autograd, all_reduce
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import weft
from tests.fx.graphs import Captured, aot_graphs, assert_equal, assert_runs_alike, lines, round_trip, rows, world_group
from weft import pipeline
from weft.fx import relink
from weft.run import virtual

pytestmark = pytest.mark.usefixtures("world")


class Block(nn.Module):
    """What most graphs are made of: a linear layer, a norm, attention, dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        q = self.inner(x).view(1, 4, 2, 4).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, q, q)
        return functional.dropout(mixed.transpose(1, 2).reshape(4, 8), 0.5)


def recomputed(x: Tensor) -> Any:
    return checkpoint(lambda x: functional.dropout(x.sin().cos(), 0.5), x, use_reentrant=False)


def statistics(x: Tensor) -> tuple[Tensor, ...]:
    low, high = torch.split(x, [1, 3])
    largest, place = x.max(dim=0)
    return low * 2, high + largest, place


AOT: dict[str, Callable[[], list[Captured]]] = {
    "a block": lambda: aot_graphs(Block(), torch.ones(4, 8)),
    "with symbols": lambda: aot_graphs(nn.Linear(8, 8), torch.ones(4, 8), dynamic=True),
    "checkpointed": lambda: aot_graphs(recomputed, torch.ones(4, 8, requires_grad=True)),
    "several results": lambda: aot_graphs(statistics, torch.ones(4, 8, requires_grad=True)),
}


@pytest.mark.parametrize("make", AOT.values(), ids=AOT.keys())
def test_the_graphs_of_aot_autograd_come_back_and_run(make: Callable[[], list[Captured]]) -> None:
    graphs = make()
    assert len(graphs) == 2
    for captured in graphs:
        program = round_trip(captured.module)
        assert_runs_alike(weft.to_fx(program), captured.module, captured.inputs)


def test_a_recomputed_dropout_keeps_its_place_among_random_ops() -> None:
    forward, backward = map(weft.from_fx, (captured.module for captured in AOT["checkpointed"]()))
    assert [line for line in lines(forward) if "rng_state" in line][:1] == [
        "%run_and_save_rng_state: object = "
        "higher_order.run_and_save_rng_state(&aten.native_dropout.default, %cos, 0.5, True) {random}"
    ]
    assert [op.target for op in backward.ops if op.traits.random] == ["higher_order.run_with_rng_state"]


# Whole training steps


def sgd(params: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]]) -> None:
    torch._foreach_add_(params, gradients, alpha=-0.1)


def adam(params: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]]) -> None:
    mean, square = state
    torch._foreach_lerp_(mean, gradients, 0.1)
    torch._foreach_mul_(square, 0.99)
    torch._foreach_addcmul_(square, gradients, gradients, 0.01)
    root = torch._foreach_sqrt(square)
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(params, mean, root, -0.1)


def step_of(update: Callable[..., None]) -> Callable[..., Tensor]:
    group = world_group()

    def step(params: list[Tensor], state: list[list[Tensor]], x: Tensor) -> Tensor:
        leaves = [param.detach().requires_grad_() for param in params]
        weight = all_gather_single_autograd(leaves[0], 0, group)
        normed = functional.layer_norm(x @ weight.t(), (8,), leaves[1], leaves[2])
        loss = functional.gelu(normed).square().mean()
        first, *rest = torch.autograd.grad(loss, leaves)
        update(params, [first, *(all_reduce(one, "avg", group) for one in rest)], state)
        params[1].copy_(params[1].clamp(-1, 1))
        return loss

    return step


def step_inputs(seed: int) -> list[Any]:
    random = torch.Generator().manual_seed(seed)

    def tensors() -> list[Tensor]:
        return [torch.rand(*shape, generator=random) for shape in ((2, 4), (8,), (8,))]

    return [tensors(), [tensors(), tensors()], torch.randn(3, 4, generator=random)]


def overlapped(program: weft.Program) -> weft.Program:
    return pipeline.run(program, weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES)).program


def flat(inputs: list[Any]) -> list[Tensor]:
    params, (mean, square), x = inputs
    return [*params, *mean, *square, x]


@pytest.fixture(scope="module", params=[sgd, adam], ids=["sgd", "adam"])
def training_step(request: pytest.FixtureRequest, world: None) -> GraphModule:
    module: GraphModule = make_fx(step_of(request.param), tracing_mode="fake")(*step_inputs(0))
    return module


def test_a_whole_step_comes_back(training_step: GraphModule) -> None:
    program = round_trip(training_step)
    assert [op.target for op in program.starts] == [
        "all_gather.start",
        "reduce_scatter.start",
        "all_reduce.start",
        "all_reduce.start",
    ]


def test_the_update_of_a_whole_step_writes_what_it_says(training_step: GraphModule) -> None:
    program = weft.from_fx(training_step)
    written = {op.target: op.args[0] for op in program.ops if op.traits.mutates}
    params = tuple(weft.Ref(f"params_{number}") for number in (1, 2, 3))
    update = [target for target in written if written[target] == params]
    assert update in (["aten._foreach_add_.List"], ["aten._foreach_addcdiv_.Scalar"])
    assert written["aten.copy_.default"] == weft.Ref("params_2")
    assert [program[op.name].out for op in program.ops if op.target in update] == [()]


def test_a_whole_step_computes_the_same_on_virtual_ranks_wherever_its_collectives_stand(
    training_step: GraphModule,
) -> None:
    program = weft.from_fx(training_step)
    moved = overlapped(program)
    assert [op.name for op in moved.ops] != [op.name for op in program.ops]
    outcomes = []
    for one in (program, moved, weft.from_fx(weft.to_fx(moved))):
        inputs = [flat(step_inputs(rank)) for rank in range(4)]
        outcomes.append(tree_leaves([virtual(one, inputs), inputs]))
    for other in outcomes[1:]:
        assert_equal(other, outcomes[0])


def test_a_step_that_was_relinked_is_the_step_that_is_lowered(training_step: GraphModule) -> None:
    module = copy.deepcopy(training_step)
    moved = overlapped(weft.from_fx(module))
    lowered = weft.to_fx(moved)
    assert relink(moved) is module.graph
    module.graph.lint()
    module.recompile()
    assert rows(module) == rows(lowered)
    assert_runs_alike(module, lowered, step_inputs(0))


# Export


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.block(x).square().sum(),)


EXPORTS: dict[str, Callable[[], Any]] = {
    "aot_export_module": lambda: aot_export_module(Loss(), (torch.ones(4, 8),), trace_joint=False)[0],
    "aot_export_module, joint": lambda: aot_export_module(
        Loss(), (torch.ones(4, 8),), trace_joint=True, output_loss_index=0
    )[0],
    "torch.export": lambda: torch.export.export(Loss(), (torch.ones(4, 8),)).graph_module,
    "torch.export, decomposed": lambda: (
        torch.export.export(Loss(), (torch.ones(4, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
        .run_decompositions()
        .graph_module
    ),
    "torch.export, as a module": lambda: torch.export.export(Loss(), (torch.ones(4, 8),)).module(),
}


@pytest.mark.parametrize("make", EXPORTS.values(), ids=EXPORTS.keys())
def test_exported_graphs_come_back(make: Callable[[], Any]) -> None:
    round_trip(make())


def test_an_exported_module_runs_after_the_round_trip() -> None:
    module = EXPORTS["torch.export, as a module"]()
    made = weft.to_fx(weft.from_fx(module))
    assert_runs_alike(made, module, [torch.ones(4, 8)])
