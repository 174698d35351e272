"""Symbolic sizes: in the text, in new ops, and in graphs that then run with other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions as torch_sympy

import weft
from tests.fx.graphs import aot_graphs, assert_equal, round_trip, rows, run, spelled
from weft import GraphError
from weft.fx import relink
from weft.fx.values import UNKNOWN_SIZE, SpecReader
from weft.ir import Dim, ScalarSpec, TensorSpec, hint
from weft.ir.dims import call, symbol
from weft.ir.targets import traits_of

sympy_max: Any = torch_sympy.Max
sympy_min: Any = torch_sympy.Min


def traced(function: Callable[..., Any], *args: Tensor) -> GraphModule:
    module: GraphModule = make_fx(function, tracing_mode="symbolic")(*args)
    return module


def renamed(text: str) -> str:
    """torch derives the names of symbols from those of arguments; here they are counted."""
    names: dict[str, str] = {}
    return re.sub(r"\bs\d+\b", lambda found: names.setdefault(found[0], f"s{len(names)}"), text)


def body(program: weft.Program) -> list[str]:
    return renamed(re.sub(r"  #.*", "", str(program))).splitlines()


def test_symbols_and_their_hints_stand_at_the_top() -> None:
    module = traced(lambda x: torch.cat([x, x]).view(-1, 2) + 1, torch.ones(3))
    assert body(round_trip(module)) == [
        "weft 1",
        "symbol s0 = 3",
        "",
        "%x_1: f32[s0] = input()",
        "%cat: f32[2*s0] = aten.cat.default([%x_1, %x_1])",
        "%view: f32[s0,2] = aten.view.default(%cat, [-1, 2])",
        "%add: f32[s0,2] = aten.add.Tensor(%view, 1)",
        "return %add",
    ]


def test_sizes_that_are_computed_in_the_graph_say_what_they_are() -> None:
    module = traced(lambda x: x.new_zeros(x.shape[0] * 3 + 1, x.shape[1] // 2), torch.ones(4, 6))
    assert [line for line in body(round_trip(module)) if line.startswith("%")] == [
        "%x_1: f32[s0,s1] = input()",
        "%sym_size_int: int(s0) = aten.sym_size.int(%x_1, 0)",
        "%mul: int(3*s0) = operator.mul(%sym_size_int, 3) {pure}",
        "%add: int(3*s0 + 1) = operator.add(%mul, 1) {pure}",
        "%sym_size_int_1: int(s1) = aten.sym_size.int(%x_1, 1)",
        "%floordiv: int(s1//2) = operator.floordiv(%sym_size_int_1, 2) {pure}",
        "%new_zeros: f32[3*s0 + 1,s1//2] = aten.new_zeros.default(%x_1, [%add, %floordiv], pin_memory=False)",
    ]


def test_the_graphs_of_a_dynamic_compile_come_back_and_run() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    forward, backward = aot_graphs(lambda x: (x @ weight).view(-1, 4).softmax(-1), torch.ones(6, 8), dynamic=True)
    for captured in (forward, backward):
        program = round_trip(captured.module)
        assert any(line.startswith("symbol s") and line.endswith(" = 6") for line in str(program).splitlines())
        made = weft.to_fx(program)
        assert_equal(run(made, captured.inputs)[0], run(captured.module, captured.inputs)[0])


def test_a_size_that_depends_on_data_is_a_symbol_with_a_guessed_hint() -> None:
    module = make_fx(lambda x: x.nonzero() * 2, tracing_mode="symbolic")(torch.ones(4))
    program = round_trip(module)
    assert str(program).splitlines()[2] == f"symbol u0 = {UNKNOWN_SIZE}"
    assert str(program).splitlines()[-2] == "%mul: i64[u0,1] = aten.mul.Tensor(%nonzero, 2)"


def test_a_size_that_is_called_like_a_dtype_is_called_otherwise() -> None:
    """torch counts sizes that depend on data: the ninth is u8."""
    module = make_fx(lambda x: [(x > n).nonzero() for n in range(9)], tracing_mode="symbolic")(torch.ones(4))
    program = round_trip(module)
    assert next(line for line in str(program).splitlines() if "u8" in line) == f"symbol x_u8 = {UNKNOWN_SIZE}"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.new_zeros(4, x.shape[0] // 2, 3), "f32[4,s0//2,3]"),
        (lambda x: x.new_zeros(4, x.shape[0] // 2, x.shape[0] // 3), "f32[4,s0//2,s0//3]"),
        (lambda x: x.new_zeros(4, x.shape[0] // 2).t(), "f32[s0//2,4;1,max(1, s0//2)]"),
    ],
    ids=["one guarded stride", "two guarded strides", "transposed"],
)
def test_row_by_row_is_seen_through_the_guards_of_torch_against_empty_dimensions(
    function: Callable[[Tensor], Tensor], text: str
) -> None:
    program = round_trip(traced(function, torch.ones(12)))
    assert body(program)[-2].split(" = ")[0].split(": ")[1] == text


# New ops


def inserted(module: GraphModule, after: str, *ops: weft.Op, returned: str) -> weft.Program:
    """The program with new ops behind one of its own, which returns the value of one of them."""
    editor = weft.Editor(weft.from_fx(module))
    for op in ops:
        after = editor.insert_after(after, op).name
    return replace(editor.finish("inserted"), outputs=(weft.Ref(returned),))


def new_op(name: str, target: str, *args: Any, out: tuple[Any, ...]) -> weft.Op:
    return weft.Op(name, target, args, out=out, traits=traits_of(target))


def both_ways(make: Callable[[], weft.Program]) -> list[GraphModule]:
    """A program as a new graph, and put back into the graph that it came from."""
    lowered = weft.to_fx(make())
    program = make()
    graph = relink(program)
    graph.lint()
    owner = graph.owning_module
    assert owner is not None
    owner.recompile()
    assert [(row.op, row.name, row.target) for row in rows(owner)] == [
        (row.op, row.name, row.target) for row in rows(lowered)
    ]
    return [lowered, owner]


def sizes_of(program: weft.Program, name: str) -> tuple[Dim, ...]:
    spec = program[name].out[0]
    assert isinstance(spec, TensorSpec)
    return spec.shape


def test_a_new_view_computes_its_symbolic_size() -> None:
    def make() -> weft.Program:
        module = traced(lambda x: x.sin(), torch.ones(3, 16))
        rows_, columns = sizes_of(weft.from_fx(module), "x_1")
        shape = (rows_ * 2, columns // 2)
        view = new_op("half", "aten.view.default", weft.Ref("sin"), shape, out=(TensorSpec(shape, "f32"),))
        return inserted(module, "sin", view, returned="half")

    for module in both_ways(make):
        assert spelled(module) == [
            "sin = aten.sin.default(%x_1)",
            "size_0 = aten.sym_size.int(%x_1, 0)",
            "size_1 = <built-in function mul>(%size_0, 2)",
            "size_2 = aten.sym_size.int(%x_1, 1)",
            "size_3 = <built-in function floordiv>(%size_2, 2)",
            "half = aten.view.default(%sin, [%size_1, %size_3])",
        ]
        x = torch.arange(5 * 12.0).view(5, 12)
        assert_equal([module(x)], [x.sin().view(10, 6)])


def test_a_new_split_takes_symbolic_sizes() -> None:
    def make() -> weft.Program:
        module = traced(lambda x, y: torch.cat([x, y]), torch.ones(3, 2), torch.ones(4, 2))
        program = weft.from_fx(module)
        sizes = (sizes_of(program, "x_1")[0] - 1, sizes_of(program, "y_1")[0] + 1)
        out = tuple(TensorSpec((size, 2), "f32") for size in sizes)
        split = new_op("parts", "aten.split_with_sizes.default", weft.Ref("cat"), sizes, out=out)
        second = new_op("second", "getitem", weft.Ref("parts"), 1, out=out[1:])
        return inserted(module, "cat", split, second, returned="second")

    for module in both_ways(make):
        x, y = torch.randn(6, 2), torch.randn(5, 2)
        assert_equal([module(x, y)], [torch.cat([x, y])[5:]])


def test_a_size_is_computed_once_and_before_its_first_use() -> None:
    def make() -> weft.Program:
        module = traced(lambda x: x.sin().cos(), torch.ones(3, 2))
        size = sizes_of(weft.from_fx(module), "x_1")[0] * 2
        out = (TensorSpec((size,), "f32"),)
        first = new_op("first", "aten.view.default", weft.Ref("sin"), (size,), out=out)
        second = new_op("second", "aten.view.default", weft.Ref("first"), (size,), out=out)
        return inserted(module, "sin", first, second, returned="second")

    for module in both_ways(make):
        assert spelled(module) == [
            "sin = aten.sin.default(%x_1)",
            "size_0 = aten.sym_size.int(%x_1, 0)",
            "size_1 = <built-in function mul>(%size_0, 2)",
            "first = aten.view.default(%sin, [%size_1])",
            "second = aten.view.default(%first, [%size_1])",
            "cos = aten.cos.default(%sin)",
        ]


def test_a_size_that_the_graph_computes_already_is_used() -> None:
    def make() -> weft.Program:
        module = traced(lambda x: x.new_zeros(x.shape[0] * 2), torch.ones(3, 2))
        size = sizes_of(weft.from_fx(module), "new_zeros")[0]
        view = new_op("flat", "aten.view.default", weft.Ref("x_1"), (size,), out=(TensorSpec((size,), "f32"),))
        return inserted(module, "new_zeros", view, returned="flat")

    for module in both_ways(make):
        assert spelled(module)[-1] == "flat = aten.view.default(%x_1, [%mul])"
        assert_equal([module(torch.ones(7, 2))], [torch.ones(14)])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (lambda s: call("max", s, 5), 6),
        (lambda s: call("min", s + 1, 5), 5),
        (lambda s: (s + 1) // 2 * 3, 9),
        (lambda s: (s + 3) % 4 + s * s, 37),
        (lambda s: 20 - s, 14),
    ],
    ids=["max", "min", "floor division", "modulo and square", "difference"],
)
def test_all_functions_of_sizes_are_lowered(size: Callable[[Any], Dim], expected: int) -> None:
    def make() -> weft.Program:
        module = traced(lambda x: x.sin(), torch.ones(3))
        wanted = size(sizes_of(weft.from_fx(module), "x_1")[0])
        made = new_op("made", "aten.full.default", (wanted,), 1.0, out=(TensorSpec((wanted,), "f32"),))
        return inserted(module, "sin", made, returned="made")

    for module in both_ways(make):
        assert module(torch.ones(6)).shape == (expected,)


def test_a_size_that_only_a_multiple_is_known_of_is_divided_out() -> None:
    text = """weft 1
symbol s0 = 4
%x: f32[8*s0] = input()
%y: f32[2*s0,4] = aten.view.default(%x, [2*s0, 4])
return %y
"""
    module = weft.to_fx(weft.parse(text))
    assert module(torch.ones(24))[0].shape == (6, 4)


def test_a_size_that_nothing_defines_is_reported() -> None:
    module = traced(lambda x: x.sin(), torch.ones(3))
    size = symbol("s99", 4)
    view = new_op("view", "aten.view.default", weft.Ref("sin"), (size * 2,), out=(TensorSpec((size * 2,), "f32"),))
    with pytest.raises(GraphError) as caught:
        weft.to_fx(inserted(module, "sin", view, returned="view"))
    assert str(caught.value) == "no value that is defined by now has the size s99, which 2*s99 needs"


def test_a_size_that_is_defined_only_later_is_reported() -> None:
    module = traced(lambda x: x.nonzero().sin(), torch.ones(3))
    size = sizes_of(weft.from_fx(module), "nonzero")[0]
    made = new_op("made", "aten.zeros.default", (size,), out=(TensorSpec((size,), "f32"),))
    with pytest.raises(GraphError, match="no value that is defined by now has the size u0, which u0 needs"):
        weft.to_fx(inserted(module, "x_1", made, returned="made"))


def test_new_values_are_symbolic_too() -> None:
    module = traced(lambda x: x.sin(), torch.ones(3, 16))
    rows_, _ = sizes_of(weft.from_fx(module), "x_1")
    view = new_op("v", "aten.view.default", weft.Ref("sin"), (rows_ * 2, 8), out=(TensorSpec((rows_ * 2, 8), "f32"),))
    made = weft.to_fx(inserted(module, "sin", view, returned="v"))
    assert renamed(str(weft.from_fx(made)).splitlines()[-2]) == (
        "%v: f32[2*s0,8] = aten.view.default(%sin, [%size_1, 8])"
    )


# Expressions


def environment() -> tuple[ShapeEnv, Any, Any]:
    """A shape environment with two sizes, of 5 and of 7."""
    env = ShapeEnv()
    symbols = {value: env.create_symbol(value, ConstantSource(f"size{value}")) for value in (5, 7)}
    a, b = (env.create_symintnode(symbol, hint=value) for value, symbol in symbols.items())
    return env, a, b


def as_size(expression: sympy.Basic, env: ShapeEnv, value: int) -> Any:
    return env.create_symintnode(expression, hint=value)


def test_a_size_that_weft_cannot_express_is_a_symbol_of_its_own_with_the_right_hint() -> None:
    env, a, b = environment()
    odd = torch_sympy.PowByNatural(2, a.node.expr) + torch_sympy.PowByNatural(2, b.node.expr)
    reader = SpecReader("cpu")
    found = reader.dim(as_size(odd, env, 32 + 128))
    assert hint(found) == 160
    assert re.fullmatch(r"e\d+_PowByNatural \+ e\d+_PowByNatural", str(found))
    assert found == reader.dim(as_size(odd, env, 32 + 128))


@pytest.mark.parametrize(
    ("theirs", "ours", "value"),
    [
        (lambda a, b: a * b + 2 * a - 3, lambda a, b: a * b + 2 * a - 3, 42),
        (lambda a, b: a**2, lambda a, b: a * a, 25),
        (lambda a, b: torch_sympy.FloorDiv(a + b, 2), lambda a, b: (a + b) // 2, 6),
        (lambda a, b: torch_sympy.Mod(b, 4), lambda a, b: b % 4, 3),
        (lambda a, b: sympy_max(a, 6), lambda a, b: call("max", 6, a), 6),
        (lambda a, b: sympy_min(a, 6), lambda a, b: call("min", 6, a), 5),
    ],
    ids=["polynomial", "power", "floor division", "modulo", "max", "min"],
)
def test_expressions_of_torch_are_those_of_weft(
    theirs: Callable[[Any, Any], sympy.Basic], ours: Callable[[Any, Any], Dim], value: int
) -> None:
    env, a, b = environment()
    reader = SpecReader("cpu")
    found = reader.dim(as_size(theirs(a.node.expr, b.node.expr), env, value))
    assert found == ours(reader.dim(a), reader.dim(b))
    assert hint(found) == value


def test_numbers_that_are_no_sizes_have_specs_of_their_own() -> None:
    _, size, _ = environment()
    reader = SpecReader("cpu")
    assert reader.specs((True, 1.5, "name", None, object(), 3)) == (
        ScalarSpec("bool"),
        ScalarSpec("float"),
        ScalarSpec("str"),
        ScalarSpec("none"),
        ScalarSpec("object"),
        ScalarSpec("int", 3),
    )
    assert reader.specs((size > 3, size / 2)) == (ScalarSpec("bool"), ScalarSpec("float"))
