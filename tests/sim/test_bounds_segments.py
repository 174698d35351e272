"""The bound along a chain, and how large buckets can be: by hand, and against the truth on small programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.chains import chains
from tests.sim.exact import optimum
from tests.sim.test_exact import Whole
from tests.sim.variants import merges
from weft import parse, pipeline, verify
from weft.cost import prices
from weft.ir import Collective, Op, Program, TensorSpec
from weft.passes.bucket import BucketPass
from weft.passes.micro_pipeline import MicroPipeline
from weft.sim import lower_bound, simulate
from weft.sim.between import Floating, longest_chain
from weft.sim.bounds import Bound
from weft.sim.chunks import chunks
from weft.sim.delays import unfilled
from weft.sim.mates import Mates, mates, rounded_up
from weft.sim.parts import Parts

# Against the truth


@settings(max_examples=200)
@given(chains())
def test_bound_optimum_and_original_of_chains_are_in_order(program: Program) -> None:
    best, _ = optimum(program, prices(program, Whole()))
    assert lower_bound(program, Whole()).us <= best + 1e-6
    assert best <= simulate(program, Whole()).step_us


@settings(max_examples=40)
@given(chains())
def test_no_chain_with_merged_collectives_beats_the_bound(program: Program) -> None:
    bound = lower_bound(program, Whole()).us
    made = pipeline.run(program, [BucketPass()], cost=Whole()).program
    for merged in (made, *merges(program)):
        assert bound <= optimum(merged, prices(merged, Whole()))[0] + 1e-6


class ByRows:
    """So long for so many rows, in whole microseconds: pieces together take no less than the whole."""

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        rows = math.prod(size for size in op.out[0].shape[:1] if isinstance(size, int))
        each = {"aten.mm.default": 3, "aten.cumsum.default": 2, "aten.relu.default": 1, "aten.add.Tensor": 1}
        return float(each.get(op.target, 0) * rows)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return float(1 + math.ceil(total_bytes / 8))


@settings(max_examples=60)
@given(chains(most=8), st.sampled_from([2, 4]))
def test_no_chain_that_is_cut_beats_the_bound(program: Program, count: int) -> None:
    passes = [MicroPipeline(lowering="portable", chunks=count, always=True)]
    cut = pipeline.run(program, passes, cost=ByRows()).program
    assert lower_bound(program, ByRows()).us <= optimum(cut, prices(cut, ByRows()))[0] + 1e-6


class Slow(Whole):
    """Compute takes half as long again while anything is in flight, and all collectives cross one link."""

    compute_slowdown = 1.5
    launch_us = 1.0

    def moved_us(self, nbytes: int) -> float:
        return nbytes / 32

    def said_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float | None:
        return self.op_us(op, inputs)

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        return {"wire": total_bytes / 32}


@settings(max_examples=100)
@given(chains())
def test_slowed_compute_does_not_beat_the_bound(program: Program) -> None:
    bound = lower_bound(program, Slow())
    assert prices(program, Slow()).slowdown == 1.5
    _, ordered = optimum(program, prices(program, Whole()))
    assert bound.us <= min(simulate(program, Slow()).step_us, simulate(ordered, Slow()).step_us) + 1e-6


# By hand


@dataclass(frozen=True)
class Said:
    """Sums take 10 us, all else that computes 1 us, an all-reduce 8 us and more for more bytes."""

    slowdown: float = 1.0

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        return 10.0 if op.target == "aten.cumsum.default" else 1.0

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 8.0 if total_bytes > 1 else 1.0


CHAIN = """weft 1
group tp = 0..1

%x: f32[8,4] = input()
%a: f32[8,4] = aten.cumsum.default(%x, 0)
%s: f32[8,4] = aten.relu.default(%a)
%r: f32[8,4] = all_reduce.start(%s) sum over tp
%f: f32[8,4] = wait(%r)
%t: f32[8,4] = aten.relu.default(%f)
%b: f32[8,4] = aten.cumsum.default(%t, 0)
BESIDE
return RESULTS
"""
BESIDE = "%c: f32[8,4] = aten.sort.default(%x)"


def of_chain(beside: str, results: str, chain: str = "ab") -> Bound:
    program = parse(CHAIN.replace("BESIDE", beside).replace("RESULTS", results))
    parts = Parts.of(program, Said(), prices(program, Said()))
    assert [program.ops[place].name for place in longest_chain(parts)] == [*chain]
    return lower_bound(program, Said())


LATE = """weft 1
group tp = 0..1

%x: f32[8,4] = input()
EARLY
%a: f32[8,4] = aten.cumsum.default(%x, 0)
%c: f32[8,4] = aten.cumsum.default(%x, 1)
%d: f32[8,4] = aten.sort.default(%a, %c)
%b: f32[8,4] = aten.cumsum.default(%d, 0)
%s: f32[8,4] = aten.relu.default(%b)
%r: f32[8,4] = all_reduce.start(%s) sum over tp
%f: f32[8,4] = wait(%r)
return %fRESULTS
"""
EARLY = "%g: f32[8,4] = all_to_all.start(%x, [4, 4], [4, 4]) over tp\n%e: f32[8,4] = wait(%g)"


class Slower(Slow):
    """Compute takes twice as long beside a collective; what the others take is as with Said."""

    compute_slowdown = 2.0
    launch_us = 0.0

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        return Said().op_us(op, inputs)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return Said().collective_us(collective, total_bytes)

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        return {}


def test_a_collective_waits_for_all_compute_that_what_it_sends_needs() -> None:
    # The two sums at the beginning need nothing of each other, but one is done after the other: 31 us until the last
    # one has ended, the op before the collective, which may be cut with it, and 8 us in which that is in flight: in two
    # pieces it would take 16.
    bound = lower_bound(parse(LATE.replace("EARLY\n", "").replace("RESULTS", "")), Said())
    assert bound.us == pytest.approx(31 + 0.99 + 8)


def test_what_must_fly_late_hides_nothing_of_what_comes_before() -> None:
    # 31 us of compute before it, 8 us for the collective that must come behind that, and of the 8 us of the one that
    # may fly before, half, as compute is done at half speed beside it.
    program = parse(LATE.replace("EARLY", EARLY).replace("RESULTS", ", %e"))
    bound = lower_bound(program, Slower())
    assert bound.all["contention"] == pytest.approx(43.0, rel=0.01)
    assert bound.us <= simulate(program, Slower()).step_us


def test_what_is_sent_between_two_sums_hides_behind_nothing_else() -> None:
    # Both sums, the op before the collective, and 8 us in which it is in flight; in pieces it would take longer. What
    # goes on with its result may be joined with that of others, and counts as nothing.
    found = of_chain("", "%b")
    assert found.all["compute"] == pytest.approx(28)
    assert found.all["segments"] == pytest.approx(20 + 0.99 + 8)


def test_work_beside_the_chain_fills_the_gap_once() -> None:
    # 20 us of sums, 0.99 us before the collective, 1 us beside the chain; 8 us of the flight are left, less that 1.
    assert of_chain(BESIDE, "%b, %c").all["segments"] == pytest.approx(20 + 0.99 + 1 + (8 - 1))


def test_work_that_must_come_later_does_not_fill_the_gap() -> None:
    later = "%c: f32[8,4] = aten.sort.default(%b)"
    assert of_chain(later, "%c", "abc").all["segments"] == pytest.approx(20 + 0.99 + 8 + 1)


GAPS = st.lists(st.integers(0, 4), min_size=1, max_size=5)
FLOATING = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)), max_size=5)


@given(GAPS, FLOATING)
def test_no_way_to_fill_gaps_leaves_less(gaps: list[int], spans: list[tuple[int, int, int]]) -> None:
    floating = [Floating(min(a, b), max(a, b), us) for a, b, us in spans]
    places = [number for number, gap in enumerate(gaps) for _ in range(gap)]
    units = [one for one in floating for _ in range(int(one.us))]
    taken: dict[int, int] = {}

    def put(unit: int, tried: set[int]) -> bool:
        """Find a place for a unit of work, moving others if need be."""
        for place, number in enumerate(places):
            if units[unit].first <= number <= units[unit].last and place not in tried:
                tried.add(place)
                if place not in taken or put(taken[place], tried):
                    taken[place] = unit
                    return True
        return False

    filled = sum(put(unit, set()) for unit in range(len(units)))
    assert unfilled([float(gap) for gap in gaps], floating) == len(places) - filled


# Buckets

SENT = """weft 1
group tp = 0..1

%x: f32[8,4] = input()
%r0: f32[8,4] = all_reduce.start(%x) sum over tp
%f0: f32[8,4] = wait(%r0)
%a: f32[8,4] = aten.relu.default(%f0)
%b: f32[8,4] = aten.cumsum.default(%a, 0)
%c: f32[8,4] = aten.relu.default(%b)
%r1: f32[8,4] = all_reduce.start(%c) sum over tp
%f1: f32[8,4] = wait(%r1)
%d: f32[8,4] = aten.relu.default(%f1)
%r2: f32[8,4] = all_reduce.start(%d) sum over tp
%f2: f32[8,4] = wait(%r2)
%s: f32[4,4] = reduce_scatter.start(%x) sum over tp
%g: f32[4,4] = wait(%s)
return %f2, %g
"""


def test_who_may_share_a_bucket() -> None:
    program = parse(SENT)
    found = mates(program, Parts.of(program, Said(), prices(program, Said())).before)
    named = {program.ops[place].name: dict(beside) for place, beside in found.others.items()}
    # Each all-reduce leads to the next. All may become reduce-scatters, and travel with the one that is there.
    assert named == {
        "r0": {"reduce_scatter": 128},
        "r1": {"reduce_scatter": 128},
        "r2": {"reduce_scatter": 128},
        "s": {"all_reduce": 384},
    }


def test_the_largest_bucket_by_kind() -> None:
    beside = Mates({0: {"all_reduce": 128, "reduce_scatter": 64, "all_to_all": 1000}})
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    assert [beside.most(0, kind, 10) for kind in kinds] == [138, 202, 138, 10]


@given(st.integers(0, 2**50))
def test_rounded_sizes_are_few_and_not_below(size: int) -> None:
    assert size <= rounded_up(size) <= size * 9 / 8
    assert rounded_up(rounded_up(size)) == rounded_up(size)


# What rewrites do


NORM = """weft 1
group tp = 0..1
group up = 0..1

%x: f32[400,8] = input()
%w: f32[8,16] = input()
%v: f32[16,8] = input()
%y: f32[400,16] = aten.mm.default(%x, %w)
%rs: f32[200,16] = reduce_scatter.start(%y) sum over tp
%f: f32[200,16] = wait(%rs)
%p: f32[200,16] = aten.pow.Tensor_Scalar(%f, 2)
%m: f32[200,1] = aten.mean.dim(%p, [1], True)
%n: f32[200,16] = aten.mul.Tensor(%f, %m)
%ag: f32[400,16] = all_gather.start(%n) over up
%g: f32[400,16] = wait(%ag)
%z: f32[400,8] = aten.mm.default(%g, %v)
%sums: f32[8] = aten.sum.dim_IntList(%z, [0])
return %sums
"""


class Light:
    """Little compute, and collectives of 100 us."""

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        size = op.out[0].shape[0]
        assert isinstance(size, int)
        return size / (16 if op.target == "aten.mm.default" else 100)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 0.5 + total_bytes / 256


def test_a_chunk_that_goes_through_a_norm_does_not_beat_the_bound() -> None:
    program = parse(NORM)
    cut = pipeline.run(program, [MicroPipeline(lowering="portable", chunks=8)], cost=Light()).program
    verify(program, cut)
    # One after the other the two collectives take 200 us: that is what it takes if they cannot be cut as one.
    assert lower_bound(program, Light()).us <= simulate(cut, Light()).step_us < 200


def test_a_chunk_goes_from_matmul_to_matmul() -> None:
    program = parse(NORM)
    found = [op.name for op, chunked in zip(program.ops, chunks(program), strict=True) if chunked]
    assert found == ["y", "rs", "f", "p", "m", "n", "ag", "g", "z"]


def test_a_barrier_waits_for_the_launch_only() -> None:
    program = parse("""weft 1
group tp = 0..1

%x: f32[4] = input()
%r: f32[4] = all_reduce.start(%x) sum over tp
%b: f32[4] = my.barrier(%x)
%f: f32[4] = wait(%r)
return %f, %b
""")
    assert program["b"].traits.barrier
    assert lower_bound(program, Said()).us <= simulate(program, Said()).step_us == 8


# Whoever overwrites what was sent has to wait for the collective; if the bucket has a copy, it does not.
OVERWRITTEN = """weft 1
group tp = 0..1

%x0: f32[8] = input()
%x1: f32[8] = input()
%a: f32[8] = aten.clone.default(%x0)
%r0: f32[16] = all_gather.start(%a) over tp
%f0: f32[16] = wait(%r0)
%w: f32[8] = aten.mul_.Scalar(%a, 2)
%r1: f32[16] = all_gather.start(%x1) over tp
%f1: f32[16] = wait(%r1)
return %f0, %f1, %w
"""
COPIED = """weft 1
group tp = 0..1

%x0: f32[8] = input()
%x1: f32[8] = input()
%a: f32[8] = aten.clone.default(%x0)
%pack: f32[16] = aten.cat.default([%a, %x1])
%r: f32[32] = all_gather.start(%pack) over tp from %r0, %r1
%w: f32[8] = aten.mul_.Scalar(%a, 2)
%f: f32[32] = wait(%r) from %f0, %f1
return %f, %w
"""


class Long:
    """The op that writes takes long, packing takes no time."""

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        return 200.0 if op.target == "aten.mul_.Scalar" else 0.0

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return float(20 + total_bytes)


def test_who_overwrites_what_was_copied_into_a_bucket_does_not_wait_for_it() -> None:
    apart, copied = parse(OVERWRITTEN), parse(COPIED)
    assert lower_bound(apart, Long()).us <= simulate(copied, Long()).step_us == 200
