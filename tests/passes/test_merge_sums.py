"""What `merge_sums` computes: the same sums in another order."""

from __future__ import annotations

import pytest
import torch

from weft import Plan, pipeline
from weft.errors import PlanError
from weft.ir import parse
from weft.passes.merge_sums import MergeSums
from weft.run import virtual

TEXT = """weft 1
group dp = 0..3

%a: f32[8,3] = input()
%b: f32[8,3] = input()
%r1: f32[2,3] = reduce_scatter.start(%a) avg over dp
%r2: f32[2,3] = reduce_scatter.start(%b) avg over dp
%r3: f32[8,3] = all_reduce.start(%a) sum over dp
%r4: f32[8,3] = all_reduce.start(%b) sum over dp
%w1: f32[2,3] = wait(%r1)
%w2: f32[2,3] = wait(%r2)
%w3: f32[8,3] = wait(%r3)
%w4: f32[8,3] = wait(%r4)
%g: f32[2,3] = aten.add.Tensor(%w2, %w1)
%h: f32[8,3] = aten.add.Tensor(%w3, %w4)
return %g, %h
"""


def results(whole: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of the program, and of the merged one; on whole numbers, whose sums are not rounded, or on others."""
    torch.manual_seed(0)
    given = [[torch.randn(8, 3) * 100 for _ in range(2)] for _ in range(4)]
    given = [[one.round() for one in rank] for rank in given] if whole else given
    subject = parse(TEXT)
    merged = pipeline.run(subject, [MergeSums()]).program
    assert [op.name for op in merged.starts] == ["bucket", "bucket_w1"]
    found = [[one for rank in virtual(program, given) for one in rank] for program in (subject, merged)]
    return found[0], found[1]


def test_sums_that_are_not_rounded_are_the_same() -> None:
    expected, found = results(whole=True)
    assert all(map(torch.equal, expected, found))


def test_other_sums_differ_by_rounding() -> None:
    expected, found = results(whole=False)
    # Eight numbers of about a hundred: a few units in the last place of their sum.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_plan_for_something_else_is_refused() -> None:
    subject = parse(TEXT)
    plan = pipeline.run(subject, [MergeSums()]).stages[0].plan
    changed = Plan.from_json(plan.to_json().replace('["r1","r2"]', '["r1","r3"]'))
    with pytest.raises(PlanError) as caught:
        MergeSums().apply(subject, changed)
    assert str(caught.value) == ("not two reductions that are added in this program: bucket r1 r3 after=r1 way=summed")
