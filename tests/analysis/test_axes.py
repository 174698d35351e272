"""The rules of `analysis/axes.py` against torch: an op is cut wherever its rule says that it can be, into chunks that
are given what the rule says, and all chunks together are what the whole op makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest
import torch

from tests.analysis.texts import program
from weft.analysis.axes import RULES, Axis, Rows
from weft.analysis.kernels import ELEMENTWISE
from weft.fx.values import TO_TORCH
from weft.ir import Program, TensorSpec
from weft.passes.chunking import cut
from weft.passes.region import Region
from weft.run import virtual

# Ops on inputs, and the dimensions of the last result that can be cut.
CASES: dict[str, tuple[str, set[int]]] = {
    "elementwise": ("%y: f32[4,6] = aten.neg.default(%a: f32[4,6])", {0, 1}),
    "two arguments": ("%y: f32[4,6] = aten.add.Tensor(%a: f32[4,6], %b: f32[4,6])", {0, 1}),
    "the same twice": ("%y: f32[4,6] = aten.mul.Tensor(%a: f32[4,6], %a)", {0, 1}),
    "spread over columns": ("%y: f32[4,6] = aten.mul.Tensor(%a: f32[4,6], %b: f32[4,1])", {0, 1}),
    "spread over rows": ("%y: f32[4,6] = aten.add.Tensor(%b: f32[6], %a: f32[4,6])", {0, 1}),
    "a number": ("%y: f32[4,6] = aten.mul.Tensor(%a: f32[4,6], %b: f32[])", {0, 1}),
    "three arguments": ("%y: f32[4,6] = aten.where.self(%c: bool[4,1], %a: f32[6], %b: f32[4,6])", {0, 1}),
    "strided": ("%y: f32[4,6;1,4] = aten.neg.default(%a: f32[4,6;1,4])", {0, 1}),
    "cast": ("%y: f64[4,6] = prims.convert_element_type.default(%a: f32[4,6], f64)", {0, 1}),
    "view that folds": ("%y: f32[8,6] = aten.view.default(%a: f32[2,4,6], [8, 6])", {0, 1}),
    "view that unfolds": ("%y: f32[2,4,6] = aten.view.default(%a: f32[8,6], [2, 4, 6])", {0, 1, 2}),
    "view across rows": ("%y: f32[6,4] = aten.view.default(%a: f32[4,6], [6, 4])", {0, 1}),
    "reshape": ("%y: f32[24] = aten.reshape.default(%a: f32[4,6], [24])", {0}),
    "unsafe view": ("%y: f32[2,12] = aten._unsafe_view.default(%a: f32[4,6], [2, 12])", {0, 1}),
    "flatten": ("%y: f32[8,6] = aten.flatten.using_ints(%a: f32[2,4,6], 0, 1)", {0, 1}),
    "unsqueeze": ("%y: f32[4,1,6] = aten.unsqueeze.default(%a: f32[4,6], 1)", {0, 2}),
    "squeeze": ("%y: f32[4,6] = aten.squeeze.dim(%a: f32[4,1,6], 1)", {0, 1}),
    "squeeze of what stays": ("%y: f32[4,6] = aten.squeeze.dim(%a: f32[4,6], 0)", set()),
    "squeezes": ("%y: f32[4,6] = aten.squeeze.dims(%a: f32[1,4,1,6], [0, 2])", {0, 1}),
    "squeezes of what stays": ("%y: f32[4,6] = aten.squeeze.dims(%a: f32[1,4,6], [0, 1])", set()),
    "expand": ("%y: f32[3,4,6;0,6,1] = aten.expand.default(%a: f32[4,6], [3, 4, 6])", {1, 2}),
    "t": ("%y: f32[6,4;1,6] = aten.t.default(%a: f32[4,6])", {0, 1}),
    "transpose": ("%y: f32[6,4,2;1,6,24] = aten.transpose.int(%a: f32[2,4,6], 0, -1)", {0, 1, 2}),
    "permute": ("%y: f32[6,2,4;1,24,6] = aten.permute.default(%a: f32[2,4,6], [-1, 0, 1])", {0, 1, 2}),
    "detach": ("%y: f32[4,6] = aten.detach.default(%a: f32[4,6])", {0, 1}),
    "alias": ("%y: f32[4,6] = aten.alias.default(%a: f32[4,6])", {0, 1}),
    "slice of columns": ("%y: f32[4,3;6,1] = aten.slice.Tensor(%a: f32[4,6], 1, 2, 5)", {0}),
    "slice from the middle": ("%y: f32[4,6] = aten.slice.Tensor(%a: f32[8,6], 0, 2, 6)", {1}),
    "every second": ("%y: f32[4,6;12,1] = aten.slice.Tensor(%a: f32[8,6], 0, 0, 8, 2)", set()),
    "cat of columns": ("%y: f32[4,9] = aten.cat.default([%a: f32[4,6], %b: f32[4,3]], 1)", {0, 1}),
    "cat of rows": ("%y: f32[6,4] = aten.cat.default([%a: f32[4,4], %b: f32[2,4]])", {0, 1}),
    "mm": ("%y: f32[4,6] = aten.mm.default(%a: f32[4,5], %b: f32[5,6])", {0, 1}),
    "mm with itself": ("%y: f32[4,4] = aten.mm.default(%a: f32[4,4], %a)", set()),
    "bmm": ("%y: f32[2,4,6] = aten.bmm.default(%a: f32[2,4,5], %b: f32[2,5,6])", {0, 1, 2}),
    "addmm": ("%y: f32[4,6] = aten.addmm.default(%c: f32[4,6], %a: f32[4,5], %b: f32[5,6])", {0, 1}),
    "addmm of a row": ("%y: f32[4,6] = aten.addmm.default(%c: f32[6], %a: f32[4,5], %b: f32[5,6])", {0, 1}),
    "addmm of a column": ("%y: f32[4,6] = aten.addmm.default(%c: f32[4,1], %a: f32[4,5], %b: f32[5,6])", {0, 1}),
    "addmm to itself": ("%y: f32[4,4] = aten.addmm.default(%a: f32[4,4], %a, %b: f32[4,4])", set()),
    "baddbmm": (
        "%y: f32[2,4,6] = aten.baddbmm.default(%c: f32[2,4,6], %a: f32[2,4,5], %b: f32[2,5,6])",
        {0, 1, 2},
    ),
    "linear": ("%y: f32[2,4,6] = aten.linear.default(%a: f32[2,4,5], %b: f32[6,5])", {0, 1, 2}),
    "linear with bias": ("%y: f32[4,6] = aten.linear.default(%a: f32[4,5], %b: f32[6,5], %c: f32[6])", {0, 1}),
    "linear with itself": ("%y: f32[4,4] = aten.linear.default(%a: f32[4,5], %a)", set()),
    "layer norm": (
        "%n: (f32[4,6], f32[4,1], f32[4,1]) = "
        "aten.native_layer_norm.default(%a: f32[4,6], [6], %b: f32[6], %c: f32[6], 0.001)\n"
        "%y: f32[4,6] = getitem(%n, 0)",
        {0},
    ),
    "deviations of a layer norm": (
        "%n: (f32[4,6], f32[4,1], f32[4,1]) = "
        "aten.native_layer_norm.default(%a: f32[4,6], [6], %b: f32[6], %c: f32[6], 0.001)\n"
        "%y: f32[4,1] = getitem(%n, 2)",
        {0},
    ),
    "rms norm": (
        "%n: (f32[4,6], f32[4,1]) = aten._fused_rms_norm.default(%a: f32[4,6], [6], %b: f32[6], 0.001)\n"
        "%y: f32[4,6] = getitem(%n, 0)",
        {0},
    ),
    "softmax": ("%y: f32[4,6] = aten._softmax.default(%a: f32[4,6], -1, False)", {0}),
    "softmax of columns": ("%y: f32[4,6] = aten._softmax.default(%a: f32[4,6], 0, False)", {1}),
    "log softmax": ("%y: f32[4,6] = aten._log_softmax.default(%a: f32[4,6], 1, False)", {0}),
    "mean": ("%y: f32[4,1] = aten.mean.dim(%a: f32[4,6], [-1], True)", {0}),
    "sum": ("%y: f32[4,2] = aten.sum.dim_IntList(%a: f32[4,6,2], [1])", {0, 1}),
    "sum of several": ("%y: f32[6] = aten.sum.dim_IntList(%a: f32[4,6,2], [0, -1])", {0}),
    "sum of all": ("%y: f32[1,1] = aten.sum.dim_IntList(%a: f32[4,6], [], True)", set()),
    "amax": ("%y: f32[6] = aten.amax.default(%a: f32[4,6], [0])", {0}),
    "amin": ("%y: f32[4] = aten.amin.default(%a: f32[4,6], [1])", {0}),
    "var": ("%y: f32[4] = aten.var.correction(%a: f32[4,6], [1], correction=1)", {0}),
    "split of columns": (
        "%s: (f32[4,4;6,1], f32[4,2;6,1]) = aten.split.Tensor(%a: f32[4,6], 4, 1)\n%y: f32[4,4;6,1] = getitem(%s, 0)",
        {0},
    ),
    "split of rows": (
        "%s: (f32[4,6], f32[4,6]) = aten.split.Tensor(%a: f32[8,6], 4)\n%y: f32[4,6] = getitem(%s, 1)",
        {0, 1},
    ),
    "split of rows that is uneven": (
        "%s: (f32[6,4], f32[2,4]) = aten.split.Tensor(%a: f32[8,4], 6)\n%y: f32[6,4] = getitem(%s, 0)",
        {1},
    ),
    "chunk": (
        "%s: (f32[4,6], f32[4,6]) = aten.chunk.default(%a: f32[8,6], 2)\n%y: f32[4,6] = getitem(%s, 1)",
        {0, 1},
    ),
    "all-gather": ("%s: f32[8,6] = all_gather.start(%a: f32[4,6]) over g\n%y: f32[8,6] = wait(%s)", {0, 1}),
    "reduce-scatter": ("%s: f32[4,6] = reduce_scatter.start(%a: f32[8,6]) sum over g\n%y: f32[4,6] = wait(%s)", {0, 1}),
    "all-reduce": ("%s: f32[4,6] = all_reduce.start(%a: f32[4,6]) avg over g\n%y: f32[4,6] = wait(%s)", {0, 1}),
    "all-to-all": (
        "%s: f32[8,6] = all_to_all.start(%a: f32[8,6], [4, 4], [4, 4]) over g\n%y: f32[8,6] = wait(%s)",
        {0, 1},
    ),
    "uneven all-to-all": (
        "%s: f32[8,6] = all_to_all.start(%a: f32[8,6], [6, 2], [6, 2]) over four\n%y: f32[8,6] = wait(%s)",
        set(),
    ),
    "scaled by one number": (
        "%y: f32[32,16] = aten._scaled_mm.default("
        "%a: f8e4m3fn[32,32], %b: f8e4m3fn[32,16;1,32], %c: f32[], %d: f32[], None, None, f32)",
        {0, 1},
    ),
    "scaled by rows": (
        "%y: bf16[32,16] = aten._scaled_mm.default("
        "%a: f8e4m3fn[32,32], %b: f8e4m3fn[32,16;1,32], %c: f32[32,1], %d: f32[1,16], None, None, bf16)",
        {0, 1},
    ),
}


def subject(name: str) -> Program:
    """The program of a case: what stands in an op with its type is an input."""
    text = CASES[name][0]
    typed = re.compile(r"(?<!^)(%\w+): (\w+\[[\d,;]*\])", re.MULTILINE)
    inputs = [f"{value}: {spec} = input()" for value, spec in typed.findall(text)]
    return program("\n".join([*inputs, typed.sub(r"\1", text), "return %y"]))


def axes(spec: TensorSpec) -> Iterator[tuple[int, Axis]]:
    """Everywhere that rows, at least two, could be: how many there are, and where."""
    for dim, whole in enumerate(spec.shape):
        assert isinstance(whole, int)
        for outer, size in product(range(1, whole + 1), range(2, whole + 1)):
            if whole % (outer * size) == 0:
                yield size, Axis(dim, outer, whole // (outer * size))


def regions(whole: Program, size: int, axis: Axis) -> Iterator[Region]:
    """All ops but the inputs, with the rows there in the last result, in two chunks and in chunks of a row."""
    found, rows = {"y": axis}, Rows(whole, size)
    for op in reversed(whole.ops):
        if op.is_input:
            continue
        given = rows.given(op, found[op.name])
        if given is None:
            return
        found.update({name: one for name, one in given.items() if not whole[name].is_input})
    in_order = {op.name: found[op.name] for op in whole.ops if op.name in found}
    for chunks in {2, size} if size % 2 == 0 else {size}:
        yield Region(whole, size, in_order, chunks)


def numbers(whole: Program) -> list[list[torch.Tensor]]:
    """Small whole numbers for two ranks: sums of them are not rounded."""
    made = torch.Generator().manual_seed(0)

    def one(spec: TensorSpec) -> torch.Tensor:
        value = torch.randint(-2, 3, spec.shape, generator=made).to(TO_TORCH[spec.dtype])  # type: ignore[arg-type]
        strides = spec.strides
        return value if strides is None else torch.empty_strided(spec.shape, strides, dtype=value.dtype).copy_(value)  # type: ignore[arg-type]

    ranks = 4 if "four" in {group.name for group in whole.groups} else 2
    return [[one(op.out[0]) for op in whole.inputs] for _ in range(ranks)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_chunks_together_are_the_whole(name: str) -> None:
    whole = subject(name)
    made = whole["y"].out[0]
    assert isinstance(made, TensorSpec)
    given, dims = numbers(whole), set[int]()
    expected = virtual(whole, given) if CASES[name][1] else []
    for size, axis in axes(made):
        for region in regions(whole, size, axis):
            found = virtual(cut(whole, [region], ""), given)
            for (one,), (other,) in zip(expected, found, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)
                assert whole["y"].traits.is_view or other.stride() == one.stride()
            dims.add(axis.dim)
    assert dims == CASES[name][1]


def test_every_rule_has_a_case() -> None:
    shown = {op.target for name in CASES for op in subject(name).ops if not op.is_input}
    assert RULES.keys() <= shown
    assert shown <= RULES.keys() | ELEMENTWISE


def test_sizes_that_are_not_known_and_random_numbers_are_not_cut() -> None:
    whole = program(
        """
        %x: f32[s0,6] = input()
        %y: f32[s0,6] = aten.neg.default(%x)
        %z: f32[4,6] = input()
        %r: f32[4,6] = aten.rand_like.default(%z)
        %u: f32[4,6] = vendor.mystery.default(%z)
        """,
        "symbol s0 = 4\n",
    )
    rows = Rows(whole, 4)
    assert [rows.given(whole[name], Axis(0)) for name in "yru"] == [None, None, None]
    assert rows.given(whole["y"], Axis(1)) is None  # 6 is not 4 rows


def test_what_follows_from_a_part_of_an_argument() -> None:
    whole = program("""
        %x: f32[4,6] = input()
        %w: f32[6,5] = input()
        %s: f32[8,6] = all_gather.start(%x) over g
        %a: f32[8,6] = wait(%s)
        %c: f32[7,6] = aten.slice.Tensor(%a, 0, 0, 7)
        %y: f32[7,5] = aten.mm.default(%c, %w)
        %t: f32[5,7;1,5] = aten.t.default(%y)
        %n: f32[5] = aten.sum.dim_IntList(%y, [0])
    """)
    rows = Rows(whole, 4)

    def result(name: str, of: str, axis: Axis) -> Axis | None:
        return rows.result(whole[name], of, axis)

    assert result("s", "x", Axis(0)) == Axis(0, outer=2)
    assert result("a", "s", Axis(0, 2)) == Axis(0, 2)
    assert result("c", "a", Axis(0, 2)) == Axis(0, 2, dropped=1)
    assert result("y", "c", Axis(0, 2, dropped=1)) == Axis(0, 2, dropped=1)
    assert result("t", "y", Axis(0, 2, dropped=1)) == Axis(1, 2, dropped=1)
    assert result("n", "y", Axis(0, 2, dropped=1)) is None
    assert result("y", "w", Axis(0)) is None
