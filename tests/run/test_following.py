"""A rank that compiles alone launches what the others launch, whatever it would have decided itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.programs import programs
from tests.values import bits, inputs
from weft import Program, pipeline
from weft.errors import AgreementError
from weft.passes import PASSES, parse_pipeline
from weft.run import virtual
from weft.run.claims import apart, joined, launch_lines, launches
from weft.run.following import followed
from weft.run.settings import Settings

PIPELINES = (
    "bucket",
    "bucket{mode=coalesced}",
    "bucket{mode=coalesced_pack}",
    "bucket{max_count=2}",
    "dedupe",
    "dedupe,bucket",
    "dedupe{max_memory_increase_gb=none},bucket",
    "schedule",
    "hoist_starts",
)


@given(subject=programs(steps=(10, 30)), passes=st.sampled_from(PIPELINES))
def test_what_was_agreed_upon_is_launched_and_computes_the_same(subject: Program, passes: str) -> None:
    cost = weft.Machine.load("gloo-cpu")
    agreed = pipeline.run(subject, parse_pipeline(passes, PASSES), cost=cost).program
    if not subject.communicating:
        return
    found = followed(subject, launch_lines(subject, agreed), "forward", Settings(machine=cost, passes=passes))
    assert launch_lines(subject, found.program) == launch_lines(subject, agreed)
    assert bits(virtual(found.program, inputs(subject))) == bits(virtual(subject, inputs(subject)))


TEXT = """weft 1
group dp = 0..1
{symbol}
%a: f32[{n},4] = input()
%b: f32[2,4] = input()
%ga: f32[2*{n},4] = all_gather.start(%a) over dp
%wa: f32[2*{n},4] = wait(%ga)
%gb: f32[4,4] = all_gather.start(%b) over dp
%wb: f32[4,4] = wait(%gb)
return %wa, %wb
"""
STATIC, DYNAMIC = weft.parse(TEXT.format(symbol="", n=3)), weft.parse(TEXT.format(symbol="symbol s0 = 96\n", n="s0"))


def test_a_graph_has_the_same_key_and_lines_whatever_its_sizes() -> None:
    assert launches(STATIC, STATIC, "forward") == launches(DYNAMIC, DYNAMIC, "forward")
    assert launches(STATIC, STATIC, "forward").key != launches(STATIC, STATIC, "backward").key
    assert launch_lines(STATIC, STATIC) == (
        "all_gather.start f32 over group 0 of 2: 0",
        "all_gather.start f32 over group 0 of 2: 1",
    )


TWO_SUMS = """weft 1
group dp = 0..1

%a: f32[4] = input()
%b: f32[4] = input()
%sa: f32[4] = all_reduce.start(%a) sum over dp
%wa: f32[4] = wait(%sa)
%next: f32[4] = aten.mul.Tensor(%b, {factor})
%sb: f32[4] = all_reduce.start(%next) sum over dp
%wb: f32[4] = wait(%sb)
return %wa, %wb
"""


def test_graphs_that_launch_the_same_and_depend_otherwise_have_different_keys() -> None:
    beside, chained = (weft.parse(TWO_SUMS.format(factor=factor)) for factor in ("%a", "%wa"))
    assert launch_lines(beside, beside) == launch_lines(chained, chained)
    assert launches(beside, beside, "forward").key != launches(chained, chained, "forward").key


def test_claims_of_several_graphs_are_joined_and_taken_apart() -> None:
    region, graph = launches(STATIC, STATIC, "forward"), replace(launches(STATIC, STATIC, "forward x"), ranks=(1, 2))
    both = joined([region, graph])
    assert both.key.startswith("forward x ")
    assert both.key not in (graph.key, joined([graph, graph]).key)
    assert (apart(both.lines), both.ranks) == ([region.lines, graph.lines], (0, 1, 2))
    assert (joined([graph]), apart(graph.lines)) == (graph, [graph.lines])


def test_a_bucket_of_other_sizes_is_followed() -> None:
    agreed = ("all_gather.start f32 over group 0 of 2: 0, 1",)
    found = followed(DYNAMIC, agreed, "forward", Settings(machine="gloo-cpu"))
    assert launch_lines(DYNAMIC, found.program) == agreed


REPEATED = weft.parse(
    """weft 1
group pair = 0..1

%a: f32[4,4] = input()
%b: f32[4,4] = input()
%s0: f32[8,4] = all_gather.start(%a) over pair
%w0: f32[8,4] = wait(%s0)
%n0: f32[8,4] = aten.neg.default(%w0)
%s1: f32[8,4] = all_gather.start(%b) over pair
%w1: f32[8,4] = wait(%s1)
%s2: f32[8,4] = all_gather.start(%a) over pair
%w2: f32[8,4] = wait(%s2)
%n2: f32[8,4] = aten.exp.default(%w2)
return %n0, %w1, %n2
"""
)
GATHER = "all_gather.start f32 over group 0 of 2"


@pytest.mark.parametrize(
    "agreed",
    [
        (f"{GATHER}: 0", f"{GATHER}: 1", f"{GATHER}: 2"),
        (f"{GATHER}: 0, 2 in fewer bytes", f"{GATHER}: 1"),  # gathered once
        (f"{GATHER}: 0, 2", f"{GATHER}: 1"),  # twice, in one bucket
        (f"{GATHER}: 0, 2, 1 in fewer bytes",),  # once, in a bucket
        (f"{GATHER}: 0, 1, 2",),
        (f"{GATHER}: 0, 2, 1 as 2 in fewer bytes",),
        (f"{GATHER}: 0, 1, 2 as 3",),
    ],
)
@pytest.mark.parametrize("passes", ["dedupe,bucket", "bucket,gather_once"])
def test_what_is_gathered_once_is_what_the_others_gather_once(agreed: tuple[str, ...], passes: str) -> None:
    """Whether it is, is a question of memory, and so of sizes, which are not the same on all ranks."""
    found = followed(REPEATED, agreed, "forward", Settings(machine="gloo-cpu", passes=passes))
    assert launch_lines(REPEATED, found.program) == agreed
    assert bits(virtual(found.program, inputs(REPEATED))) == bits(virtual(REPEATED, inputs(REPEATED)))


def test_a_sum_that_is_reduced_is_not_taken_for_a_bucket() -> None:
    program = weft.parse(
        TWO_SUMS.format(factor="%a").replace(
            "return %wa, %wb", "%both: f32[4] = aten.add.Tensor(%wa, %wb)\nreturn %both"
        )
    )
    summed, merged = (
        pipeline.run(program, parse_pipeline(passes, PASSES), cost=weft.Machine.load("gloo-cpu")).program
        for passes in ("merge_sums", "bucket")
    )
    line = "all_reduce.start sum f32 over group 0 of 2: 0, 1"
    assert launch_lines(program, merged) == (line,)
    assert launch_lines(program, summed) == (f"{line} in fewer bytes",)
    with pytest.raises(AgreementError, match="in fewer bytes' there"):
        followed(program, launch_lines(program, summed), "forward", Settings(machine="gloo-cpu"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "all_gather.start f32 over group 0 of 2: 0, 7",
            "launch 0 is 'all_gather.start f32 over group 0 of 2: 0' here and 'all_gather.start f32 over group 0 of 2: "
            "0, 7' there",
        ),
        (
            "all_gather.start f32 over group 0 of 2: chunk, 1",
            "it is more than a bucket: all_gather.start f32 over group 0 of 2: chunk, 1",
        ),
    ],
)
def test_what_cannot_be_followed_is_an_error_that_says_so(line: str, why: str) -> None:
    with pytest.raises(AgreementError) as caught:
        followed(STATIC, (line,), "forward", Settings(machine="gloo-cpu"))
    assert str(caught.value) == f"here, a forward graph cannot launch what other ranks launch: {why}"
