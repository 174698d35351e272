"""Which ranks a collective's group stands for, however the graph names it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.fx import GraphModule

import weft
from tests.fx.graphs import by_hand, fake_world, groups_of, round_trip
from weft import GraphError

C10D = torch.ops._c10d_functional


def all_reduce(group: Any) -> GraphModule:
    return by_hand(lambda graph, x: (graph.call_function(C10D.all_reduce.default, (x, "sum", group)),), x=torch.ones(4))


def all_gather(group: str, size: int) -> GraphModule:
    return by_hand(
        lambda graph, x: (graph.call_function(C10D.all_gather_into_tensor.default, (x, size, group)),), x=torch.ones(4)
    )


# Without torch.distributed


def test_the_ranks_of_an_all_reduce_must_be_said_where_nobody_knows_them() -> None:
    with pytest.raises(GraphError) as caught:
        weft.from_fx(all_reduce("dp"))
    assert str(caught.value) == (
        "%all_reduce_default: the ranks of group 'dp' are not known, since torch.distributed is not initialised; "
        "say which they are: from_fx(graph, groups={'dp': range(8)})"
    )


def test_the_ranks_of_an_all_gather_are_counted_from_zero_where_nobody_knows_them() -> None:
    assert groups_of(weft.from_fx(all_gather("dp", 4))) == {"dp": (0, 1, 2, 3)}


def test_given_groups_are_used() -> None:
    program = round_trip(all_reduce("dp"), groups={"dp": range(1, 8, 2), "other": [0]})
    assert groups_of(program) == {"dp": (1, 3, 5, 7)}


def test_given_groups_must_have_the_size_that_the_operator_says() -> None:
    with pytest.raises(GraphError) as caught:
        weft.from_fx(all_gather("dp", 4), groups={"dp": range(8)})
    assert str(caught.value) == "%all_gather_into_tensor_default says that group 'dp' has 4 ranks; it has 8"


# With torch.distributed


def test_names_are_looked_up_in_torch_distributed() -> None:
    with fake_world(4):
        name = dist.new_group([0, 2]).group_name
        program = round_trip(all_reduce(name))
    assert groups_of(program) == {name: (0, 2)}


def test_given_groups_count_more_than_those_of_torch_distributed() -> None:
    with fake_world(4):
        program = round_trip(all_reduce("0"), groups={"0": (4, 5)})
    assert groups_of(program) == {"0": (4, 5)}


def test_a_group_that_torch_distributed_does_not_have_is_reported() -> None:
    with fake_world(4), pytest.raises(GraphError) as caught:
        weft.from_fx(all_reduce("gone"))
    assert str(caught.value) == (
        "%all_reduce_default: torch.distributed has no group 'gone' here; "
        "say which ranks it has: from_fx(graph, groups={'gone': range(8)})"
    )


def test_a_process_group_itself_may_be_the_argument() -> None:
    with fake_world(4):
        group = dist.new_group([0, 1])
        module = all_reduce("0")
        start = next(node for node in module.graph.nodes if node.target is C10D.all_reduce.default)
        start.args = (*start.args[:2], group)
        program = weft.from_fx(module)
        made = weft.to_fx(program)
    assert groups_of(program) == {group.group_name: (0, 1)}
    assert [node.args[2] for node in made.graph.nodes if node.name == start.name] == [group]


def test_a_group_that_is_neither_a_name_nor_a_process_group_is_reported() -> None:
    module = all_reduce("dp")
    start = next(node for node in module.graph.nodes if node.target is C10D.all_reduce.default)
    start.args = (*start.args[:2], 7)
    with pytest.raises(GraphError, match=re.escape("%all_reduce_default: its group is a int, neither a name nor a")):
        weft.from_fx(module)
