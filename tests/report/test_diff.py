"""What changed from one program to another: one test for each kind of change, and that their gains add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.programs import programs
from tests.report.samples import TOY, optimized
from weft import pipeline
from weft.passes import PASSES, Pass
from weft.report.changes import Change, changes
from weft.report.diff import diff_text

H100 = weft.Machine.load("h100-ib400")

# An all-reduce of 10 us that could have been under way during the matmul, which takes 10 us too.
STEP = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over dp  # gradient of layers.0 model.py:12
%w: f32[2500] = wait(%s)
%r: f32[2500] = aten.neg.default(%w)
return %h, %r
"""


def found(before: str, after: str, simulated: bool = True) -> tuple[Change, ...]:
    both = weft.parse(before), weft.parse(after)
    first, second = (weft.simulate(one, TOY) for one in both)
    return changes(*both, (first, second) if simulated else None)


def shown(before: str, after: str, simulated: bool = True, most: int = 10) -> list[str]:
    both = weft.parse(before), weft.parse(after)
    first, second = (weft.simulate(one, TOY) for one in both)
    timelines = (first, second) if simulated else None
    paragraphs = diff_text(*both, changes(*both, timelines), timelines, most)
    return [line for title, lines in paragraphs for line in (title, *lines)]


def test_the_same_program_has_nothing_to_show() -> None:
    same = "step 40.0 us → 40.0 us (0.0 us), exposed 10.0 us → 10.0 us, 1 → 1 collective"
    assert shown(STEP, STEP) == [same]
    assert shown(STEP, STEP, simulated=False) == ["1 → 1 collective, 6 → 6 ops"]
    assert [(one.kind, one.before, one.after) for one in found(STEP, STEP)] == [
        ("kept", ("s",), ("s",)),
        ("kept", ("h", "r"), ("h", "r")),
    ]


START = "%s: f32[2500] = all_reduce.start(%x) sum over dp  # gradient of layers.0 model.py:12\n"
MATMUL = "%h: f32[10,10] = aten.mm.default(%y, %y)\n"


def test_moved() -> None:
    after = STEP.replace(MATMUL + START, START + MATMUL)
    assert shown(STEP, after) == [
        "step 40.0 us → 30.0 us (−10.0 us), exposed 10.0 us → 0.0 us, 1 → 1 collective",
        "moved: −10.0 us",
        "    −10.0 us  %s: all_reduce over dp, starts 1 op earlier, exposed 10.0 us → 0.0 us"
        "  # gradient of layers.0 model.py:12",
    ]
    assert shown(after, STEP, simulated=False) == [
        "1 → 1 collective, 6 → 6 ops",
        "moved",
        "%s: all_reduce over dp, starts 1 op later  # gradient of layers.0 model.py:12",
    ]


def test_only_the_wait_moved() -> None:
    wait = "%w: f32[2500] = wait(%s)\n"
    before = STEP.replace(MATMUL + START + wait, START + wait + MATMUL)
    assert shown(before, STEP.replace(MATMUL + START, START + MATMUL))[1:] == [
        "moved: −10.0 us",
        "    −10.0 us  %s: all_reduce over dp, is waited for 1 op later, exposed 10.0 us → 0.0 us"
        "  # gradient of layers.0 model.py:12",
    ]


def test_compute_that_moved_is_one_line() -> None:
    lines = [f"%n{number}: f32[10,10] = aten.neg.default(%y)" for number in range(5)]
    before = "\n".join(["weft 1", "", "%y: f32[10,10] = input()", *lines, "return %n0, %n1, %n2, %n3, %n4", ""])
    last_first = "\n".join(["weft 1", "", "%y: f32[10,10] = input()", lines[4], *lines[:4]])
    after = f"{last_first}\nreturn %n0, %n1, %n2, %n3, %n4\n"
    (moved,) = (one for one in found(before, after) if one.kind == "moved")
    assert (moved.what, moved.before, moved.after) == ("", ("n4",), ("n4",))
    assert shown(before, after, simulated=False) == ["0 → 0 collectives, 6 → 6 ops", "moved", "1 other op"]


def test_merged_with_the_copies_that_it_costs() -> None:
    made = optimized(2)
    timelines = made.before, made.after
    told = changes(made.before.program, made.program, timelines)
    merged = [one for one in told if one.kind == "merged"]
    assert [(one.before, one.after, one.what) for one in merged] == [
        (("g0", "h0", "g1", "h1"), ("bucket",), "all_gather over dp")
    ]
    new = [(one.what, len(one.after), one.collective) for one in told if one.kind == "new"]
    assert new == [("aten.cat.default", 1, False), ("aten.clone.default", 4, False)]


CHUNKS = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%s: f32[1250] = aten.slice.Tensor(%x, 0, 0, 1250)
%t: f32[1250] = aten.slice.Tensor(%x, 0, 1250, 2500)
%s1: f32[1250] = all_reduce.start(%s) sum over dp from %s0
%s2: f32[1250] = all_reduce.start(%t) sum over dp from %s0
%h: f32[10,10] = aten.mm.default(%y, %y)
%w1: f32[1250] = wait(%s1)
%w2: f32[1250] = wait(%s2)
%r: f32[2500] = aten.cat.default([%w1, %w2])
return %h, %r
"""
WHOLE = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s0: f32[2500] = all_reduce.start(%x) sum over dp
%r: f32[2500] = wait(%s0)
return %h, %r
"""


def test_split() -> None:
    assert shown(WHOLE, CHUNKS) == [
        "step 20.0 us → 30.0 us (+10.0 us), exposed 10.0 us → 0.0 us, 1 → 2 collectives",
        "split: −10.0 us",
        "    −10.0 us  %s0 → %s1, %s2: all_reduce over dp, exposed 10.0 us → 0.0 us",
        "new: +20.0 us",
        "    +20.0 us  1 × aten.cat.default, takes 0.0 us → 20.0 us",
    ]


def test_replaced() -> None:
    after = STEP.replace("all_reduce.start(%x) sum", "broadcast.start(%x, 0)")
    assert [(one.kind, one.what) for one in found(STEP, after) if one.collective] == [
        ("replaced", "all_reduce over dp → broadcast over dp")
    ]
    after = STEP.replace("aten.neg", "aten.relu")
    assert shown(STEP, after, simulated=False)[1:] == ["replaced", "1 × aten.neg.default → aten.relu.default"]


def test_gone_and_new() -> None:
    twice = STEP.replace("return", "%q: f32[2500] = all_reduce.start(%x) sum over dp\n%z: f32[2500] = wait(%q)\nreturn")
    assert shown(twice, STEP) == [
        "step 50.0 us → 40.0 us (−10.0 us), exposed 20.0 us → 10.0 us, 2 → 1 collective",
        "gone: −10.0 us",
        "    −10.0 us  %q: all_reduce over dp, exposed 10.0 us → 0.0 us",
    ]
    assert shown(STEP, twice)[1:] == [
        "new: +10.0 us",
        "    +10.0 us  %q: all_reduce over dp, exposed 0.0 us → 10.0 us",
    ]


def test_a_collective_that_stayed_may_be_exposed_for_longer() -> None:
    before = STEP.replace(MATMUL + START, START + MATMUL)
    assert shown(before, before.replace(MATMUL, "").replace("return %h", "return %y"))[1:] == [
        "gone: −10.0 us",
        "    −10.0 us  1 × aten.mm.default, takes 10.0 us → 0.0 us",
        "kept: +10.0 us",
        "    +10.0 us  %s: all_reduce over dp, exposed 0.0 us → 10.0 us  # gradient of layers.0 model.py:12",
    ]


def test_what_is_not_shown_is_counted() -> None:
    waits = "".join(
        f"%q{n}: f32[2500] = all_reduce.start(%x) sum over dp\n%z{n}: f32[2500] = wait(%q{n})\n" for n in range(4)
    )
    assert shown(STEP, STEP.replace("return", f"{waits}return"), most=1)[1:] == [
        "new: +40.0 us",
        "    +10.0 us  %q0: all_reduce over dp, exposed 0.0 us → 10.0 us",
        "and 3 more",
    ]


def test_names_cannot_steer_the_terminal() -> None:
    after = STEP.replace(MATMUL + START, START + MATMUL)
    first, second = (weft.parse(text.replace("%s", r'%"\u001b[31m"')) for text in (STEP, after))
    paragraphs = [*diff_text(first, second, changes(first, second), None, 10)]
    assert paragraphs[1][1] == ("%·[31m: all_reduce over dp, starts 1 op earlier  # gradient of layers.0 model.py:12",)


@given(programs(), st.lists(st.sampled_from(sorted(PASSES)).map(lambda name: PASSES[name]()), min_size=1, max_size=3))
def test_gains_add_up_to_what_the_step_became_shorter(before: weft.Program, passes: list[Pass]) -> None:
    after = pipeline.run(before, passes, cost=H100).program
    first, second = weft.simulate(before, H100), weft.simulate(after, H100)
    told = changes(before, after, (first, second))
    assert sum(one.gain_us for one in told) == pytest.approx(first.step_us - second.step_us, abs=1e-6)
    # Every op that works has one change.
    for program, sides in ((before, [one.before for one in told]), (after, [one.after for one in told])):
        works = [op.name for op in program.ops if not (op.is_wait or op.is_input or op.traits.is_view)]
        assert sorted(name for names in sides for name in names) == sorted(works)
