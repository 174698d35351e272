"""The graphs that Inductor hands to its custom pass after the gradients: read, lowered, changed in place and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V
from torch.distributed._functional_collectives import all_gather_single_autograd, all_reduce
from torch.fx import Graph, GraphModule
from torch.nn import functional

import weft
from tests.fx.graphs import Row, lines, rows, world_group
from weft import pipeline
from weft.fx import relink

pytestmark = pytest.mark.usefixtures("world")


class Sharded(nn.Module):
    """A layer norm between two weights that are gathered before use, and a statistic that all ranks share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = (nn.Parameter(torch.randn(2, 8, dtype=torch.float64)) for _ in range(2))
        self.norm = nn.LayerNorm(8, dtype=torch.float64)
        self.group = world_group()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        up, down = (all_gather_single_autograd(weight, 0, self.group) for weight in (self.up, self.down))
        hidden = self.between(x @ up.t())
        return hidden @ down, all_reduce(hidden.detach(), "avg", self.group)

    def between(self, x: Tensor) -> Tensor:
        return functional.gelu(self.norm(x))


class OnlyProducts(Sharded):
    """The same without anything for which Inductor would generate code: that takes half a minute."""

    def between(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Passed:
    """What went through the custom pass: the graph before, after the import, lowered, and after `relink`."""

    program: weft.Program
    before: list[Row]
    imported: list[Row]
    lowered: list[Row]
    moved: list[Row]
    relinked: list[Row]


def through(graph: Graph) -> Passed:
    """All that a pass of Weft inside Inductor does."""
    for number, node in enumerate(graph.nodes):
        node.meta["custom"] = {"a": number}
        node.meta["mine"] = object()
    before = rows(graph)
    program = weft.from_fx(graph)
    lowered, imported = rows(weft.to_fx(program)), rows(graph)
    result = pipeline.run(program, weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES))
    moved = rows(weft.to_fx(result.program))
    relink(result.program)
    graph.lint()
    return Passed(program, before, imported, lowered, moved, rows(graph))


def watched(passed: list[Passed]) -> AbstractContextManager[Any]:
    """Inside, what Inductor compiles goes through the pass."""
    patch: AbstractContextManager[Any] = torch._inductor.config.patch(
        post_grad_custom_post_pass=lambda graph: passed.append(through(graph)), force_disable_caches=True
    )
    return patch


def without_code(module: GraphModule, inputs: Sequence[Any], is_inference: bool = False, **_: Any) -> Any:
    """Inductor up to the point where it would generate code; the graph is then run as it is."""
    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(module, is_inference)
    module.recompile()
    return make_boxed_func(module)


interpreted = partial(compile_fx, inner_compile=without_code)


def step(module: Any) -> list[Tensor]:
    """Results and gradients."""
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y, share = module(x)
    y.square().sum().backward()
    return [y, share, x.grad, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]


@pytest.fixture(scope="module")
def passed(world: None) -> list[Passed]:
    """The forward and the backward graph of a module, which then computed what it computes as it is."""
    found: list[Passed] = []
    torch._dynamo.reset()
    with watched(found):
        computed = step(torch.compile(Sharded(), backend=interpreted))
    expected = step(Sharded())
    assert len(computed) == len(expected) == 7
    for one, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(one, other)
    return found


both_graphs = pytest.mark.parametrize("which", [0, 1], ids=["forward", "backward"])


def test_there_are_a_forward_and_a_backward_graph(passed: list[Passed]) -> None:
    assert [[op.target for op in one.program.starts] for one in passed] == [
        ["all_gather.start", "all_gather.start", "all_reduce.start"],
        ["reduce_scatter.start", "reduce_scatter.start"],
    ]


@both_graphs
def test_import_leaves_the_graph_alone(passed: list[Passed], which: int) -> None:
    assert passed[which].imported == passed[which].before


@both_graphs
def test_every_node_comes_back_with_all_its_metadata(passed: list[Passed], which: int) -> None:
    assert passed[which].lowered == passed[which].before
    keys = {key for row in passed[which].lowered for key in row.meta}
    expected = {"val", "stack_trace", "seq_nr", "partitioner_tag", "from_node", "original_aten", "custom", "mine"}
    assert keys >= expected | ({"nn_module_stack"} if which == 0 else {"fwd_nn_module_stack"})


@both_graphs
def test_the_text_of_the_graph_is_a_program(passed: list[Passed], which: int) -> None:
    program = passed[which].program
    assert weft.parse(str(program)) == program


@both_graphs
def test_relinking_gives_the_order_and_the_nodes_that_lowering_gives(passed: list[Passed], which: int) -> None:
    assert passed[which].relinked == passed[which].moved
    assert passed[which].relinked != passed[which].before


def test_a_step_that_went_through_the_pass_is_compiled_to_the_end_and_computes_the_same() -> None:
    passed: list[Passed] = []
    torch._dynamo.reset()
    with watched(passed):
        found = step(torch.compile(OnlyProducts()))
    assert [one.relinked != one.before for one in passed] == [True, True]
    for one, other in zip(found, step(OnlyProducts()), strict=True):
        torch.testing.assert_close(one, other)


# Single graphs


def first_graph(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> weft.Program:
    """The program of the first graph that Inductor makes of a function."""
    found: list[Passed] = []
    torch._dynamo.reset()
    with watched(found):
        torch.compile(function, dynamic=dynamic, backend=interpreted)(*args)
    assert found[0].lowered == found[0].before
    return found[0].program


def test_inductors_random_numbers_are_ordered_by_their_seeds_alone() -> None:
    def noisy(x: Tensor) -> Tensor:
        return functional.dropout(x) + torch.rand_like(x)

    program = first_graph(noisy, torch.ones(4))
    assert lines(program) == [
        "%inductor_seeds_default: i64[2] = prims.inductor_seeds.default(2, @cpu)",
        "%inductor_lookup_seed_default: i64[] = prims.inductor_lookup_seed.default(%inductor_seeds_default, 0)",
        "%inductor_random_default_1: f32[4] = "
        'prims.inductor_random.default([4], %inductor_lookup_seed_default, "rand")',
        "%gt: bool[4] = aten.gt.Scalar(%inductor_random_default_1, 0.5)",
        "%mul: f32[4] = aten.mul.Tensor(%gt, %arg0_1)",
        "%mul_1: f32[4] = aten.mul.Tensor(%mul, 2.0)",
        "%inductor_lookup_seed_default_1: i64[] = prims.inductor_lookup_seed.default(%inductor_seeds_default, 1)",
        "%inductor_random_default: f32[4] = "
        'prims.inductor_random.default([4], %inductor_lookup_seed_default_1, "rand")',
        "%add: f32[4] = aten.add.Tensor(%mul_1, %inductor_random_default)",
    ]
    assert [op.name for op in program.ops if op.traits.random] == ["inductor_seeds_default"]


def test_symbols_stay_symbols() -> None:
    group = world_group()

    def pairs(x: Tensor) -> Tensor:
        total: Tensor = all_reduce(x.view(-1, 2).sum(1), "sum", group)
        return total * x.shape[0]

    program = first_graph(pairs, torch.ones(12), dynamic=True)
    text = re.sub(r"\bs\d+", "s0", re.sub(r"  #.*", "", str(program)))
    assert text.splitlines() == [
        "weft 1",
        'group "0" = 0..3',
        "symbol s0 = 12",
        "",
        "%arg0_1: int(s0) = input()",
        "%arg1_1: f32[s0] = input()",
        "%view: f32[s0//2,2] = aten.view.default(%arg1_1, [-1, 2])",
        "%sum_1: f32[s0//2] = aten.sum.dim_IntList(%view, [1])",
        '%all_reduce: f32[s0//2] = all_reduce.start(%sum_1) sum over "0"',
        "%wait_tensor: f32[s0//2] = wait(%all_reduce)",
        "%mul_5: f32[s0//2] = aten.mul.Tensor(%wait_tensor, %arg0_1)",
        "return %mul_5",
    ]
