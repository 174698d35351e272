"""`relink`: the graph itself becomes the program, node by node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests.fx.graphs import assert_equal, rows
from weft import GraphError
from weft.fx import relink
from weft.ir import TensorSpec
from weft.ir.targets import traits_of

aten = torch.ops.aten


def chain() -> GraphModule:
    def step(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        a = x.sin()
        b = y.cos()
        c = a + b
        d = c.exp()
        return {"first": d, "second": b * 2}

    module: GraphModule = make_fx(step)(torch.ones(4), torch.ones(4))
    return module


def names(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes]


def relinked(program: weft.Program, module: GraphModule) -> GraphModule:
    """The module after `relink`: its graph is sound, and it is what `to_fx` makes."""
    lowered = rows(weft.to_fx(program))
    assert relink(program) is module.graph
    module.graph.lint()
    module.recompile()
    found = rows(module)
    assert [(row.op, row.name, row.target, repr(row.args)) for row in found] == [
        (row.op, row.name, row.target, repr(row.args)) for row in lowered
    ]
    assert [sorted(row.meta) for row in found] == [sorted(row.meta) for row in lowered]
    return module


def computed(module: GraphModule) -> list[Tensor]:
    x, y = torch.arange(4.0), torch.linspace(0, 1, 4)
    return list(module(x, y).values())


def test_a_program_that_was_not_changed_changes_nothing() -> None:
    module = chain()
    before = rows(module)
    assert rows(relinked(weft.from_fx(module), module)) == before


def test_ops_move_up_and_down() -> None:
    module, expected = chain(), computed(chain())
    editor = weft.Editor(weft.from_fx(module))
    editor.move_before("cos", "sin")
    editor.move_before("mul", "add")
    found = relinked(editor.finish("move"), module)
    assert names(found) == ["x_1", "y_1", "cos", "sin", "mul", "add", "exp", "output"]
    assert_equal(computed(found), expected)


def test_a_whole_new_order_is_taken() -> None:
    module, expected = chain(), computed(chain())
    editor = weft.Editor(weft.from_fx(module))
    order = ["y_1", "cos", "mul", "x_1", "sin", "add", "exp"]
    editor.reorder(order)
    program = editor.finish("other way round")
    assert names(relinked(program, module)) == [*order, "output"]
    assert_equal(list(module(torch.linspace(0, 1, 4), torch.arange(4.0)).values()), expected)


def test_removed_ops_are_gone_and_their_readers_read_another() -> None:
    module = chain()
    editor = weft.Editor(weft.from_fx(module))
    editor.remove("exp", use="add")
    editor.remove("sin", use="x_1")
    found = relinked(editor.finish("less"), module)
    assert names(found) == ["x_1", "y_1", "cos", "add", "mul", "output"]
    x, y = torch.arange(4.0), torch.linspace(0, 1, 4)
    assert_equal(computed(found), [x + y.cos(), y.cos() * 2])


def test_several_new_ops_keep_their_order() -> None:
    module = chain()
    editor = weft.Editor(weft.from_fx(module))
    anchor, out = "cos", (TensorSpec((4,), "f32"),)
    for name in ("one", "two", "three"):
        op = weft.Op(name, "aten.neg.default", (weft.Ref(anchor),), out=out, traits=traits_of("aten.neg.default"))
        anchor = editor.insert_after(anchor, op).name
    editor.replace(replace(editor["mul"], args=(weft.Ref("three"), 2)))
    found = relinked(editor.finish("more"), module)
    assert names(found) == ["x_1", "y_1", "sin", "cos", "one", "two", "three", "add", "exp", "mul", "output"]
    assert_equal(computed(found)[1:], [-torch.linspace(0, 1, 4).cos() * 2])


def test_an_op_that_becomes_another_keeps_its_name_and_its_readers() -> None:
    module = chain()
    editor = weft.Editor(weft.from_fx(module))
    editor.replace(replace(editor["sin"], target="aten.neg.default"))
    found = relinked(editor.finish("other"), module)
    assert names(found) == names(chain())
    x, y = torch.arange(4.0), torch.linspace(0, 1, 4)
    assert_equal(computed(found), [(y.cos() - x).exp(), y.cos() * 2])
    assert [node.name for node in found.graph.find_nodes(op="call_function", target=aten.neg.default)] == ["sin"]


def test_a_change_before_a_removal_and_an_insertion_all_at_once() -> None:
    module = chain()
    editor = weft.Editor(weft.from_fx(module))
    out = (TensorSpec((4,), "f32"),)
    fused = weft.Op("fused", "aten.sub.Tensor", (weft.Ref("x_1"), weft.Ref("cos")), out=out, sources=("sin", "add"))
    editor.insert_before("add", replace(fused, traits=traits_of(fused.target)))
    editor.remove("add", use="fused")
    editor.remove("sin")
    editor.move_after("mul", "cos")
    found = relinked(editor.finish("fuse"), module)
    assert names(found) == ["x_1", "y_1", "cos", "mul", "fused", "exp", "output"]
    x, y = torch.arange(4.0), torch.linspace(0, 1, 4)
    assert_equal(computed(found), [(x - y.cos()).exp(), y.cos() * 2])


def test_lowering_does_not_touch_the_source_graph_whatever_was_changed() -> None:
    module = chain()
    before = rows(module)
    editor = weft.Editor(weft.from_fx(module))
    editor.remove("exp", use="add")
    editor.replace(replace(editor["sin"], target="aten.neg.default"))
    editor.move_before("mul", "add")
    weft.to_fx(editor.finish("changes"))(torch.ones(4), torch.ones(4))
    assert rows(module) == before


def test_unchanged_nodes_are_the_same_objects() -> None:
    module = chain()
    before = {node.name: node for node in module.graph.nodes}
    editor = weft.Editor(weft.from_fx(module))
    editor.move_before("cos", "sin")
    relink(editor.finish("move"))
    assert all(before[node.name] is node for node in module.graph.nodes)


def test_a_program_without_a_graph_cannot_be_put_back() -> None:
    program = weft.parse("weft 1\n%x: f32[2] = input()\nreturn %x\n")
    with pytest.raises(GraphError, match=r"^only a program that came from a graph can be put back into it$"):
        relink(program)
