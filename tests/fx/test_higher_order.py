"""Higher-order operators: opaque, as harmless as what is inside them, and never less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops import while_loop as untyped_while_loop
from torch.compiler import nested_compile_region
from torch.distributed._functional_collectives import all_reduce
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention

import weft
from tests.fx import operators
from tests.fx.graphs import aot_graphs, assert_runs_alike, lines, round_trip, world_group
from weft import GraphError, Traits
from weft.fx.calls import CallTraits
from weft.ir.traits import BARRIER, PURE

pytestmark = pytest.mark.usefixtures("world")

while_loop: Callable[..., Any] = untyped_while_loop
COMMUNICATING = Traits(communicates=True, barrier=True)


def traced(function: Callable[..., Any], *args: Any) -> GraphModule:
    module: GraphModule = make_fx(function, tracing_mode="symbolic")(*args)
    return module


def higher_order(program: weft.Program) -> dict[str, Traits]:
    return {op.target: op.traits for op in program.ops if op.target.startswith("higher_order.")}


def branches(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> GraphModule:
    return traced(
        lambda x, p: torch.cond(p, first, second, (x,)),
        torch.ones(4),
        torch.tensor(True),
    )


def reduced(x: Tensor) -> Tensor:
    total: Tensor = all_reduce(x, "sum", world_group())
    return total + 1


def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def parts(x: Tensor) -> Tensor:
    largest, place = x.view(2, 2).max(dim=0)
    return torch.cat([largest, place.float()])


def test_a_choice_reads_so_and_runs() -> None:
    module = branches(torch.sin, torch.cos)
    program = round_trip(module)
    assert [line.split(" = ")[1] for line in lines(program)][1:] == [
        'get_attr("true_graph_0")',
        'get_attr("false_graph_0")',
        "higher_order.cond(%p_1, %true_graph_0, %false_graph_0, (%x_1, %sym_size_int)) {pure}",
        "getitem(%cond, 0)",
    ]
    for chosen in (True, False):
        assert_runs_alike(weft.to_fx(program), module, [torch.ones(4), torch.tensor(chosen)])


@pytest.mark.parametrize(
    ("branch", "traits"),
    [
        (torch.sin, PURE),
        (parts, PURE),
        (noisy, Traits(random=True)),
        (reduced, COMMUNICATING),
        (lambda x: operators.library.exchange(x, "0"), COMMUNICATING),
        (lambda x: torch.cond(x.sum() > 0, reduced, torch.sin, (x,)), COMMUNICATING),
        (lambda x: torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,)), PURE),
    ],
    ids=["pure", "several results", "random", "collective", "unknown collective", "nested collective", "nested, pure"],
)
def test_a_choice_does_what_its_branches_do(branch: Callable[[Tensor], Tensor], traits: Traits) -> None:
    assert higher_order(round_trip(branches(torch.sin, branch))) == {"higher_order.cond": traits}
    assert higher_order(round_trip(branches(branch, torch.sin))) == {"higher_order.cond": traits}


def test_a_loop_is_pure_if_its_body_is() -> None:
    module = traced(
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)), torch.ones(4)
    )
    program = round_trip(module)
    assert higher_order(program) == {"higher_order.while_loop": PURE}
    assert_runs_alike(weft.to_fx(program), module, [torch.ones(4)])


def test_a_loop_that_communicates_is_a_barrier() -> None:
    module = traced(
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, reduced(x)), (torch.tensor(0), x)), torch.ones(4)
    )
    assert higher_order(round_trip(module)) == {"higher_order.while_loop": COMMUNICATING}


def test_a_scan_is_pure_if_its_body_is() -> None:
    module = traced(lambda x: scan(lambda carry, y: (carry + y, carry * y), torch.zeros(2), x), torch.ones(3, 2))
    assert higher_order(round_trip(module)) == {"higher_order.scan": PURE}


def test_flex_attention_is_pure() -> None:
    def attend(q: Tensor) -> Any:
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score * 2 + i - j)

    (captured,) = aot_graphs(attend, torch.ones(1, 2, 16, 16))
    program = round_trip(captured.module)
    assert higher_order(program) == {"higher_order.flex_attention": PURE}
    assert_runs_alike(weft.to_fx(program), captured.module, captured.inputs)


def test_a_nested_region_is_what_is_inside_it() -> None:
    @nested_compile_region
    def region(x: Tensor) -> Tensor:
        return x.sin().cos()

    @nested_compile_region
    def talking(x: Tensor) -> Tensor:
        return reduced(x)

    quiet = aot_graphs(lambda x: region(region(x)), torch.ones(4, requires_grad=True))
    for captured in quiet:
        program = round_trip(captured.module)
        assert higher_order(program) == {"higher_order.invoke_subgraph": PURE}
        assert_runs_alike(weft.to_fx(program), captured.module, captured.inputs)
    (loud,) = aot_graphs(lambda x: talking(talking(x)), torch.ones(4))
    assert higher_order(round_trip(loud.module)) == {"higher_order.invoke_subgraph": COMMUNICATING}


# Graphs by hand: what tracing does not let through


def inner(*calls: tuple[str, Any]) -> GraphModule:
    """A subgraph that puts its input through calls, given as kind and target."""
    graph = Graph()
    value = graph.placeholder("x")
    for kind, target in calls:
        value = graph.create_node(kind, target, (value,))
    graph.output((value,))
    root = nn.Module()
    root.layer = nn.ReLU()
    return GraphModule(root, graph)


def outer(name: str = "body", **held: Any) -> GraphModule:
    """A graph that invokes the subgraph that its module holds under `name`."""
    root = nn.Module()
    for key, value in held.items():
        setattr(root, key, value)
    graph = Graph()
    x = graph.placeholder("x")
    subgraph = graph.get_attr(name)
    called = graph.call_function(torch.ops.higher_order.invoke_subgraph, (subgraph, "body", x))
    graph.output((called,))
    for node in (x, called):
        node.meta["val"] = torch.ones(2)
    return GraphModule(root, graph)


@pytest.mark.parametrize(
    ("calls", "traits"),
    [
        ([("call_function", torch.ops.aten.sin.default)], PURE),
        ([("call_function", torch.ops.aten.relu_.default)], BARRIER),
        ([("call_function", operators.plain)], BARRIER),
        ([("call_method", "sin")], BARRIER),
        ([("call_module", "layer")], BARRIER),
        (
            [
                ("call_function", torch.ops.aten.relu_.default),
                ("call_function", torch.ops._c10d_functional.wait_tensor.default),
            ],
            COMMUNICATING,
        ),
    ],
    ids=["pure", "write", "python function", "method", "module", "write and wait"],
)
def test_a_subgraph_that_does_more_than_compute_makes_a_barrier(calls: list[Any], traits: Traits) -> None:
    program = weft.from_fx(outer(body=inner(*calls)))
    assert higher_order(program) == {"higher_order.invoke_subgraph": traits}


def test_a_subgraph_of_an_inner_module_is_looked_into() -> None:
    holder = nn.Module()
    holder.body = inner(("call_function", torch.ops.aten.relu_.default))
    program = weft.from_fx(outer("inside.body", inside=holder))
    assert higher_order(program) == {"higher_order.invoke_subgraph": BARRIER}


@pytest.mark.parametrize("held", [{"body": nn.ReLU()}, {"body": None}], ids=["a module without a graph", "nothing"])
def test_a_subgraph_that_cannot_be_looked_into_makes_a_barrier(held: dict[str, Any]) -> None:
    module = outer(**held)
    assert [CallTraits().of(node) for node in module.graph.nodes if node.op == "call_function"] == [BARRIER]


def test_a_graph_without_its_module_makes_a_barrier() -> None:
    graph = outer(body=inner()).graph
    graph.owning_module = None
    assert higher_order(weft.from_fx(graph)) == {"higher_order.invoke_subgraph": BARRIER}


@pytest.mark.parametrize("name", ["triton_kernel_wrapper_mutation", "print", "with_effects", "call_torchbind"])
def test_a_higher_order_operator_that_acts_by_itself_is_a_barrier(name: str) -> None:
    graph = Graph()
    call = graph.call_function(getattr(torch.ops.higher_order, name), (graph.placeholder("x"),))
    assert CallTraits().of(call) == BARRIER


def test_a_program_whose_subgraphs_are_not_here_is_refused() -> None:
    program = weft.parse(str(weft.from_fx(branches(torch.sin, torch.cos))))
    with pytest.raises(GraphError) as caught:
        weft.to_fx(program)
    assert str(caught.value) == "%true_graph_0: the module that has 'true_graph_0' is not here"
