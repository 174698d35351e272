"""What nodes know of themselves: kept where they stay, inherited where they are new, computed where it is their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

import weft
from tests.fx.graphs import Row, by_hand, rows
from weft.errors import GraphError
from weft.fx import relink
from weft.fx.names import resolve
from weft.ir import TensorSpec
from weft.ir.targets import traits_of

aten = torch.ops.aten

STACK = 'File "model.py", line 7, in forward\n  y = x.sin()'
INHERITED: dict[str, Any] = {
    "stack_trace": STACK,
    "nn_module_stack": {"a": ("L['self'].layers[0].up", torch.nn.Linear)},
    "seq_nr": 12,
    "recompute": "must save",
    "custom": {"a": 1},
    "partitioner_tag": "is_forward",
}
# These describe the value of the old node, or the node itself.
OWN: dict[str, Any] = {"tensor_meta": object(), "original_aten": aten.sin.default, "mine": object()}


def graph() -> GraphModule:
    """y = cos(sin(x)), where the sine carries all metadata that there is."""

    def build(graph: Graph, x: Node) -> Any:
        sin = graph.create_node("call_function", aten.sin.default, (x,), name="sin")
        return (graph.create_node("call_function", aten.cos.default, (sin,), name="cos"),)

    module = by_hand(build, x=torch.ones(4, 2))
    found = next(node for node in module.graph.nodes if node.name == "sin")
    found.meta.update(INHERITED, **OWN)
    return module


def lowered(program: weft.Program, how: str) -> dict[str, Row]:
    """The nodes by name, from a new graph or from the old one changed in place."""
    made = weft.to_fx(program) if how == "to_fx" else relink(program)
    (made.graph if isinstance(made, GraphModule) else made).lint()
    return {row.name: row for row in rows(made)}


def flatten(program: weft.Program, *sources: str) -> weft.Program:
    """The program with a view of the sine, which the cosine does not use."""
    out = (TensorSpec((8,), "f32"),)
    view = weft.Op("flat", "aten.view.default", (weft.Ref("sin"), (8,)), out=out, sources=sources)
    editor = weft.Editor(program)
    editor.insert_after("sin", replace(view, traits=traits_of(view.target)))
    return editor.finish("flatten")


both_ways = pytest.mark.parametrize("how", ["to_fx", "relink"])


@both_ways
def test_a_new_op_inherits_from_its_source_what_is_not_about_the_value(how: str) -> None:
    node = lowered(flatten(weft.from_fx(graph()), "sin"), how)["flat"]
    assert {key: value for key, value in node.meta.items() if key != "val"} == INHERITED
    assert all(node.meta[key] is value for key, value in INHERITED.items())


@both_ways
def test_the_first_source_that_the_graph_has_counts(how: str) -> None:
    node = lowered(flatten(weft.from_fx(graph()), "cos", "sin"), how)["flat"]
    assert list(node.meta) == ["val"]


@both_ways
def test_a_new_op_without_sources_has_a_value_and_nothing_else(how: str) -> None:
    node = lowered(flatten(weft.from_fx(graph())), how)["flat"]
    assert list(node.meta) == ["val"]


@both_ways
def test_the_value_of_a_new_op_is_a_fake_tensor_of_the_graph_s_own_mode(how: str) -> None:
    module = graph()
    mode = next(iter(module.graph.nodes)).meta["val"].fake_mode
    value = lowered(flatten(weft.from_fx(module), "sin"), how)["flat"].meta["val"]
    assert isinstance(value, FakeTensor)
    assert value.fake_mode is mode
    assert (tuple(value.shape), value.dtype, value.stride()) == ((8,), torch.float32, (1,))
    assert not value.requires_grad


VIEWS: dict[str, tuple[Any, ...]] = {
    "aten.view.default": ((8,),),
    "aten.slice.Tensor": (0, 1, 3),
    "aten.t.default": (),
    "aten.transpose.int": (0, 1),
    "aten.unsqueeze.default": (1,),
    "aten.expand.default": ((3, 4, 2),),
    "aten.as_strided.default": ((2, 2), (1, 2), 3),
}


@both_ways
@pytest.mark.parametrize("target", VIEWS)
def test_a_new_view_is_what_the_mode_would_make_of_the_same_memory(target: str, how: str) -> None:
    module = graph()
    sine = next(node.meta["val"] for node in module.graph.nodes if node.name == "sin")
    with sine.fake_mode:
        wanted = resolve(target)(sine, *VIEWS[target])
    out = (TensorSpec(tuple(wanted.shape), "f32", tuple(wanted.stride())),)
    editor = weft.Editor(weft.from_fx(module))
    given = (weft.Ref("sin"), *VIEWS[target])
    editor.insert_after("sin", weft.Op("seen", target, given, out=out, traits=traits_of(target)))
    found = lowered(editor.finish("look"), how)["seen"].meta["val"]
    assert isinstance(found, FakeTensor)
    assert found.untyped_storage()._cdata == wanted.untyped_storage()._cdata
    for what in ("shape", "dtype", "device", "fake_mode", "requires_grad", "stride", "storage_offset"):
        one, other = getattr(found, what), getattr(wanted, what)
        assert (one() == other()) if callable(one) else one == other


@both_ways
def test_a_list_of_one_view_stays_a_list(how: str) -> None:
    editor = weft.Editor(weft.from_fx(graph()))
    out = (TensorSpec((4, 2), "f32"),)
    split = weft.Op("seen", "aten.split.Tensor", (weft.Ref("sin"), 4), out=out, traits=traits_of("aten.split.Tensor"))
    editor.insert_after("sin", split)
    (found,) = lowered(editor.finish("look"), how)["seen"].meta["val"]
    assert isinstance(found, FakeTensor)


@both_ways
def test_a_view_that_cannot_be_is_an_error_that_names_it(how: str) -> None:
    editor = weft.Editor(weft.from_fx(graph()))
    view = weft.Op("seen", "aten.view.default", (weft.Ref("sin"), (7,)), out=(TensorSpec((7,), "f32"),))
    editor.insert_after("sin", replace(view, traits=traits_of(view.target)))
    with pytest.raises(GraphError, match=r"^%seen \(aten\.view\.default\) cannot be run on its arguments: "):
        lowered(editor.finish("look"), how)


@both_ways
def test_an_op_with_other_arguments_and_the_same_value_keeps_everything(how: str) -> None:
    module = graph()
    before = {row.name: row for row in rows(module)}
    editor = weft.Editor(weft.from_fx(module))
    editor.replace(replace(editor["sin"], origin="elsewhere"))
    node = lowered(editor.finish("same"), how)["sin"]
    assert node == before["sin"]


@both_ways
def test_an_op_with_another_target_keeps_what_is_not_about_the_value(how: str) -> None:
    editor = weft.Editor(weft.from_fx(graph()))
    editor.replace(replace(editor["sin"], target="aten.exp.default"))
    found = lowered(editor.finish("other"), how)
    assert found["sin"].target is aten.exp.default
    assert {key: value for key, value in found["sin"].meta.items() if key != "val"} == INHERITED
    assert found["cos"].args == ("sin",)


@both_ways
def test_an_op_whose_result_changes_gets_a_new_value(how: str) -> None:
    module = by_hand(lambda graph, x: (graph.call_function(aten.sum.dim_IntList, (x, [0])),), x=torch.ones(4, 2))
    editor = weft.Editor(weft.from_fx(module))
    (name,) = (op.name for op in editor if not op.is_input)
    editor.replace(replace(editor[name], args=(weft.Ref("x"), (1,)), out=(TensorSpec((4,), "f32"),)))
    value = lowered(editor.finish("other dimension"), how)[name].meta["val"]
    assert tuple(value.shape) == (4,)


def test_a_value_that_only_data_decides_is_left_out() -> None:
    editor = weft.Editor(weft.from_fx(graph()))
    nonzero = weft.Op("where", "aten.nonzero.default", (weft.Ref("sin"),), out=(TensorSpec((8, 2), "i64"),))
    editor.insert_after("sin", nonzero)
    (node,) = (node for node in weft.to_fx(editor.finish("nonzero")).graph.nodes if node.name == "where")
    assert node.meta == {}


def test_the_value_of_a_write_to_a_leaf_is_found_without_autograd() -> None:
    module = by_hand(lambda graph, x: (x,), x=torch.ones(2))
    placeholder = next(iter(module.graph.nodes))
    placeholder.meta["val"] = placeholder.meta["val"].requires_grad_()
    editor = weft.Editor(weft.from_fx(module))
    write = weft.Op("w", "aten.mul_.Scalar", (weft.Ref("x"), 2.0), out=editor["x"].out)
    editor.insert_after("x", replace(write, traits=traits_of(write.target)))
    found = {node.name: node.meta for node in weft.to_fx(editor.finish("write")).graph.nodes}
    assert tuple(found["w"]["val"].shape) == (2,)


# Where things come from


@pytest.mark.parametrize(
    ("meta", "origin"),
    [
        ({"stack_trace": STACK}, "model.py:7"),
        ({"stack_trace": STACK, "nn_module_stack": {"a": ("layers.0.up", None)}}, "layers.0.up model.py:7"),
        ({"nn_module_stack": {"a": ("", None), "b": ("L['self'].layers[0].up", None)}}, "layers.0.up"),
        ({"nn_module_stack": {"a": ("L['self']._modules['layers']._modules['0']", None)}}, "layers.0"),
        ({"nn_module_stack": {"a": ("L['self'].blocks['first'].up", None)}}, "blocks.first.up"),
        ({"nn_module_stack": {"a": ("G['model'].up", None)}}, "up"),
        ({"fwd_nn_module_stack": {"a": ("L['self'].up", None)}}, "up"),
        ({"nn_module_stack": {}, "stack_trace": ""}, ""),
        ({"stack_trace": f'{STACK}\n  File "{torch.__file__}", line 1, in relu\n  y'}, "model.py:7"),
        ({"stack_trace": f'File "{torch.__file__}", line 1, in relu\n  y'}, ""),
        ({"stack_trace": 'File "<eval_with_key>.20 from somewhere in wrapped", line 6, in forward\n  y'}, ""),
        ({"stack_trace": f"{STACK}\n  " + 'File "<eval_with_key>.2", line 6, in forward\n  y'}, "model.py:7"),
    ],
)
def test_the_origin_is_the_module_and_the_line_of_the_user(meta: dict[str, Any], origin: str) -> None:
    module = by_hand(lambda graph, x: (graph.call_function(aten.sin.default, (x,)),), x=torch.ones(2))
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    node.meta.update(meta)
    assert weft.from_fx(module)[node.name].origin == origin


def test_the_line_is_relative_to_where_one_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    module = by_hand(lambda graph, x: (graph.call_function(aten.sin.default, (x,)),), x=torch.ones(2))
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    node.meta["stack_trace"] = f'File "{tmp_path}/src/model.py", line 7, in forward\n  y'
    assert weft.from_fx(module)[node.name].origin == "src/model.py:7"


def test_metadata_of_the_module_is_kept() -> None:
    module = graph()
    module.meta["note"] = ["kept"]
    assert weft.to_fx(weft.from_fx(module)).meta["note"] is module.meta["note"]


def test_annotated_types_of_nodes_are_kept() -> None:
    module = graph()
    for node in module.graph.nodes:
        node.type = Tensor
    assert [node.type for node in weft.to_fx(weft.from_fx(module)).graph.nodes] == [Tensor] * 4
