"""What cannot cross between torch and Weft is refused with its name and a way out; nothing is executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph

import weft
from tests.fx.graphs import by_hand
from weft import GraphError
from weft.fx.names import resolve

aten = torch.ops.aten


def program(body: str) -> weft.Program:
    return weft.parse(f"weft 1\n%x: f32[2,2] = input()\n{body}\nreturn %y\n")


def refused(body: str) -> str:
    with pytest.raises(GraphError) as caught:
        weft.to_fx(program(body))
    return str(caught.value)


def test_a_node_without_a_value_is_named() -> None:
    module = by_hand(lambda graph, x: (graph.call_function(aten.sin.default, (x,)),), x=torch.ones(2))
    for node in module.graph.nodes:
        if node.op == "call_function":
            del node.meta["val"]
    with pytest.raises(GraphError) as caught:
        weft.from_fx(module)
    assert str(caught.value) == (
        "%sin_default (aten.sin.default) has no 'val' in its metadata, so its shape is not known; "
        "trace the graph with make_fx, torch.compile or torch.export"
    )


@pytest.mark.parametrize(
    ("kind", "target", "shown"),
    [
        ("placeholder", "x", "%x (x)"),
        ("call_method", "sin", "%sin (sin)"),
        ("call_module", "layer", "%layer (layer)"),
        ("call_function", len, "%len_1 (python.builtins.len)"),
    ],
)
def test_every_kind_of_node_without_a_value_is_named(kind: str, target: Any, shown: str) -> None:
    graph = Graph()
    graph.output(graph.create_node(kind, target))
    with pytest.raises(GraphError) as caught:
        weft.from_fx(graph)
    assert str(caught.value).startswith(f"{shown} has no 'val' in its metadata")


def test_a_dtype_that_weft_does_not_know_is_named() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, dtype=torch.bits8)
    graph.output(x)
    with pytest.raises(GraphError, match=r"^Weft does not know the dtype torch\.bits8$"):
        weft.from_fx(graph)


def test_an_object_of_another_graph_cannot_be_made_again() -> None:
    generator: Any = torch.Generator()
    graph = Graph()
    random = graph.call_function(aten.rand.generator, ([2],), {"generator": generator})
    random.meta["val"] = torch.ones(2)
    graph.output(random)
    known = weft.from_fx(graph)
    (line,) = (line for line in str(known).splitlines() if line.startswith("%"))
    assert 'generator=opaque("object_0", "Generator")' in line
    (node,) = (node for node in weft.to_fx(known).graph.nodes if node.op == "call_function")
    assert node.kwargs["generator"] is generator
    with pytest.raises(GraphError) as caught:
        weft.to_fx(weft.parse(str(known)))
    assert str(caught.value) == "a Generator (object_0) cannot be made again: the graph that had it is not here"


def test_an_operator_that_torch_does_not_have_is_named() -> None:
    assert refused("%y: f32[2,2] = mylib.fused.default(%x)") == (
        "torch has no operator mylib.fused.default: is the library that defines it imported?"
    )


def test_a_constant_that_torch_does_not_have_is_named() -> None:
    assert refused("%y: f32[2,2] = aten.clone.default(%x, memory_format=torch.sideways)") == (
        "torch has no constant torch.sideways that Weft knows"
    )


def test_an_attribute_is_not_to_be_had_from_text() -> None:
    assert refused('%y: f32[2] = get_attr("weight")') == "%y: the module that has 'weight' is not here"


def test_an_operator_that_cannot_run_on_its_arguments_is_named() -> None:
    message = refused("%z: f32[3,3] = aten.zeros.default([3, 3])\n%y: f32[2,3] = aten.mm.default(%x, %z)")
    assert message.startswith("%y (aten.mm.default) cannot be run on its arguments: ")


def test_an_operator_with_arguments_that_it_does_not_take_is_named() -> None:
    message = refused("%y: f32[2,2] = aten.sin.default(%x, 3, 4)")
    assert message.startswith("%y (aten.sin.default) cannot be run on its arguments: ")


EVIL = """
os.system.default operator.__import__ operator.attrgetter operator.call builtins.eval.default builtins.exec
python.os.system python.os.system.default subprocess.run.default math.__loader__ torch.load torch.load.default
torch.hub.load higher_order.__init__ higher_order.__class__ load_library.x.y import_module.os.system aten.__init__.x
aten.sin.__call__ aten.sin.__class__ aten.sin _ops.__getattr__.x __class__.__init__.__globals__ aten..default ..
aten.sin. .sin.default prim.PythonOp.default loaded_libraries.add.x operator operator. getitem.default wait.default
aten.save.default aten.set_grad_enabled.default aten.manual_seed.default
""".split()


@pytest.mark.parametrize("target", EVIL)
def test_a_name_that_is_no_operator_is_refused_and_nothing_is_executed(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "system", called.append)
    with pytest.raises(GraphError, match=r"^torch has no operator "):
        resolve(target)
    with pytest.raises(GraphError, match=r"^torch has no operator "):
        weft.to_fx(program(f'%y: f32[2,2] = "{target}"("touch weft_was_here")'))
    assert called == []
    assert not os.path.exists("weft_was_here")


def test_an_operator_with_an_effect_is_not_run_to_find_its_value(capfd: pytest.CaptureFixture[str]) -> None:
    made = weft.to_fx(program('%y: () = aten._print.default("executed")'))
    assert capfd.readouterr().out == ""
    assert [dict(node.meta) for node in made.graph.nodes if node.op == "call_function"] == [{}]


def test_an_operator_that_opens_a_file_is_not_run_to_find_its_value(tmp_path: Path) -> None:
    path = tmp_path / "made"
    weft.to_fx(program(f'%y: f32[8] = aten.from_file.default("{path}", True, 8)'))
    assert not path.exists()


@pytest.mark.parametrize("target", ["os.system.default", "higher_order.eval", "aten.sin"])
def test_a_function_that_is_an_argument_is_looked_up_in_the_same_way(target: str) -> None:
    assert refused(f"%y: f32[2,2] = higher_order.out_dtype(&{target}, i32, %x)") == (
        f"torch has no operator {target}: is the library that defines it imported?"
    )
