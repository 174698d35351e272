"""Remedies on the toy machine, where all times are whole microseconds and can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import Machine, Program, parse, parse_pipeline, pipeline
from weft.passes import PASSES
from weft.passes.bucket_auto import BucketAuto
from weft.passes.holdups import Knobs
from weft.passes.schedule import SchedulePass
from weft.remedies import Made, as_it_is, explain, made_by, trying
from weft.sim import simulate
from weft.sim.explanation import Explanation
from weft.sim.units import amount, size_text, time_text

TOY = Machine.load(str(Path(__file__).parent / "golden" / "toy.toml"))

# 40 us of pointwise work in which 70,400 bytes live, 10 us of matmul, and a gather of 20 us and 20,000 bytes.
TIGHT = """weft 1
group dp = 0..1

%x: f32[5000] = input()
%y: f32[10,10] = input()
%w: f32[500,5] = input()
%a: f32[5000] = aten.neg.default(%x)
%b: f32[5000] = aten.neg.default(%a)
%c: f32[1] = aten.sum.default(%b)
%h: f32[10,10] = aten.mm.default(%y, %y)
%ag: f32[1000,5] = all_gather.start(%w) over dp
%f: f32[1000,5] = wait(%ag)
%k: f32[1] = aten.sum.default(%f)
return %c, %h, %k
"""
# %k wants %big after 50 us, and its all-reduce takes 45. One with %a in it takes 45.4, and cannot start before 10.
MERGED = """weft 1
group dp = 0..3

%x: f32[10,10] = input()
%big: f32[10000] = input()
%r0: f32[10000] = all_reduce.start(%big) sum over dp
%a: f32[10,10] = aten.mm.default(%x, %x)
%r1: f32[10,10] = all_reduce.start(%a) sum over dp
%b: f32[10,10] = aten.mm.default(%a, %x)
%c: f32[10,10] = aten.mm.default(%b, %x)
%d: f32[10,10] = aten.mm.default(%c, %x)
%e: f32[10,10] = aten.mm.default(%d, %x)
%w0: f32[10000] = wait(%r0)
%k: f32[1] = aten.sum.default(%w0)
%w1: f32[10,10] = wait(%r1)
return %e, %k, %w1
"""


def scheduled(text: str, options: str) -> Made:
    return made_by(parse(text), TOY, parse_pipeline(options, PASSES))


def found(one: Explanation) -> tuple[str, float, int]:
    """The change, what it saves, and the peak, of a remedy that must be there and hide the collective."""
    assert one.remedy is not None
    assert one.remedy.hides
    return one.remedy.change, round(one.remedy.saves_us, 6), one.remedy.peak_bytes


def bucketed(text: str) -> Program:
    return pipeline.run(parse(text), parse_pipeline("bucket{mode=coalesced}", PASSES)).program


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step counts as a large one, and is tried on its sketch."""
    monkeypatch.setattr(trying, "_SMALL", 0)


@pytest.mark.usefixtures("large")
def test_on_a_sketch_there_must_be_room_for_the_whole_gather() -> None:
    (one,) = explain(scheduled(TIGHT, "schedule{max_memory_increase_gb=0}"))
    assert [cause.kind for cause in one.exposure.causes] == ["memory limit"]
    # 20 % more are 84,480 bytes, and 90,400 are needed.
    assert found(one) == ("max_memory_increase_gb=3.52e-05", 10.0, 90_400)
    assert one.tried == 6


@pytest.mark.usefixtures("large")
def test_on_a_sketch_a_share_of_the_peak_is_raised_as_a_share() -> None:
    (one,) = explain(scheduled(TIGHT, "schedule{max_memory_increase_ratio=0.001}"))
    assert found(one)[0] == "max_memory_increase_ratio=0.501"  # 1.001 times 1.5


@pytest.mark.usefixtures("large")
def test_on_a_sketch_a_pin_is_removed() -> None:
    # Pinned, it waits for 20 us behind 50; free, it hides.
    (one,) = explain(scheduled(TIGHT, "schedule{pin=[ag], reorder_compute=false}"))
    assert found(one) == ("pin=[]", 20.0, 90_400)


def test_a_bucket_that_waits_for_its_last_member_is_halved() -> None:
    timeline = simulate(bucketed(MERGED), TOY)
    passes = (BucketAuto(mode="coalesced"), SchedulePass())
    made = Made(timeline, Knobs(SchedulePass(), timeline.peak_bytes), parse(MERGED), passes)
    (one,) = explain(made)
    assert one.exposure.us == pytest.approx(5.4)
    assert found(one)[:2] == ('bucket_auto{mode="coalesced", max_mb=0.0202}', 5.4)  # half of 40,400 bytes


# %s takes 10 us. There are 10 us of %h between what it needs and %k, but %s2 of the same group is to be hidden, too.
PARTLY = """weft 1
group dp = 0..1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%a: f32[2500] = aten.neg.default(%x)
%s: f32[2500] = all_reduce.start(%a) sum over dp
%w: f32[2500] = wait(%s)
%h: f32[10,10] = aten.mm.default(%y, %y)
%s2: f32[2500] = all_reduce.start(%w) sum over dp
%w2: f32[2500] = wait(%s2)
%k: f32[1] = aten.sum.default(%w2)
return %h, %k
"""


def test_what_leaves_less_is_a_remedy_where_nothing_hides() -> None:
    one, other = (each.remedy for each in explain(as_it_is(parse(PARTLY), TOY)))
    assert one is not None
    assert other is not None
    assert (one.change, one.left_us, one.hides) == ("schedule", 0.0, True)
    # Twice the bandwidth: 5 us of 10 are left.
    assert (other.change, other.left_us, other.hides) == ("twice the bandwidth of bus", 5.0, False)
    assert (other.passes, other.memory_limit, other.faster_links) == ("", None, ("bus",))


def test_passes_without_a_schedule_are_offered_one() -> None:
    (one,) = explain(scheduled(TIGHT, "sink_waits"))
    assert found(one)[:2] == ("schedule", 20.0)


@pytest.mark.parametrize("entry", ["schedule{speed=11}", "by hand", "sink_waits"])
def test_a_history_that_names_no_schedule_says_nothing_of_limits(entry: str) -> None:
    program = parse(TIGHT.replace("weft 1\n", f'weft 1\nhistory "{entry}"\n'))
    assert as_it_is(program, TOY).knobs == Knobs(SchedulePass(), 70_400)


def test_a_history_with_a_limit_of_memory_takes_the_peak_for_the_limit() -> None:
    program = parse(TIGHT.replace("weft 1\n", 'weft 1\nhistory "schedule{max_memory_increase_ratio=0.1}"\n'))
    assert as_it_is(program, TOY).knobs.limits.memory == 70_400


def test_what_is_tried_is_told() -> None:
    told: list[str] = []
    explain(scheduled(TIGHT, "schedule{max_compute_pre_fetch=0, reorder_compute=false}"), watch=told.append)
    assert told == ["max_compute_pre_fetch=1", "max_compute_pre_fetch=none"]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0B"),
        (53_328.2, "53329B"),
        (1_000_000, "1MB"),
        (1_234_567, "1.235MB"),
        (999_960_000, "1000MB"),
        (70_658_081_028, "70.66GB"),
        (123_456_789_012, "123.5GB"),
    ],
)
def test_an_amount_is_at_least_what_it_stands_for(nbytes: float, text: str) -> None:
    assert amount(nbytes) == text


def test_units() -> None:
    assert [time_text(us) for us in (0, 9_999.9, 10_000)] == ["0.0 us", "9,999.9 us", "10.00 ms"]
    assert [size_text(size) for size in (999_999, 1_000_000, 2_500_000_000)] == ["999,999 bytes", "1.0 MB", "2.50 GB"]
