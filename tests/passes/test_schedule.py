"""What must hold of `schedule` on any program. The goldens show each behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from bench.liveness import live_bytes
from bench.seeds import printed
from tests.analysis.texts import program
from tests.programs import programs
from tests.sim.test_exact import Whole
from weft import pipeline
from weft.analysis import pairs
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import companions, windows
from weft.cost import Machine, prices
from weft.cost.prices import Prices
from weft.errors import CostError, OptionError, WeftWarning
from weft.ir import Collective, Op, Program, TensorSpec
from weft.passes.base import Context
from weft.passes.listing import Rule, in_turn, listed, longest_tail
from weft.passes.schedule import SchedulePass
from weft.sim import simulate
from weft.sim.contract import contract

everything = programs(steps=(6, 24), random=True, barriers=True, mutate_inputs=True)
costs = st.sampled_from([Whole(), Machine.load("h100-ib400"), Machine.load("h100-eth100")])
increases = st.sampled_from([None, 0.0, 0.05, 0.2])


def scheduled(subject: Program, cost: weft.CostModel, one: SchedulePass, memory_limit: int | None = None) -> Program:
    return pipeline.run(subject, [one], cost=cost, memory_limit=memory_limit).program


@given(everything, costs, increases, st.booleans(), st.booleans())
def test_the_step_is_never_longer_and_memory_is_never_above_the_limit(
    subject: Program, cost: weft.CostModel, ratio: float | None, reorder: bool, keep_order: bool
) -> None:
    one = SchedulePass(max_memory_increase_ratio=ratio, reorder_compute=reorder, keep_order=keep_order)
    before, after = simulate(subject, cost), simulate(scheduled(subject, cost, one), cost)
    assert after.step_us <= before.step_us * (1 + 1e-9)
    assert live_bytes(subject) == before.peak_bytes
    assert live_bytes(after.program) == after.peak_bytes
    if ratio is not None:
        assert after.peak_bytes <= round(before.peak_bytes * (1 + ratio))


@given(everything, costs)
def test_a_limit_below_the_original_warns_and_nothing_grows(subject: Program, cost: weft.CostModel) -> None:
    peak = simulate(subject, cost).peak_bytes
    with pytest.warns(WeftWarning, match="it will not grow"):
        made = scheduled(subject, cost, SchedulePass(), memory_limit=peak - 1)
    assert live_bytes(made) <= peak


@given(everything, costs, st.sampled_from([0, 16, 64, 256]))
def test_no_more_is_in_flight_than_may_be(subject: Program, cost: weft.CostModel, nbytes: int) -> None:
    made = scheduled(subject, cost, SchedulePass(max_in_flight_gb=nbytes / 1e9))
    if made.ops != subject.ops:
        assert all(sum(flying) <= nbytes or len(flying) == 1 for flying in in_flight(made))


def in_flight(subject: Program) -> list[list[int]]:
    """For each start, the bytes of the collectives that are in flight when it is launched, its own among them."""
    flying, found = dict[str, int](), []
    landed = {waits[0]: start for start, waits in pairs(subject).waits.items() if waits}
    for op in subject.ops:
        if op.is_start:
            flying[op.name] = total_bytes(op)
            found.append(list(flying.values()))
        flying.pop(landed.get(op.name, ""), None)
    return found


@given(everything, costs, increases)
def test_groups_keep_their_order_if_told_to(subject: Program, cost: weft.CostModel, ratio: float | None) -> None:
    made = scheduled(subject, cost, SchedulePass(keep_order=True, max_memory_increase_ratio=ratio))
    assert by_group(made) == by_group(subject)


def by_group(subject: Program) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for op in subject.starts:
        assert op.comm is not None
        found.setdefault(op.comm.group.name, []).append(op.name)
    return found


@given(everything, costs, st.data())
def test_what_is_pinned_stays_among_the_ops_that_are_no_companions(
    subject: Program, cost: weft.CostModel, data: st.DataObject
) -> None:
    if not subject.starts:
        return
    pin = data.draw(st.sampled_from(subject.starts)).name
    made = scheduled(subject, cost, SchedulePass(pin=(pin,)))
    for name in (pin, *pairs(subject).waits[pin]):
        assert ahead_of(made, name, subject) == ahead_of(subject, name, subject)


def ahead_of(made: Program, name: str, original: Program) -> set[str]:
    """The ops before one, but for collectives and what moves with them."""
    moving = {original.ops[place].name for place in companions(original)}
    before = made.ops[: made.index[name]]
    return {op.name for op in before if not op.is_start and not op.is_wait and op.name not in moving}


@given(everything, costs, st.sampled_from([0, 1, 3]))
def test_no_gather_is_further_ahead_than_it_may_be(subject: Program, cost: weft.CostModel, most: int) -> None:
    made = scheduled(subject, cost, SchedulePass(max_compute_pre_fetch=most))
    if made.ops != subject.ops:
        assert all(ahead <= most for ahead in kernels_ahead(made, cost))


def kernels_ahead(subject: Program, cost: weft.CostModel) -> Iterator[int]:
    """For each gather that could be launched later, how many kernels run before its use; not those of collectives."""
    priced, moving = simulate(subject, cost).prices, companions(subject)
    busy = [us > 0 and place not in moving for place, us in enumerate(priced.us)]
    grows = {piece.name: piece.grows for piece in contract(subject, priced).pieces}
    for name, window in windows(subject).items():
        if grows[name] and any(busy[window.position : window.due]):
            yield sum(busy[window.position : window.used])


@given(everything, costs, increases)
def test_plans_are_the_same_each_time(subject: Program, cost: weft.CostModel, ratio: float | None) -> None:
    one = SchedulePass(max_memory_increase_ratio=ratio)
    again = weft.parse(str(subject))
    first = one.plan(subject, Context.of(subject, cost))
    assert one.plan(again, Context.of(again, cost)).hash == first.hash


HASH = """
import sys
import weft
from weft.passes.base import Context
from weft.passes.listing import Rule, in_turn, listed, longest_tail
from weft.passes.schedule import SchedulePass

program, machine = weft.parse(sys.stdin.read()), weft.Machine.load("h100-eth100")
print(SchedulePass(max_memory_increase_ratio=0.1).plan(program, Context.of(program, machine)).hash)
"""


def test_twenty_processes_with_other_hash_seeds_make_the_same_plan() -> None:
    """The program has three groups, and its plan moves something."""
    hashes = printed(HASH, [], str(several_groups()), 20)
    assert len(hashes) == 1
    machine = Machine.load("h100-eth100")
    plan = SchedulePass(max_memory_increase_ratio=0.1).plan(several_groups(), Context.of(several_groups(), machine))
    assert hashes == {plan.hash + "\n"}
    assert plan.steps


def several_groups() -> Program:
    """Three layers, each with a gather, an all-reduce and a reduce-scatter on groups of their own."""
    lines = ["%x0: f32[512,512] = input()", *(f"%w{i}: f32[256,512] = input()" for i in range(3))]
    for i in range(3):
        lines += [
            f"%g{i}: f32[512,512] = all_gather.start(%w{i}) over dp",
            f"%f{i}: f32[512,512] = wait(%g{i})",
            f"%h{i}: f32[512,512] = aten.mm.default(%x{i}, %f{i})",
            f"%a{i}: f32[512,512] = all_reduce.start(%h{i}) sum over tp",
            f"%x{i + 1}: f32[512,512] = wait(%a{i})",
            f"%d{i}: f32[512,512] = aten.mm.default(%h{i}, %x0)",
            f"%r{i}: f32[256,512] = reduce_scatter.start(%d{i}) sum over rep",
            f"%s{i}: f32[256,512] = wait(%r{i})",
        ]
    groups = "weft 1\ngroup dp = 0, 16\ngroup tp = 0, 1\ngroup rep = 0, 8\n\n"
    return weft.parse(groups + "\n".join([*lines, "return %x3, %s0, %s1, %s2\n"]))


# Bad input


@pytest.mark.parametrize("us", [float("nan"), -1.0, float("inf")])
def test_a_time_that_cannot_be_is_an_error_that_names_the_op(us: float) -> None:
    class Wrong(Whole):
        def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
            return us if op.name == "h1" else 1.0

    class WrongCollective(Whole):
        def collective_us(self, collective: Collective, total_bytes: int) -> float:
            return us if collective.group.name == "rep" else 1.0

    subject = several_groups()
    words = f"is {us}; it must be a finite number of at least 0"
    with pytest.raises(CostError, match=rf"^op_us of %h1 \(aten\.mm\.default\) {words}$"):
        SchedulePass().plan(subject, Context.of(subject, Wrong()))
    with pytest.raises(CostError, match=rf"^collective_us of %r0 {words}$"):
        SchedulePass().plan(subject, Context.of(subject, WrongCollective()))


LIMITS = ["max_memory_increase_gb", "max_memory_increase_ratio", "max_in_flight_gb", "max_compute_pre_fetch"]


@pytest.mark.parametrize("value", [-1, float("nan")])
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_negative_or_no_number_is_an_error(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(OptionError, match=f"^schedule: {name} must be at least 0, or none for no limit, not {value}$"):
        SchedulePass(**options)


def test_a_pin_that_names_no_collective_is_an_error() -> None:
    subject = several_groups()
    with pytest.raises(OptionError, match=r"^schedule: pin=h0 names no collective, and no module that has one$"):
        SchedulePass(pin=("h0",)).plan(subject, Context.of(subject, Whole()))


def test_a_limit_below_what_the_original_needs_says_both() -> None:
    subject = several_groups()
    with pytest.warns(
        WeftWarning, match=r"^the step needs 6\.8 MB as it is, and may have 1,000 bytes: it will not grow$"
    ):
        SchedulePass().plan(subject, Context.of(subject, Whole(), memory_limit=1000))


def test_a_program_without_collectives_stays_as_it_is() -> None:
    subject = program("%x: f32[2] = input()\n%y: f32[2] = aten.neg.default(%x)\nreturn %y")
    plan = SchedulePass().plan(subject, Context.of(subject, Whole()))
    assert (plan.steps, plan.remarks) == ((), ())


def test_an_empty_program_stays_as_it_is() -> None:
    plan = SchedulePass().plan(program("return"), Context.of(program("return"), Whole()))
    assert (plan.steps, plan.remarks) == ((), ())


def test_of_two_like_chunks_the_first_is_finished_first() -> None:
    subject = program("""
        %x: f32[8,8] = input()
        %a0: f32[8,8] = aten.mm.default(%x, %x)
        %a1: f32[8,8] = aten.mm.default(%x, %x)
        %b0: f32[8,8] = aten.mm.default(%a0, %x)
        %b1: f32[8,8] = aten.mm.default(%a1, %x)
        %s0: f32[8,8] = all_reduce.start(%b0) sum over g
        %f0: f32[8,8] = wait(%s0)
        %s1: f32[8,8] = all_reduce.start(%b1) sum over g
        %f1: f32[8,8] = wait(%s1)
        return %f0, %f1
    """)

    priced = prices(subject, Machine.load("h100-ib400"))

    def computed(rule: Rule) -> list[str]:
        names = [subject.ops[place].name for place in listed(subject, priced, rule, inf)]
        return [name for name in names if name[0] in "ab"]

    assert computed(longest_tail) == ["a0", "a1", "b0", "b1"]
    assert computed(in_turn) == ["a0", "b0", "a1", "b1"]


def test_an_op_waits_a_moment_for_what_is_more_urgent() -> None:
    subject = program("""
        %x: f32[8,8] = input()
        %y: f32[8,8] = input()
        %s: f32[8,8] = aten.relu.default(%x)
        %g: f32[8,8] = all_reduce.start(%s) sum over g
        %f: f32[8,8] = wait(%g)
        %urgent: f32[8,8] = aten.mm.default(%f, %f)
        %r: f32[8,8] = all_reduce.start(%urgent) sum over g
        %t: f32[8,8] = wait(%r)
        %last: f32[8,8] = aten.mm.default(%t, %t)
        %h: f32[8,8] = all_reduce.start(%y) sum over g
        %e: f32[8,8] = wait(%h)
        %filler: f32[8,8] = aten.mm.default(%e, %e)
        return %last, %filler
    """)
    priced = timed(subject, {"relu": 1.0, "mm": 20.0}, 30.0)
    # What needs no compute has landed at 30, the other at 31.
    assert matmuls(subject, listed(subject, priced, longest_tail, inf)) == ["filler", "urgent", "last"]
    assert matmuls(subject, listed(subject, priced, longest_tail, inf, patient=True)) == ["urgent", "filler", "last"]


@pytest.mark.parametrize(
    ("comm_us", "wanted"), [(15.0, ["first", "w", "on", "last"]), (45.0, ["first", "on", "w", "last"])]
)
def test_a_group_is_given_something_to_send_before_it_has_nothing(comm_us: float, wanted: list[str]) -> None:
    subject = program("""
        %x: f32[8,8] = input()
        %first: f32[8,8] = aten.mm.default(%x, %x)
        %r0: f32[8,8] = all_reduce.start(%first) sum over g
        %e: f32[8,8] = aten.relu.default(%x)
        %on: f32[8,8] = aten.mm.default(%e, %e)
        %w: f32[8,8] = aten.mm.default(%e, %x)
        %r1: f32[8,8] = all_reduce.start(%w) sum over g
        %last: f32[8,8] = aten.mm.default(%on, %on)
        %r2: f32[8,8] = all_reduce.start(%last) sum over g
        %d0: f32[8,8] = wait(%r0)
        %d1: f32[8,8] = wait(%r1)
        %d2: f32[8,8] = wait(%r2)
        return %d0, %d1, %d2
    """)
    priced = timed(subject, {"relu": 1.0, "mm": 20.0}, comm_us)
    assert matmuls(subject, listed(subject, priced, longest_tail, inf, feeding=True)) == wanted


def timed(subject: Program, us: Mapping[str, float], comm_us: float) -> Prices:
    """Prices by the names of ops, and one for all collectives."""
    return replace(
        prices(subject, Whole()),
        us=tuple(us.get(op.target.split(".")[1] if "." in op.target else "", 0.0) for op in subject.ops),
        comm_us=tuple(comm_us if op.is_start else 0.0 for op in subject.ops),
    )


def matmuls(subject: Program, order: Sequence[int]) -> list[str]:
    return [subject.ops[place].name for place in order if subject.ops[place].traits.matmul]
