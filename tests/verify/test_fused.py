"""Collectives that go on inside matmuls: what the rules accept, and what they complain of."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from tests.analysis.texts import program
from weft.errors import VerifyError
from weft.ir import Program
from weft.verify import verify_ranks, violations

GATHER = program("""
    %x: f32[3,4] = input()
    %other: f32[3,4] = input()
    %w: f32[4,5] = input()
    %ag: f32[6,4] = all_gather.start(%x) over g
    %a: f32[6,4] = wait(%ag)
    %y: f32[6,5] = aten.mm.default(%a, %w)
    return %y
""")
FUSED = """
    %x: f32[3,4] = input()
    %other: f32[3,4] = input()
    %w: f32[4,5] = input()
    %f: (f32[6,4], f32[6,5]) = all_gather_matmul.fused(%x, [%w], 0) over g from %ag, %y
    %p: f32[6,5] = getitem(%f, 1) from %y
    return %p
"""
SCATTER = program("""
    %x: f32[6,4] = input()
    %other: f32[6,4] = input()
    %w: f32[4,5] = input()
    %y: f32[6,5] = aten.mm.default(%x, %w)
    %rs: f32[3,5] = reduce_scatter.start(%y) sum over g
    %s: f32[3,5] = wait(%rs)
    return %s
""")
SCATTERED = """
    %x: f32[6,4] = input()
    %other: f32[6,4] = input()
    %w: f32[4,5] = input()
    %f: f32[3,5] = matmul_reduce_scatter.fused(%x, %w, 0) sum over g from %rs, %s
    return %f
"""


def complaints(before: Program, after: str) -> list[str]:
    return [f"{found.rule}: {found.message}" for found in violations(before, program(after))]


@pytest.mark.parametrize(("before", "after"), [(GATHER, FUSED), (SCATTER, SCATTERED)], ids=["gather", "scatter"])
def test_a_collective_may_go_on_inside_a_matmul(before: Program, after: str) -> None:
    assert complaints(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "old", "new", "said"),
    [
        (
            GATHER,
            FUSED,
            "over g",
            "over h",
            "collectives_accounted: %f: 96 bytes by all_gather over h; before, %ag: 96 bytes by all_gather over g",
        ),
        (
            GATHER,
            FUSED,
            "fused(%x",
            "fused(%other",
            "collectives_accounted: %other is sent by %f, and was not by %ag",
        ),
        (GATHER, FUSED, " from %ag, %y", "", "collectives_accounted: %f is a collective that was not there before"),
        (
            SCATTER,
            SCATTERED,
            "sum over",
            "avg over",
            "collectives_accounted: %f: 120 bytes by reduce_scatter (avg of f32) over g; before, %rs: 120 bytes by "
            "reduce_scatter (sum of f32) over g",
        ),
        (
            SCATTER,
            SCATTERED,
            "fused(%x",
            "fused(%other",
            "collectives_accounted: %other is sent by %f, and was not by %rs",
        ),
    ],
    ids=["group", "value", "sources", "reduction", "factor"],
)
def test_it_must_be_the_same_collective(before: Program, after: str, old: str, new: str, said: str) -> None:
    assert complaints(before, after.replace(old, new, 1))[0] == said


def test_it_must_be_as_many_bytes() -> None:
    found = complaints(
        GATHER,
        """
        %x: f32[3,4] = input()
        %other: f32[3,4] = input()
        %w: f32[4,5] = input()
        %half: f32[1,4;4,1] = aten.slice.Tensor(%x, 0, 0, 1)
        %f: (f32[2,4], f32[2,5]) = all_gather_matmul.fused(%half, [%w], 0) over g from %ag, %y
        %p: f32[2,5] = getitem(%f, 1) from %y
        return %p
        """,
    )
    said = "%f: 32 bytes by all_gather over g; before, %ag: 96 bytes by all_gather over g"
    assert f"collectives_accounted: {said}" in found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("f32[6,5])", "f32[6,7])", "%f (all_gather_matmul.fused) should be f32[6,5], and says f32[6,7]"),
        (
            "(f32[6,4], f32[6,5])",
            "(f32[6,4], f32[6,5], f32[1])",
            "%f (all_gather_matmul.fused): makes 2 results, and says 3",
        ),
        (
            "[%w]",
            "[%x]",
            "%f (all_gather_matmul.fused): multiplies rows of 4 by matrices with 3 rows",
        ),
        ("0) over", "7) over", "%f (all_gather_matmul.fused): needs a matrix and a dimension of it"),
    ],
)
def test_shapes(old: str, new: str, said: str) -> None:
    found = [one.message for one in violations(program(FUSED.replace(old, new))) if one.rule == "shapes"]
    assert found[0] == said


def test_a_product_that_cannot_be_scattered() -> None:
    text = SCATTERED.replace("f32[6,4]", "f32[5,4]")
    assert [found.message for found in violations(program(text))] == [
        "%f (matmul_reduce_scatter.fused): cannot scatter 5 among 2 ranks"
    ]


def test_it_must_say_over_which_group() -> None:
    fused = program(FUSED)
    silent = replace(fused, ops=tuple(replace(op, inside=None) for op in fused.ops))
    assert [found.message for found in violations(silent) if found.rule == "collectives_complete"] == [
        "%f (all_gather_matmul.fused) does not say over which group it communicates"
    ]
    loud = replace(GATHER, ops=(*GATHER.ops, replace(GATHER["y"], name="z", inside=GATHER["ag"].comm)))
    assert [found.message for found in violations(loud)] == [
        "%z (aten.mm.default) is said to communicate inside, and is no matmul that does"
    ]


def test_a_factor_must_be_seen_as_it_was() -> None:
    before = program("""
        %x: f32[3,4] = input()
        %w: f32[4,5] = input()
        %ag: f32[6,4] = all_gather.start(%x) over g
        %a: f32[6,4] = wait(%ag)
        %y: f32[6,5] = aten.mm.default(%a, %w)
        %d: f32[4,5] = aten.mul_.Scalar(%w, 2)
        return %y, %d
    """)
    after = program("""
        %x: f32[3,4] = input()
        %w: f32[4,5] = input()
        %d: f32[4,5] = aten.mul_.Scalar(%w, 2)
        %f: (f32[6,4], f32[6,5]) = all_gather_matmul.fused(%x, [%w], 0) over g from %ag, %y
        %p: f32[6,5] = getitem(%f, 1) from %y
        return %p, %d
    """)
    assert [found.message for found in violations(before, after)] == [
        "%f sees %w as %d left it; in the original, as it was made"
    ]


def test_ranks_must_agree() -> None:
    fused = program(FUSED)
    verify_ranks({0: fused, 1: fused})
    with pytest.raises(
        VerifyError, match=r"rank 0 issues all_gather %f of 96 bytes \(f32\) inside a matmul and rank 1"
    ):
        verify_ranks({0: fused, 1: GATHER})


def test_the_order_within_a_group() -> None:
    before = program("""
        %x: f32[3,4] = input()
        %w: f32[4,5] = input()
        %first: f32[3,4] = all_reduce.start(%x) sum over g
        %one: f32[3,4] = wait(%first)
        %ag: f32[6,4] = all_gather.start(%x) over g
        %a: f32[6,4] = wait(%ag)
        %y: f32[6,5] = aten.mm.default(%a, %w)
        return %one, %y
    """)
    after = program("""
        %x: f32[3,4] = input()
        %w: f32[4,5] = input()
        %f: (f32[6,4], f32[6,5]) = all_gather_matmul.fused(%x, [%w], 0) over g from %ag, %y
        %p: f32[6,5] = getitem(%f, 1) from %y
        %first: f32[3,4] = all_reduce.start(%x) sum over g
        %one: f32[3,4] = wait(%first)
        return %one, %p
    """)
    assert [str(found.message) for found in violations(before, after)] == [
        "%f was issued after %first in group g, and now comes before it"
    ]
    weft.verify(before, after, reorders=True)
