"""Results, outputs and constants: whatever a graph computes, returns or holds."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional

import weft
from tests.fx.graphs import assert_runs_alike, by_hand, lines, round_trip
from weft import GraphError

Pair = namedtuple("Pair", "first second")


def trace(function: Callable[..., Any], *args: Any) -> GraphModule:
    module: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    return module


# Outputs

RETURNED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "one value": (lambda x: x + 1, "return %add"),
    "a tuple": (lambda x: (x + 1, x), "return %add, %x_1"),
    "a list": (lambda x: [x + 1, x], "return %add, %x_1"),
    "nothing": (lambda x: None, "return None"),
    "an empty tuple": (lambda x: (), "return"),
    "nothing among values, and a number": (lambda x: (x + 1, None, 3), "return %add, None, 3"),
    "the same value twice": (lambda x: [x, x], "return %x_1, %x_1"),
    "a dictionary": (lambda x: {"a": x + 1, "b": x}, "return %add, %x_1"),
    "a dictionary whose keys are numbers": (lambda x: {0: x + 1, 1: x}, "return %add, %x_1"),
    "a named tuple": (lambda x: Pair(x + 1, x), "return %pair"),
    "values in values": (lambda x: ([x + 1], {"k": (x, None)}), "return %add, %x_1, None"),
}


@pytest.mark.parametrize(("function", "text"), RETURNED.values(), ids=RETURNED.keys())
def test_what_a_graph_returns_keeps_its_form(function: Callable[[Tensor], Any], text: str) -> None:
    module = trace(function, torch.ones(2))
    program = round_trip(module)
    assert str(program).splitlines()[-1] == text
    made = weft.to_fx(program)(torch.ones(2))
    expected = module(torch.ones(2))
    assert type(made) is type(expected)
    assert str(made) == str(expected)


def test_a_replaced_output_is_returned_in_the_old_form() -> None:
    module = trace(lambda x: {"a": x.sin(), "b": [x.cos()]}, torch.ones(2))
    editor = weft.Editor(weft.from_fx(module))
    editor.remove("sin", use="cos")
    editor.move_before("cos", "cos")
    made = weft.to_fx(editor.finish("cos for sin"))(torch.zeros(2))
    assert str(made) == "{'a': tensor([1., 1.]), 'b': [tensor([1., 1.])]}"


def test_a_graph_with_a_pytree_signature_keeps_it() -> None:
    class Nested(nn.Module):
        def forward(self, x: dict[str, Tensor]) -> dict[str, list[Tensor]]:
            return {"sum": [x["a"] + x["b"]], "a": [x["a"]]}

    given = {"a": torch.ones(2), "b": torch.ones(2)}
    module = torch.export.export(Nested(), (given,)).module()
    assert isinstance(module, GraphModule)
    made = weft.to_fx(round_trip(module))
    assert str(made(given)) == "{'sum': [tensor([2., 2.])], 'a': [tensor([1., 1.])]}"


def test_a_graph_without_an_output_comes_back_with_an_empty_one() -> None:
    graph = Graph()
    graph.placeholder("x").meta["val"] = torch.ones(2)
    program = weft.from_fx(graph)
    assert str(program).splitlines()[-1] == "return"
    assert weft.to_fx(program)(torch.ones(2)) == ()


# Several results, and none

SEVERAL: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "split": (
        lambda x: x.split([1, 3]),
        [
            "%split_with_sizes: (f32[1,6], f32[3,6]) = aten.split_with_sizes.default(%x_1, [1, 3])",
            "%getitem: f32[1,6] = getitem(%split_with_sizes, 0)",
            "%getitem_1: f32[3,6] = getitem(%split_with_sizes, 1)",
        ],
    ),
    "layer norm": (
        lambda x: functional.layer_norm(x, (6,)),
        [
            "%native_layer_norm: (f32[4,6], f32[4,1], f32[4,1]) = "
            "aten.native_layer_norm.default(%x_1, [6], None, None, 1e-05)",
            "%getitem: f32[4,6] = getitem(%native_layer_norm, 0)",
            "%getitem_1: f32[4,1] = getitem(%native_layer_norm, 1)",
            "%getitem_2: f32[4,1] = getitem(%native_layer_norm, 2)",
        ],
    ),
    "max": (
        lambda x: torch.max(x, 0),
        [
            "%max_1: (f32[6], i64[6]) = aten.max.dim(%x_1, 0)",
            "%getitem: f32[6] = getitem(%max_1, 0)",
            "%getitem_1: i64[6] = getitem(%max_1, 1)",
        ],
    ),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(*[x.view(1, 2, 4, 3)] * 3),
        [
            "%view: f32[1,2,4,3] = aten.view.default(%x_1, [1, 2, 4, 3])",
            "%_scaled_dot_product_flash_attention_for_cpu: (f32[1,2,4,3], f32[1,2,4;8,1,2]) = "
            "aten._scaled_dot_product_flash_attention_for_cpu.default(%view, %view, %view)",
            "%getitem: f32[1,2,4,3] = getitem(%_scaled_dot_product_flash_attention_for_cpu, 0)",
            "%getitem_1: f32[1,2,4;8,1,2] = getitem(%_scaled_dot_product_flash_attention_for_cpu, 1)",
        ],
    ),
    "none, from a check": (
        lambda x: torch.ops.aten._assert_async.msg(x.sum() > 0, "no"),
        [
            "%sum_1: f32[] = aten.sum.default(%x_1)",
            "%gt: bool[] = aten.gt.Scalar(%sum_1, 0)",
            '%_assert_async: () = aten._assert_async.msg(%gt, "no") {pure}',
        ],
    ),
    "none, from a list that is written": (
        lambda x: torch._foreach_mul_([x], 2.0),
        ["%_foreach_mul_: () = aten._foreach_mul_.Scalar([%x_1], 2.0)"],
    ),
}


@pytest.mark.parametrize(("function", "text"), SEVERAL.values(), ids=SEVERAL.keys())
def test_several_results_read_so(function: Callable[..., Any], text: list[str]) -> None:
    module = trace(function, torch.ones(4, 6))
    program = round_trip(module)
    assert lines(program) == text
    assert_runs_alike(weft.to_fx(program), module, [torch.arange(24.0).view(4, 6)])


def test_a_result_that_is_none_is_known_although_make_fx_does_not_describe_it() -> None:
    def gradients(weight: Tensor, x: Tensor) -> Any:
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(functional.layer_norm(x, (6,), leaf).sum(), leaf)

    program = round_trip(trace(gradients, torch.ones(6), torch.ones(4, 6)))
    assert [line for line in lines(program) if "backward" in line] == [
        "%native_layer_norm_backward: (none, f32[6], none) = aten.native_layer_norm_backward.default("
        "%expand, %x_1, [6], %getitem_1, %getitem_2, %detach, None, [False, True, False])",
        "%getitem_3: none = getitem(%native_layer_norm_backward, 0)",
        "%getitem_4: f32[6] = getitem(%native_layer_norm_backward, 1)",
        "%getitem_5: none = getitem(%native_layer_norm_backward, 2)",
    ]


# Constants


class Holder(nn.Module):
    """Parameters, buffers and constants, some of them of a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Linear(2, 2)
        self.register_buffer("count", torch.tensor(3.0))


def held(module: nn.Module, *names: str) -> GraphModule:
    """A graph that adds attributes of a module to its input."""
    graph = Graph()
    total = graph.placeholder("x")
    for name in names:
        total = graph.call_function(torch.ops.aten.add.Tensor, (total, graph.get_attr(name)))
    graph.output((total,))
    made = GraphModule(module, graph)
    FakeTensorProp(made, FakeTensorMode(allow_non_fake_inputs=True)).propagate(torch.ones(2, 2))
    return made


def test_attributes_come_back_also_those_of_inner_modules() -> None:
    module = held(Holder(), "sub.weight", "count", "sub.bias")
    program = round_trip(module)
    assert lines(program) == [
        '%sub_weight: f32[2,2] = get_attr("sub.weight")',
        "%add_tensor: f32[2,2] = aten.add.Tensor(%x, %sub_weight)",
        '%count: f32[] = get_attr("count")',
        "%add_tensor_1: f32[2,2] = aten.add.Tensor(%add_tensor, %count)",
        '%sub_bias: f32[2] = get_attr("sub.bias")',
        "%add_tensor_2: f32[2,2] = aten.add.Tensor(%add_tensor_1, %sub_bias)",
    ]
    made = weft.to_fx(program)
    assert made.get_parameter("sub.weight") is module.get_parameter("sub.weight")
    assert made.get_buffer("count") is module.get_buffer("count")
    assert_runs_alike(made, module, [torch.ones(2, 2)])


def test_an_attribute_without_metadata_is_looked_up() -> None:
    module = held(Holder(), "sub.weight")
    for node in module.graph.nodes:
        if node.op == "get_attr":
            node.meta.clear()
    assert lines(weft.from_fx(module))[0] == '%sub_weight: f32[2,2] = get_attr("sub.weight")'


def test_tensors_that_a_function_closes_over_become_constants() -> None:
    table = torch.arange(4.0)
    module = trace(lambda x: x + table, torch.ones(4))
    program = round_trip(module)
    assert lines(program) == [
        '%_tensor_constant0: f32[4] = get_attr("_tensor_constant0")',
        "%add: f32[4] = aten.add.Tensor(%x_1, %_tensor_constant0)",
    ]
    assert_runs_alike(weft.to_fx(program), module, [torch.ones(4)])


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (([2, 2],), {"dtype": torch.bfloat16, "device": torch.device("cpu")}, "[2, 2], dtype=bf16, device=@cpu"),
        (
            ([2], 1.5),
            {"layout": torch.strided, "pin_memory": False},
            "[2], 1.5, layout=torch.strided, pin_memory=False",
        ),
        (([2], float("inf")), {}, "[2], inf"),
        (([2], complex(1, -2)), {"dtype": torch.complex64}, "[2], complex(1.0, -2.0), dtype=c64"),
        (([2], True), {"dtype": torch.bool}, "[2], True, dtype=bool"),
    ],
)
def test_literals_come_back_as_what_they_were(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    function = torch.ops.aten.full.default if len(args) == 2 else torch.ops.aten.zeros.default
    module = by_hand(lambda graph: (graph.call_function(function, args, kwargs),))
    program = round_trip(module)
    (line,) = lines(program)
    assert line.endswith(f"{function}({text})")
    (made,) = (node for node in weft.to_fx(weft.parse(str(program))).graph.nodes if node.op == "call_function")
    assert (list(made.args), made.kwargs) == (list(args), kwargs)


def test_nan_comes_back_as_nan() -> None:
    module = by_hand(lambda graph: (graph.call_function(torch.ops.aten.full.default, ([2], float("nan"))),))
    (line,) = lines(round_trip(module))
    assert line.endswith("aten.full.default([2], nan)")


def test_slices_tuples_and_dictionaries_come_back() -> None:
    def select(graph: Graph, x: Node, y: Node) -> Any:
        return (graph.call_function(_pick, (x, (slice(None, y, 2), {"a": [x, None]}, (x,)))),)

    def _pick(x: Tensor, rest: Any) -> Any:
        return x + rest[1]["a"][0]

    program = round_trip(by_hand(select, x=torch.ones(2), y=torch.ones(2)))
    assert lines(program)[0].split("(%x", 1)[1] == ', (slice(None, %y, 2), {"a": [%x, None]}, (%x,)))'


@pytest.mark.parametrize("container", [lambda x: {0: x}, lambda x: Pair(x, x)], ids=["number keys", "named tuple"])
def test_values_inside_a_container_that_weft_does_not_know_are_reported(container: Callable[[Any], Any]) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    graph.output(graph.call_function(len, (container(x),)))
    with pytest.raises(GraphError, match=r"^%x is used inside a \w+, which Weft cannot look into; it can look into "):
        weft.from_fx(graph)


# Layouts and devices


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.empty(2, 3).t(), "f32[3,2;1,3]"),
        (torch.empty(1, 3).t(), "f32[3,1]"),
        (torch.empty(0, 3).t(), "f32[3,0]"),
        (torch.empty(2).expand(4, 2), "f32[4,2;0,1]"),
        (torch.empty(2, 2, dtype=torch.float8_e4m3fn), "f8e4m3fn[2,2]"),
        (torch.empty((), dtype=torch.int64), "i64[]"),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), "f32[2,3,4,5;60,1,15,3]"),
    ],
)
def test_a_layout_that_is_not_row_by_row_is_shown(tensor: Tensor, text: str) -> None:
    program = round_trip(by_hand(lambda graph, x: (x,), x=tensor))
    assert str(program).splitlines()[2] == f"%x: {text} = input()"
