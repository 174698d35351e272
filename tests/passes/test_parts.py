"""Parts of a step, in which ways to cut it are tried."""

from __future__ import annotations

from tests.analysis.texts import program
from weft.passes.parts import part_of

LOGITS = program("""
    %x: f32[4,8] = input()
    %w: f32[8,6] = input()
    %n: f32[4,8] = aten.neg.default(%x)
    %y: f32[4,6] = aten.mm.default(%n, %w)
    %ag: f32[8,6] = all_gather.start(%y) over g
    %a: f32[8,6] = wait(%ag)
    %parts: (f32[4,6], f32[4,6]) = aten.split.Tensor(%a, 4)
    %p: f32[4,6] = getitem(%parts, 0)
    %q: f32[4,6] = getitem(%parts, 1)
    %whole: f32[4,12] = aten.cat.default([%p, %q], 1)
    %cast: f64[4,12] = aten._to_copy.default(%whole, dtype=f64)
    %s: f64[4,12] = aten._log_softmax.default(%cast, 1, False)
    %v: f64[48] = aten.view.default(%s, [48])
    return %v
""")


def test_a_part_ends_where_results_are_no_longer_only_moved_about() -> None:
    part = part_of(LOGITS, [["y", "ag", "a"]])
    names = "n w y ag a parts p q whole cast"
    assert [op.name for op in part.ops] == names.split()
    assert [op.name for op in part.ops if op.is_input] == ["n", "w"]
    assert [ref.name for ref in part.outputs] == ["cast"]  # type: ignore[union-attr]
