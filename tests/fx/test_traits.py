"""What ops do: Weft's table against torch's schemas, and what is made of operators that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims  # defines prims.inductor_*
import torch.distributed.fsdp._fully_shard._fsdp_collectives  # defines fsdp.*
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import weft
from tests.fx import operators
from tests.fx.graphs import aot_graphs, assert_runs_alike, by_hand, lines, round_trip
from weft import Traits, pipeline
from weft.fx.names import resolve
from weft.fx.schema import function_traits, schema_traits
from weft.ir.targets import TARGETS
from weft.ir.traits import BARRIER, PURE

aten = torch.ops.aten

# Where the table and the schema are meant to differ.
INTENDED = {
    "aten._unsafe_view.default": "shares storage at run time; the schema denies it to spare autograd the bookkeeping",
    "aten.type_as.default": "gives its argument back where that has the dtype already",
    "prims.device_put.default": "gives its argument back where that is on the device already",
}
TORCH_TARGETS = sorted(target for target in TARGETS if target.startswith(("aten.", "prims.", "weft.")))


# The table


def test_the_table_says_what_the_schemas_say() -> None:
    differing = []
    for target in TORCH_TARGETS:
        operator = resolve(target)
        assert isinstance(operator, OpOverload)
        # That an operator multiplies matrices, or copies where it cannot view, is no matter of schemas.
        if schema_traits(operator) != replace(TARGETS[target], matmul=False, copies=False):
            differing.append(target)
    assert differing == list(INTENDED)


def test_the_table_lists_weft_s_own_ops_and_operators_and_nothing_else() -> None:
    own = sorted(set(TARGETS) - set(TORCH_TARGETS))
    assert own == sorted(
        """input get_attr getitem wait all_gather.start all_gather_out.start reduce_scatter.start
        reduce_scatter_out.start all_reduce.start all_reduce_.start all_to_all.start broadcast.start
        broadcast_.start all_gather_matmul.fused all_gather_scaled_matmul.fused matmul_reduce_scatter.fused
        scaled_matmul_reduce_scatter.fused""".split()
    )


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (aten._unsafe_view.default, ([4],)),
        (aten.unsafe_chunk.default, (2,)),
        (aten.unsafe_split.Tensor, (1,)),
        (aten.unsafe_split_with_sizes.default, ([1, 1],)),
    ],
    ids=str,
)
def test_operators_that_share_storage_behind_their_schemas_are_views(operator: Any, args: tuple[Any, ...]) -> None:
    x = torch.zeros(2, 2)
    result = operator(x, *args)
    first = result[0] if isinstance(result, tuple | list) else result
    first.fill_(1)
    assert x.sum() > 0
    assert schema_traits(operator) == PURE
    assert function_traits(operator) == Traits(views=(0,))


def test_the_copy_into_a_gather_of_fsdp_writes_its_output() -> None:
    operator = torch.ops.fsdp.all_gather_copy_in.default
    out = torch.zeros(4)
    operator([torch.ones(2)], out, [2], 2, 1)
    assert out.tolist() == [0, 0, 1, 1]
    assert function_traits(operator) == Traits(views=(1,), mutates=(1,))


# Schemas

BY_SCHEMA: dict[str, Traits] = {
    "aten.addmm_.default": Traits(views=(0,), mutates=(0,)),
    "aten.add.out": Traits(views=("out",), mutates=("out",)),
    "aten.max.dim_max": Traits(views=("max", "max_values"), mutates=("max", "max_values")),
    "aten.tensor_split.indices": Traits(views=(0,)),
    "aten.narrow.default": Traits(views=(0,)),
    "aten._foreach_addcmul_.Tensor": Traits(mutates=(0,)),
    "aten._foreach_add.List_out": Traits(mutates=("out",)),
    "aten._fused_adam_.default": Traits(mutates=(0, 1, 2, 3, 4)),
    "aten.bernoulli_.float": Traits(views=(0,), mutates=(0,), random=True),
    "aten.dropout.default": Traits(random=True),
    "aten.randint_like.default": Traits(random=True),
    "aten.native_group_norm.out": Traits(views=("out0", "out1", "out2"), mutates=("out0", "out1", "out2")),
    "aten._assert_async.msg": PURE,
    "aten._linalg_check_errors.default": BARRIER,
    "c10d.allreduce_.default": Traits(communicates=True, barrier=True),
    "_c10d_functional.isend.default": Traits(communicates=True, barrier=True),
    "_c10d_functional_autograd.all_to_all_single.default": Traits(communicates=True, barrier=True),
    "c10d_functional.all_reduce.default": Traits(communicates=True, barrier=True),
    "_dtensor.shard_dim_alltoall.default": Traits(communicates=True, barrier=True),
    "_dtensor.mesh_get_process_group.default": PURE,
    "symm_mem.one_shot_all_reduce.default": Traits(communicates=True, barrier=True),
    "fsdp.chunk_cat.default": Traits(mutates=("out",)),
    "fsdp.split_with_sizes_copy.default": Traits(mutates=("out",)),
    "weft_test.twice.default": PURE,
    "weft_test.bump_.default": Traits(mutates=(0,)),
    "weft_test.exchange.default": Traits(communicates=True, barrier=True),
    "weft_test.exchange_.default": Traits(mutates=(0,), communicates=True, barrier=True),
    "weft_test.over_mesh.default": Traits(communicates=True, barrier=True),
    "weft_test.channels.default": PURE,
}


@pytest.mark.parametrize(("target", "traits"), BY_SCHEMA.items(), ids=BY_SCHEMA.keys())
def test_operators_that_are_not_in_the_table_are_what_their_schemas_say(target: str, traits: Traits) -> None:
    assert target not in TARGETS
    assert function_traits(resolve(target)) == traits


def test_operators_that_are_registered_as_having_effects_are_barriers() -> None:
    assert function_traits(torch.ops.profiler._record_function_enter_new.default).barrier
    assert function_traits(torch.ops.inductor.resize_storage_bytes_.default).barrier


@pytest.mark.parametrize(
    "function",
    [operators.plain, torch.add, len, lambda x: x],
    ids=["function", "torch.add", "builtin", "lambda"],
)
def test_a_python_function_is_a_barrier(function: Any) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.create_node("call_function", function, (x,), name="call")
    x.meta["val"] = call.meta["val"] = torch.ones(2)
    graph.output(call)
    assert [op.traits for op in weft.from_fx(graph).ops] == [PURE, BARRIER]


# Arguments that are written, however they are spelled


def test_an_argument_that_is_given_by_keyword_is_named_so() -> None:
    def build(graph: Graph, x: Any, y: Any) -> Any:
        both = graph.call_function(aten.add_.Tensor, (), {"self": x, "other": y})
        return (graph.call_function(aten.view.default, (both,), {"size": [4]}),)

    program = round_trip(by_hand(build, x=torch.ones(4), y=torch.ones(4)))
    assert lines(program) == [
        "%add__tensor: f32[4] = aten.add_.Tensor(self=%x, other=%y) {views(self), mutates(self)}",
        "%view_default: f32[4] = aten.view.default(%add__tensor, size=[4])",
    ]
    assert [op.argument(key) for op in program.ops for key in op.traits.mutates] == [weft.Ref("x")]


def test_in_place_updates_run_after_the_round_trip() -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        torch._foreach_add_([x, y], [y, x], alpha=2)
        x.copy_(y + 1)
        y.fill_(3.0)
        return x + y

    module = make_fx(update)(torch.ones(2), torch.ones(2))
    program = round_trip(module)
    assert {op.target: op.traits for op in program.ops if op.traits.mutates} == {
        "aten._foreach_add_.List": Traits(mutates=(0,)),
        "aten.copy_.default": Traits(views=(0,), mutates=(0,)),
        "aten.fill_.Scalar": Traits(views=(0,), mutates=(0,)),
    }
    assert_runs_alike(weft.to_fx(program), module, [torch.arange(2.0), torch.ones(2)])


def test_random_ops_run_alike_and_are_marked() -> None:
    def noisy(x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5) + torch.rand_like(x) + torch.bernoulli(x)

    module = make_fx(noisy)(torch.full((8,), 0.5))
    program = round_trip(module)
    assert {op.target: op.traits for op in program.ops if op.traits.random} == {
        "aten.bernoulli_.float": Traits(views=(0,), mutates=(0,), random=True),
        "aten.rand_like.default": Traits(random=True),
        "aten.bernoulli.default": Traits(random=True),
    }
    assert_runs_alike(weft.to_fx(program), module, [torch.full((8,), 0.5)])


@pytest.mark.parametrize("version", ["auto_functionalized", "auto_functionalized_v2"])
def test_a_functionalised_write_is_no_barrier_unless_it_communicates(version: str) -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        operators.library.bump_(x, y)
        result: Tensor = operators.library.bump_and_twice_(x, y)
        operators.library.exchange_(x, "0")
        return result

    with torch._inductor.config.patch(enable_auto_functionalized_v2=version.endswith("v2")):
        (captured,) = aot_graphs(update, torch.ones(2), torch.ones(2))
    program = round_trip(captured.module)
    marked = [(op.args[0], op.traits) for op in program.ops if op.target == f"higher_order.{version}"]
    assert [(getattr(function, "target", None), traits) for function, traits in marked] == [
        ("weft_test.bump_.default", PURE),
        ("weft_test.bump_and_twice_.default", PURE),
        ("weft_test.exchange_.default", Traits(communicates=True, barrier=True)),
    ]
    assert_runs_alike(weft.to_fx(program), captured.module, captured.inputs)


# Barriers


def around(function: Callable[..., Any], *rest: Any) -> GraphModule:
    """A call between the start and the wait of an all-reduce, with a start behind it that could rise."""

    def build(graph: Graph, x: Any, y: Any) -> Any:
        start = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
        waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (start,))
        between = graph.create_node("call_function", function, (y, *rest), name="between")
        again = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (y, "sum", "0"))
        late = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (again,))
        return (between, graph.call_function(aten.add.Tensor, (waited, late)))

    return by_hand(build, x=torch.ones(4), y=torch.ones(4))


def order_after_passes(module: GraphModule) -> tuple[list[str], list[str]]:
    result = pipeline.run(
        weft.from_fx(module, groups={"0": range(4)}), weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES)
    )
    imported = [str(remark) for remark in result.remarks if remark.pass_name == "import"]
    return [op.name for op in result.program.ops], imported


def test_nothing_moves_across_an_operator_that_may_communicate() -> None:
    module = around(operators.library.exchange.default, "0")
    before = [node.name for node in module.graph.nodes][:-1]
    after, remarks = order_after_passes(module)
    assert after == before
    assert remarks == [
        "import: note: %between: weft_test.exchange.default communicates in a way that Weft does not know: "
        "nothing moves across it"
    ]


def test_nothing_moves_across_a_python_function() -> None:
    module = around(operators.plain)
    before = [node.name for node in module.graph.nodes][:-1]
    after, remarks = order_after_passes(module)
    assert after == before
    assert remarks == [
        "import: note: %between: python.tests.fx.operators.plain is unknown to Weft: nothing moves across it"
    ]


def test_collectives_move_across_a_functional_operator_that_nobody_knows() -> None:
    after, remarks = order_after_passes(around(operators.library.twice.default))
    assert remarks == []
    assert after == [
        "x",
        "y",
        "all_reduce_default",
        "all_reduce_default_1",
        "between",
        "wait_tensor_default",
        "wait_tensor_default_1",
        "add_tensor",
    ]


class Callers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


def test_methods_and_modules_are_barriers_and_come_back() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    twice = graph.call_method("add", (x, x))
    graph.output(graph.call_module("inner", (twice,)))
    module = GraphModule(Callers(), graph)
    values = {"x": torch.ones(2, 4), "add": torch.ones(2, 4), "inner": torch.ones(2, 4)}
    for node in graph.nodes:
        if node.name in values:
            node.meta["val"] = values[node.name]
    program = round_trip(module)
    assert lines(program) == [
        '%add: f32[2,4] = call_method("add", %x, %x)',
        '%inner: f32[2,4] = call_module("inner", %add)',
    ]
    assert [op.traits for op in program.ops] == [PURE, BARRIER, BARRIER]
    assert_runs_alike(weft.to_fx(program), module, [torch.ones(2, 4)])


def test_an_operator_without_an_overload_is_a_barrier_and_comes_back() -> None:
    module = by_hand(lambda graph, x: (graph.call_function(torch.ops.aten.sin, (x,)),), x=torch.ones(2))
    program = round_trip(module)
    assert [op.traits for op in program.ops] == [PURE, BARRIER]
    assert_runs_alike(weft.to_fx(program), module, [torch.ones(2)])


@pytest.mark.usefixtures("world")
def test_legacy_collectives_come_back_as_barriers_that_communicate() -> None:
    def build(graph: Graph, x: Any) -> Any:
        legacy = torch.ops.c10d_functional
        start = graph.call_function(legacy.all_reduce.default, (x, "sum", "", [0, 1, 2, 3], 4))
        waited = graph.call_function(legacy.wait_tensor.default, (start,))
        return (graph.call_function(torch.ops._dtensor.shard_dim_alltoall.default, (waited, 0, 1, "0")),)

    program = round_trip(by_hand(build, x=torch.ones(4, 4)))
    assert lines(program) == [
        '%all_reduce_default: f32[4,4] = c10d_functional.all_reduce.default(%x, "sum", "", [0, 1, 2, 3], 4) '
        "{communicates, barrier}",
        "%wait_tensor_default: f32[4,4] = c10d_functional.wait_tensor.default(%all_reduce_default) "
        "{communicates, barrier}",
        '%shard_dim_alltoall_default: f32[16,1] = _dtensor.shard_dim_alltoall.default(%wait_tensor_default, 0, 1, "0") '
        "{communicates, barrier}",
    ]
