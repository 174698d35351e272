"""The parts of the lower bound: rates, the one-machine problem, what may be cut."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.exact import optimum
from weft import Machine, parse, verify
from weft.cost import prices
from weft.cost.curves import Curve
from weft.ir import Collective, Group, Op, TensorSpec
from weft.sim import lower_bound, simulate
from weft.sim.bounds import Job, one_machine
from weft.sim.cuts import cuts
from weft.sim.floors import least_rates
from weft.sim.parts import Parts

H100 = Machine.load("h100-ib400")
PAIR = "weft 1\nrank 0\ngroup g = 0..1\n"
GROUP = Group("g", (0, 1))
JOBS = st.lists(st.builds(Job, *(st.integers(0, 20).map(float),) * 3), min_size=1, max_size=5)


@given(JOBS)
def test_one_machine_is_not_above_any_sequence(jobs: list[Job]) -> None:
    def length(order: tuple[Job, ...]) -> float:
        now = end = 0.0
        for job in order:
            now = max(now, job.head) + job.us
            end = max(end, now + job.tail)
        return end

    assert one_machine(jobs) <= min(map(length, permutations(jobs)))


def test_one_machine_by_hand() -> None:
    # The second job interrupts the first one at 2 and is done at 5; the first ends at 9, and 1 more follows.
    assert one_machine([Job(0, 6, 1), Job(2, 3, 5)]) == 10
    # Nothing to do from 1 to 4.
    assert one_machine([Job(0, 1, 0), Job(4, 2, 3)]) == 9
    assert one_machine([]) == 0


STEPS = st.lists(st.tuples(st.integers(1, 2**40), st.floats(0, 1e6)), min_size=1, max_size=8)


@given(STEPS, st.lists(st.integers(1, 2**40), min_size=1, max_size=4))
def test_a_rate_is_below_every_size_and_close_to_one(steps: list[tuple[int, float]], largest: list[int]) -> None:
    """On functions that jump anywhere, which is as bad as monotone functions get."""
    places = sorted(place for place, _ in steps)
    levels = sorted(1 + level for _, level in steps)

    def us(nbytes: int) -> float:
        return levels[max(0, bisect_right(places, nbytes) - 1)]

    rates = least_rates(us, largest)
    assert rates.keys() == {*largest}
    for most, rate in rates.items():
        # A step function is cheapest for a byte right before it jumps.
        sizes = [size for place in places for size in (place - 1, place) if 1 <= size <= most] + [1, most]
        truth = min(us(size) / size for size in sizes)
        assert truth * 0.998 <= rate <= truth * (1 + 1e-12)


class Cut:
    """A matmul of 20 us in so many pieces, 7 us for what follows, and collectives by their bytes."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        return {"aten.mm.default": math.ceil(20 / self.pieces), "aten.neg.default": 7.0}.get(op.target, 0.0)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 2 + total_bytes / 100


GATHER = """weft 1
group tp = 0..1

%x: f32[200,1] = input()
%w: f32[1,8] = input()
%ag: f32[400,1] = all_gather.start(%x) over tp
%f: f32[400,1] = wait(%ag)
%y: f32[400,8] = aten.mm.default(%f, %w)
%z: f32[400,8] = aten.neg.default(%y)
return %z
"""


SCATTER = """weft 1
group tp = 0..1

%x: f32[400,8] = input()
%w: f32[8,1] = input()
%y: f32[400,1] = aten.mm.default(%x, %w)
%rs: f32[200,1] = reduce_scatter.start(%y) sum over tp
%f: f32[200,1] = wait(%rs)
%z: f32[200,1] = aten.neg.default(%f)
return %z
"""


def gather_in(pieces: int) -> str:
    """GATHER with the gather and the matmul in pieces."""
    rows = 400 // pieces
    lines = GATHER.splitlines()[:5]
    for i in range(pieces):
        low, high = i * rows // 2, (i + 1) * rows // 2
        lines.append(f"%x_{i}: f32[{rows // 2},1] = aten.slice.Tensor(%x, 0, {low}, {high})")
        lines.append(f"%ag_{i}: f32[{rows},1] = all_gather.start(%x_{i}) over tp")
    for i in range(pieces):
        lines.append(f"%f_{i}: f32[{rows},1] = wait(%ag_{i})")
        lines.append(f"%y_{i}: f32[{rows},8] = aten.mm.default(%f_{i}, %w)")
    whole = ", ".join(f"%y_{i}" for i in range(pieces))
    lines.append(f"%y: f32[400,8] = aten.cat.default([{whole}])")
    return "\n".join([*lines, *GATHER.splitlines()[-2:]])


def scatter_in(pieces: int) -> str:
    """SCATTER with the matmul and the scatter in pieces."""
    rows = 400 // pieces
    lines = SCATTER.splitlines()[:5]
    for i in range(pieces):
        lines.append(f"%x_{i}: f32[{rows},8] = aten.slice.Tensor(%x, 0, {i * rows}, {(i + 1) * rows})")
        lines.append(f"%y_{i}: f32[{rows},1] = aten.mm.default(%x_{i}, %w)")
        lines.append(f"%rs_{i}: f32[{rows // 2},1] = reduce_scatter.start(%y_{i}) sum over tp")
    lines += [f"%f_{i}: f32[{rows // 2},1] = wait(%rs_{i})" for i in range(pieces)]
    whole = ", ".join(f"%f_{i}" for i in range(pieces))
    lines.append(f"%f: f32[200,1] = aten.cat.default([{whole}])")
    return "\n".join([*lines, *SCATTER.splitlines()[-2:]])


@pytest.mark.parametrize("pieces", [2, 4, 8])
@pytest.mark.parametrize(("text", "cut"), [(GATHER, gather_in), (SCATTER, scatter_in)], ids=["gather", "scatter"])
def test_cutting_with_a_matmul_helps_and_does_not_beat_the_bound(
    text: str, cut: Callable[[int], str], pieces: int
) -> None:
    whole, chunked = parse(text), parse(cut(pieces))
    verify(chunked)
    best, _ = optimum(chunked, prices(chunked, Cut(pieces)))
    # One after the other they take 18 + 20 + 7. A bound that could not imagine a cut would say just that.
    assert simulate(whole, Cut(1)).step_us == 45
    assert lower_bound(whole, Cut(1)).us <= best < 45


def test_a_cut_reaches_the_neighbours_and_no_further() -> None:
    program = parse(GATHER)
    gather = program.index["ag"]
    assert [program.ops[place].name for place, found in enumerate(cuts(program)) if gather in found] == ["ag", "f", "y"]


EXPERTS = """weft 1
group ep = 0..1

%tokens: f32[8,4] = input()
%up: f32[4,4] = input()
%down: f32[4,4] = input()
%there: f32[8,4] = all_to_all.start(%tokens, [4, 4], [4, 4]) over ep
%mine: f32[8,4] = wait(%there)
%h: f32[8,4] = aten.mm.default(%mine, %up)
%a: f32[8,4] = aten.relu.default(%h)
%o: f32[8,4] = aten.mm.default(%a, %down)
%back: f32[8,4] = all_to_all.start(%o, [4, 4], [4, 4]) over ep
%got: f32[8,4] = wait(%back)
%sum: f32[8,4] = aten.add.Tensor(%got, %h)
%last: f32[8,4] = aten.relu.default(%sum)
return %last
"""


def test_an_all_to_all_is_cut_with_the_experts_between_it_and_the_next() -> None:
    program = parse(EXPERTS)
    there = program.index["there"]
    members = [program.ops[place].name for place, found in enumerate(cuts(program)) if there in found]
    assert members == ["there", "mine", "h", "a", "o", "back"]


def test_casts_that_a_bucket_does_for_all_its_members_do_not_beat_the_bound() -> None:
    """Each small all-reduce is followed by a cast, a kernel of its own; a bucket has one for all."""
    count, machine = 20, Machine.load("h100-ib400")
    head = ["weft 1", "group dp = 0..7", *(f"%x{i}: bf16[64] = input()" for i in range(count))]
    apart, names = list(head), [f"x{i}" for i in range(count)]
    for i in range(count):
        apart.append(f"%s{i}: bf16[64] = all_reduce.start(%x{i}) sum over dp")
        apart.append(f"%w{i}: bf16[64] = wait(%s{i})")
        apart.append(f"%c{i}: f32[64] = prims.convert_element_type.default(%w{i}, f32)")
    results = ", ".join(f"%c{i}" for i in range(count))
    sources = {kind: ", ".join(f"%{kind}{i}" for i in range(count)) for kind in "swc"}
    joined = [
        *head,
        f"%packed: bf16[{64 * count}] = aten.cat.default([{', '.join(f'%{name}' for name in names)}])",
        f"%bucket: bf16[{64 * count}] = all_reduce.start(%packed) sum over dp from {sources['s']}",
        f"%done: bf16[{64 * count}] = wait(%bucket) from {sources['w']}",
        f"%cast: f32[{64 * count}] = prims.convert_element_type.default(%done, f32) from {sources['c']}",
    ]
    joined += [
        f"%p{i}: f32[64] = aten.slice.Tensor(%cast, 0, {64 * i}, {64 * i + 64}) from %c{i}" for i in range(count)
    ]
    before = parse("\n".join([*apart, f"return {results}"]))
    after = parse("\n".join([*joined, "return " + ", ".join(f"%p{i}" for i in range(count))]))
    verify(before, after)
    assert lower_bound(before, machine).us <= simulate(after, machine).step_us


CAST, SCALE = "f32[{size}] = aten._to_copy.default(%w, dtype=f32)", "bf16[{size}] = aten.mul.Tensor(%w, 0.5)"


def floor_behind(size: int, does: str, sent: str = "x") -> float:
    """The least time of what is done to the result of an all-reduce of so many elements, which may be those of a
    cast."""
    program = parse(
        f"""weft 1
        group dp = 0..7

        %x: {"f32" if sent == "cast" else "bf16"}[{size}] = input()
        %cast: bf16[{size}] = aten._to_copy.default(%x, dtype=bf16)
        %s: bf16[{size}] = all_reduce.start(%{sent}) sum over dp
        %w: bf16[{size}] = wait(%s)
        %y: {does.format(size=size)}
        return %y
        """
    )
    return Parts.of(program, H100, prices(program, H100)).us[program.index["y"]]


def test_joining_what_is_done_to_results_saves_launches_less_the_copy_that_it_takes() -> None:
    moved, launch = H100.moved_us, H100.launch_us
    assert floor_behind(1024, SCALE) == pytest.approx(moved(4 * 1024) + moved(4 * 1024))  # the launch, less the copy
    assert floor_behind(2**24, SCALE) == pytest.approx(launch + moved(4 * 2**24))  # nothing
    assert floor_behind(2**24, SCALE, sent="cast") == pytest.approx(moved(4 * 2**24))  # a pack converts on the way


def test_converting_results_together_takes_no_copy() -> None:
    assert floor_behind(2**24, CAST) == pytest.approx(H100.moved_us(6 * 2**24))


def test_a_link_is_no_busier_than_by_collectives_that_are_faster_in_small_pieces() -> None:
    """As measured on a real one: 1 MiB took more than four times as long as 256 KiB."""
    level = replace(Machine.load("gloo-cpu").levels[0], gb_per_s=0.01)
    curves = tuple(
        Curve(kind, 2, 1, bytes=(2.0**18, 2.0**20), us=(20_000.0, 90_000.0)) for kind in ("all_reduce", "all_gather")
    )
    machine = replace(Machine.load("gloo-cpu"), levels=(level,), curves=curves)
    assert machine.link_us(Collective("all_reduce", GROUP, "sum"), 2**20) == pytest.approx({level.name: 90_000.0})
    whole = parse(f"{PAIR}%x: f32[262144] = input()\n{reduced('x', 2**18)}return %x_done\n")
    parts = "\n".join(
        f"%p{part}: f32[65536] = aten.slice.Tensor(%x, 0, {part * 2**16}, {(part + 1) * 2**16})\n"
        f"{reduced(f'p{part}', 2**16)}"
        for part in range(4)
    )
    done = ", ".join(f"%p{part}_done" for part in range(4))
    cut = parse(f"{PAIR}%x: f32[262144] = input()\n{parts}return {done}\n")
    assert simulate(whole, machine).step_us > 89_000
    assert simulate(cut, machine).step_us < 81_000
    assert simulate(whole, machine).bound_us <= simulate(cut, machine).step_us


def reduced(name: str, size: int) -> str:
    sent = f"%{name}_sent: f32[{size}] = all_reduce.start(%{name}) sum over g\n"
    return f"{sent}%{name}_done: f32[{size}] = wait(%{name}_sent)\n"


class Bytewise:
    """A microsecond for each byte that is sent, and 10 for each op that computes."""

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        return 10.0 if op.target.startswith("my.") else 0.0

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return float(total_bytes)


def test_what_lands_before_an_op_and_what_is_launched_behind_it_add_up() -> None:
    """On two groups, so that neither has both ends of the step; and each end has two flights, of which one path has
    only one. %a and %c might be cut with them."""
    program = parse(
        """weft 1
        rank 0
        group g = 0..1
        group h = 0..1
        %x: f32[4] = input()
        %y: f32[4] = input()
        %sx: f32[8] = all_gather.start(%x) over g
        %sy: f32[8] = all_gather.start(%y) over g
        %gx: f32[8] = wait(%sx)
        %gy: f32[8] = wait(%sy)
        %a: f32[16] = my.op.default(%gx, %gy)
        %b: f32[16] = my.op.default(%a)
        %c: (f32[16], f32[16]) = my.op.default(%b)
        %p: f32[16] = getitem(%c, 0)
        %q: f32[16] = getitem(%c, 1)
        %rp: f32[16] = all_reduce.start(%p) sum over h
        %rq: f32[16] = all_reduce.start(%q) sum over h
        %dp: f32[16] = wait(%rp)
        %dq: f32[16] = wait(%rq)
        return %dp, %dq
        """
    )
    found = simulate(program, Bytewise()).bound
    assert found.us == pytest.approx(2 * 32 + 10 + 2 * 64, rel=2e-3)
    assert max(found.all[name] for name in ("critical path", "group g", "group h")) < 180
