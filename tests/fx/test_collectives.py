"""Every functional collective: what it is in Weft, and that it comes back as the operator that it was."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

import weft
from tests.fx.graphs import assert_equal, by_hand, lines, round_trip, rows, spelled
from weft import GraphError
from weft.run import virtual

pytestmark = pytest.mark.usefixtures("world")

C10D = torch.ops._c10d_functional


@dataclass(frozen=True)
class Case:
    """An operator, its arguments by name from the nodes `x`, `y` and `out`, and the text of the start."""

    function: Any
    arguments: Callable[[Node, Node, Node], dict[str, Any]]
    text: str


_GROUP = {"group_name": "0"}
_SIZE = {"group_size": 4, **_GROUP}

CASES: Mapping[str, Case] = {
    "all_gather": Case(
        C10D.all_gather_into_tensor.default,
        lambda x, y, out: {"input": x, **_SIZE},
        '%start: f32[16,2] = all_gather.start(%x) over "0"',
    ),
    "all_gather_out": Case(
        C10D.all_gather_into_tensor_out.default,
        lambda x, y, out: {"input": x, **_SIZE, "out": out},
        '%start: f32[16,2] = all_gather_out.start(%x, out=%out) over "0"',
    ),
    "all_gather_coalesced": Case(
        C10D.all_gather_into_tensor_coalesced.default,
        lambda x, y, out: {"inputs": [x, y], **_SIZE},
        '%start: (f32[16,2], f32[8]) = all_gather.start([%x, %y]) over "0"',
    ),
    "reduce_scatter": Case(
        C10D.reduce_scatter_tensor.default,
        lambda x, y, out: {"input": x, "reduce_op": "sum", **_SIZE},
        '%start: f32[1,2] = reduce_scatter.start(%x) sum over "0"',
    ),
    "reduce_scatter_out": Case(
        C10D.reduce_scatter_tensor_out.default,
        lambda x, y, out: {"input": out, "reduce_op": "max", **_SIZE, "out": x},
        '%start: f32[4,2] = reduce_scatter_out.start(%out, out=%x) max over "0"',
    ),
    "reduce_scatter_coalesced": Case(
        C10D.reduce_scatter_tensor_coalesced.default,
        lambda x, y, out: {"inputs": [x, out], "reduce_op": "avg", **_SIZE},
        '%start: (f32[1,2], f32[4,2]) = reduce_scatter.start([%x, %out]) avg over "0"',
    ),
    "all_reduce": Case(
        C10D.all_reduce.default,
        lambda x, y, out: {"input": x, "reduce_op": "avg", **_GROUP},
        '%start: f32[4,2] = all_reduce.start(%x) avg over "0"',
    ),
    "all_reduce in place": Case(
        C10D.all_reduce_.default,
        lambda x, y, out: {"input": x, "reduce_op": "sum", **_GROUP},
        '%start: f32[4,2] = all_reduce_.start(%x) sum over "0"',
    ),
    "all_reduce_coalesced": Case(
        C10D.all_reduce_coalesced.default,
        lambda x, y, out: {"inputs": [x, y], "reduce_op": "max", **_GROUP},
        '%start: (f32[4,2], f32[2]) = all_reduce.start([%x, %y]) max over "0"',
    ),
    "all_reduce_coalesced in place": Case(
        C10D.all_reduce_coalesced_.default,
        lambda x, y, out: {"inputs": [x, y], "reduce_op": "sum", **_GROUP},
        '%start: (f32[4,2], f32[2]) = all_reduce_.start([%x, %y]) sum over "0"',
    ),
    "all_to_all": Case(
        C10D.all_to_all_single.default,
        lambda x, y, out: {
            "input": x,
            "output_split_sizes": [1, 1, 1, 1],
            "input_split_sizes": [1, 1, 1, 1],
            **_GROUP,
        },
        '%start: f32[4,2] = all_to_all.start(%x, [1, 1, 1, 1], [1, 1, 1, 1]) over "0"',
    ),
    "broadcast": Case(
        C10D.broadcast.default,
        lambda x, y, out: {"input": x, "src": 2, **_GROUP},
        '%start: f32[4,2] = broadcast.start(%x, 2) over "0"',
    ),
    "broadcast in place": Case(
        C10D.broadcast_.default,
        lambda x, y, out: {"input": x, "src": 1, **_GROUP},
        '%start: f32[4,2] = broadcast_.start(%x, 1) over "0"',
    ),
}

each_collective = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
each_spelling = pytest.mark.parametrize("by_keyword", [False, True], ids=["by position", "by keyword"])


def graph_of(case: Case, by_keyword: bool = False) -> GraphModule:
    """The start, its parts if it has several results, and their waits."""

    def build(graph: Graph, x: Node, y: Node, out: Node) -> tuple[Node, ...]:
        given = case.arguments(x, y, out)
        keywords = {name: given.pop(name) for name in list(given) if by_keyword or name == "out"}
        start = graph.create_node("call_function", case.function, tuple(given.values()), keywords, name="start")
        parts = [start]
        if "[%" in case.text:
            parts = [graph.call_function(operator.getitem, (start, number)) for number in range(2)]
        return tuple(_waited(graph, part, by_keyword) for part in parts)

    return by_hand(build, **tensors(0))


def _waited(graph: Graph, node: Node, by_keyword: bool) -> Node:
    if by_keyword:
        return graph.call_function(C10D.wait_tensor.default, (), {"tensor": node})
    return graph.call_function(C10D.wait_tensor.default, (node,))


def tensors(rank: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(rank)
    return {
        "x": torch.randn(4, 2, generator=random),
        "y": torch.randn(2, generator=random),
        "out": torch.randn(16, 2, generator=random),
    }


@each_collective
@each_spelling
def test_the_start_reads_so(case: Case, by_keyword: bool) -> None:
    program = weft.from_fx(graph_of(case, by_keyword))
    assert lines(program)[0] == case.text
    assert str(program).splitlines()[:2] == ["weft 1", 'group "0" = 0..3']


@each_collective
@each_spelling
def test_the_wait_is_of_the_start_however_it_is_spelled(case: Case, by_keyword: bool) -> None:
    program = weft.from_fx(graph_of(case, by_keyword))
    waits = [line for line in lines(program) if " = wait(" in line]
    parts = ["getitem", "getitem_1"] if "[%" in case.text else ["start"]
    assert [line.split(" = ")[1] for line in waits] == [f"wait(%{part})" for part in parts]


@each_collective
@each_spelling
def test_every_node_comes_back(case: Case, by_keyword: bool) -> None:
    round_trip(graph_of(case, by_keyword))


@each_collective
def test_a_start_that_was_replaced_by_its_equal_is_spelled_as_before(case: Case) -> None:
    module = graph_of(case)
    program = weft.from_fx(module)
    ops = tuple(replace(op) if op.is_start or op.is_wait else op for op in program.ops)
    assert spelled(weft.to_fx(replace(program, ops=ops))) == spelled(module)


@each_collective
@each_spelling
def test_text_alone_is_lowered_to_the_same_nodes(case: Case, by_keyword: bool) -> None:
    text = str(weft.from_fx(graph_of(case, by_keyword)))
    made = weft.to_fx(weft.parse(text))
    assert spelled(made) == spelled(graph_of(case))
    assert [row.op for row in rows(made)] == [row.op for row in rows(graph_of(case))]


@each_collective
def test_text_alone_is_given_the_values_that_the_graph_had(case: Case) -> None:
    module = graph_of(case)
    made = weft.to_fx(weft.parse(str(weft.from_fx(module))))
    assert str(weft.from_fx(made)) == str(weft.from_fx(module))


@each_collective
def test_virtual_ranks_make_the_same_of_graph_and_text(case: Case) -> None:
    program = weft.from_fx(graph_of(case))
    results = [
        virtual(one, [list(tensors(rank).values()) for rank in range(4)])
        for one in (program, weft.parse(str(program)), weft.from_fx(weft.to_fx(program)))
    ]
    for other in results[1:]:
        for rank in range(4):
            assert_equal(other[rank], results[0][rank])


@pytest.mark.parametrize("reduction", ["sum", "avg", "max", "min", "product"])
@pytest.mark.parametrize("spelling", [str.lower, str.upper], ids=["small", "capital"])
def test_each_reduction_is_kept_in_small_letters(reduction: str, spelling: Callable[[str], str]) -> None:
    arguments = (spelling(reduction), "0")
    module = by_hand(lambda graph, x: (graph.call_function(C10D.all_reduce.default, (x, *arguments)),), x=torch.ones(2))
    program = round_trip(module)
    assert lines(program) == [f'%all_reduce_default: f32[2] = all_reduce.start(%x) {reduction} over "0"']


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "%y: f32[8] = all_gather.start([%x], [%x]) over dp",
            "%y: all_gather.start takes inputs",
        ),
        (
            "%y: f32[8] = all_gather_out.start(%x) over dp",
            "%y: all_gather_out.start takes input; out=",
        ),
        (
            "%y: f32[8] = all_to_all.start([%x], [2], [2]) over dp",
            "%y: torch has no coalesced all_to_all.start",
        ),
        (
            "%y: f32[8] = broadcast.start() over dp",
            "%y: broadcast.start takes input, src",
        ),
    ],
)
def test_a_start_that_torch_cannot_spell_is_refused(text: str, message: str) -> None:
    program = weft.parse(f"weft 1\ngroup dp = 0..3\n%x: f32[2] = input()\n{text}\nreturn %y\n")
    with pytest.raises(GraphError) as caught:
        weft.to_fx(program)
    assert str(caught.value) == message
