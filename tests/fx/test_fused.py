"""Matmuls with a collective inside them, from torch's fused operators and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.errors import GraphError
from weft.fx.exporter import lower, relink
from weft.fx.world import world
from weft.ir import Program
from weft.passes.fusing import Match, apply_fused, find_fused

SYMM_MEM = torch.ops.symm_mem
GROUP = "0"


def traced(function: Callable[..., Any], *shapes: tuple[int, ...], device: str = "meta") -> GraphModule:
    with FakeTensorMode():
        return make_fx(function)(*[torch.empty(shape, device=device) for shape in shapes])


def gathered(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    whole, (one, other) = SYMM_MEM.fused_all_gather_matmul(x, [w, v], 1, GROUP)
    return whole, one.relu(), other


def unreturned(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    _, (one, other) = SYMM_MEM.fused_all_gather_matmul(x, [w, v], 0, GROUP, return_A=False)
    return one, other


def scattered(x: Tensor, w: Tensor) -> Tensor:
    made: Tensor = SYMM_MEM.fused_matmul_reduce_scatter(x, w, "avg", 1, GROUP)
    return made.relu()


def body(program: Program) -> str:
    return "\n".join(line.split("  #")[0] for line in str(program).split("\n\n")[1].splitlines() if "input" not in line)


CASES = [
    (
        gathered,
        ((2, 3, 4), (4, 5), (4, 6)),
        "%fused_all_gather_matmul: (f32[2,6,4;4,8,1], f32[2,6,5;5,10,1], f32[2,6,6;6,12,1]) = "
        '%s(%x_1, [%w_1, %v_1], 1) over "0"',
        "all_gather_matmul.fused",
    ),
    (
        unreturned,
        ((3, 4), (4, 5), (4, 6)),
        '%fused_all_gather_matmul: (none, f32[6,5], f32[6,6]) = %s(%x_1, [%w_1, %v_1], 0, return_A=False) over "0"',
        "all_gather_matmul.fused",
    ),
    (
        scattered,
        ((2, 6, 4), (4, 5)),
        '%fused_matmul_reduce_scatter: f32[2,3,5] = %s(%x_1, %w_1, 1) avg over "0"',
        "matmul_reduce_scatter.fused",
    ),
]


@pytest.mark.parametrize(("function", "shapes", "line", "target"), CASES, ids=["gather", "products only", "scatter"])
def test_there_and_back(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], line: str, target: str
) -> None:
    with world(2):
        graph = traced(function, *shapes)
        program = weft.from_fx(graph)
        assert line.replace("%s", target).replace("@meta", "") in body(program).replace("@meta", "")
        weft.verify(program)
        back = weft.to_fx(program)
        again = weft.from_fx(back)
        assert str(again) == str(program)
        # Parsed, nothing is left of the graph, and all nodes are made anew.
        parsed, _ = lower(weft.parse(str(program)))
        assert body(weft.from_fx(parsed)).replace("@meta", "") == body(program).replace("@meta", "")
        assert str(weft.from_fx(relink(program))) == str(program)


def test_a_list_of_products_that_is_used_as_such_is_left_alone() -> None:
    def stacked(x: Tensor, w: Tensor) -> Any:
        return SYMM_MEM.fused_all_gather_matmul(x, [w], 0, GROUP)[1]

    with world(2):
        graph = traced(stacked, (3, 4), (4, 5))
        whole = next(node for node in graph.graph.nodes if "fused" in str(node.target))
        graph.graph.output_node().args = (next(user for user in whole.users if user.args[1] == 1),)
        program = weft.from_fx(graph)
    (op,) = [op for op in program.ops if op.traits.communicates]
    assert (op.target, op.inside, op.traits.barrier) == ("symm_mem.fused_all_gather_matmul.default", None, True)


PLAIN = weft.parse("""weft 1
group "0" = 0..1

%x: f32[2,3,4] = input()
%w: f32[4,5] = input()
%ag: f32[4,3,4] = all_gather.start(%x) over "0"
%a: f32[4,3,4] = wait(%ag)
%parts: (f32[2,3,4], f32[2,3,4]) = aten.split.Tensor(%a, 2)
%p: f32[2,3,4] = getitem(%parts, 0)
%q: f32[2,3,4] = getitem(%parts, 1)
%whole: f32[2,6,4] = aten.cat.default([%p, %q], 1)
%rows: f32[12,4] = aten.view.default(%whole, [12, 4])
%y: f32[12,5] = aten.mm.default(%rows, %w)
return %y, %rows
""")


def fused() -> Program:
    match = find_fused(PLAIN, "ag")
    assert isinstance(match, Match)
    return apply_fused(PLAIN, [match], "fused")


def test_torch_makes_what_the_op_says() -> None:
    with world(2):
        _, nodes = lower(fused())
    whole, (product,) = nodes["fused"].meta["val"]
    assert (tuple(whole.shape), whole.stride()) == ((2, 6, 4), (4, 8, 1))
    assert (tuple(product.shape), product.stride()) == ((2, 6, 5), (5, 10, 1))


@pytest.mark.parametrize(
    "said",
    ["f32[2,6,5]", "f32[2,7,5;5,10,1]", "f64[2,6,5;5,10,1]"],
    ids=["strides", "shape", "dtype"],
)
def test_what_torch_makes_otherwise_is_an_error(said: str) -> None:
    wrong = weft.parse(str(fused()).replace("f32[2,6,5;5,10,1]) =", f"{said}) ="))
    with world(2), pytest.raises(GraphError, match="and torch makes f32\\[2,6,5;5,10,1\\]"):
        lower(wrong)


def test_a_processor_has_no_symmetric_memory() -> None:
    with pytest.raises(GraphError) as caught:
        weft.to_fx(fused())
    assert str(caught.value) == (
        "%fused (all_gather_matmul.fused) needs symmetric memory, and its tensors are on the device cpu, which has "
        "none; split it into chunks with collectives of their own, which run everywhere"
    )


def test_gloo_has_no_symmetric_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with world(2):
        program = weft.from_fx(traced(scattered, (2, 6, 4), (4, 5)))
        monkeypatch.setattr("torch.distributed.get_backend", lambda group: "gloo")
        with pytest.raises(GraphError, match="the backend of its group '0' is gloo, which has none; split it"):
            weft.to_fx(program)
