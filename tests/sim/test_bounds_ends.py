"""The bound at the end of the step, where work that could hide what is in flight brings flights of its own: by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings

from tests.sim.chains import backwards
from tests.sim.exact import optimum
from tests.sim.test_exact import Whole
from tests.sim.variants import merges
from weft import parse
from weft.cost import prices
from weft.ir import Collective, Op, Program, TensorSpec
from weft.sim import lower_bound
from weft.sim.between import longest_chain
from weft.sim.parts import Parts


class Bytewise:
    """A microsecond for each byte that is sent, and 10 for each op that computes."""

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        return 10.0 if op.target.startswith("aten.") else 0.0

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return float(total_bytes)


class Slower(Bytewise):
    """Compute takes twice as long while anything is in flight."""

    compute_slowdown = 2.0
    launch_us = 0.0

    def moved_us(self, nbytes: int) -> float:
        return 0.0

    def said_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float | None:
        return self.op_us(op, inputs)

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        return {}


HEAD = """weft 1
rank 0
group g = 0..1
group h = 0..1
%x: f32[1,4] = input()
%small: f32[4,1] = input()
%some: f32[4,3] = input()
%many: f32[4,10] = input()
%a: f32[1,4] = aten.cumsum.default(%x, 0)
"""
# %w floats: it may be done before %b, or as late as it likes.
OWN = """%w: f32[1,{size}] = aten.mm.default(%a, %{factor})
%rw: f32[1,{size}] = all_reduce.start(%w) sum over {group}
%dw: f32[1,{size}] = wait(%rw)
"""
END = """%b: f32[1,4] = aten.cumsum.default(%a, 0)
%c: f32[1,10] = aten.mm.default(%b, %many)
%rc: f32[1,10] = all_reduce.start(%c) sum over g
%dc: f32[1,10] = wait(%rc)
return %dc, %dw
"""


def with_own(size: int, group: str = "g") -> Program:
    """%a and %b, then 40 bytes that %c sends over %g; and %w, which sends what it makes, 4 bytes for each element."""
    factor = {1: "small", 3: "some"}[size]
    return parse(HEAD + OWN.format(size=size, factor=factor, group=group) + END)


def contention(program: Program, cost: Bytewise | None = None) -> float:
    """That bound, of a program in which %a and %b cannot be cut."""
    known = cost or Bytewise()
    parts = Parts.of(program, known, prices(program, known))
    assert [program.ops[place].name for place in longest_chain(parts)] == ["a", "b"]
    found = lower_bound(program, known)
    assert found.name == "contention"
    return found.us


# %c and what is beside a collective may be cut with it, and take 9.9 us.


def test_work_that_sends_more_than_it_hides_is_not_done_at_the_end() -> None:
    # %a, %w and %b, and then 40 us in which %c hides. Done behind %b, %w would hide as well, and 12 us more would be
    # sent after that: 20 + 40 + 12.
    program = with_own(size=3)
    assert contention(program) == pytest.approx(10 + 9.9 + 10 + 40, rel=2e-3)
    assert contention(program) <= optimum(program, prices(program, Bytewise()))[0]


def test_work_that_sends_less_than_it_hides_is_done_at_the_end() -> None:
    # %a and %b, and then 40 us and the 4 us of %w, in which %c and %w hide.
    assert contention(with_own(size=1)) == pytest.approx(10 + 10 + 40 + 4, rel=2e-3)


def test_beside_what_is_in_flight_work_takes_longer() -> None:
    # 20 us for %a and %b, and then 52 us in which 26 us of compute could be done, more than there is. If %w came before
    # %b, half of 12 us would be lost behind it: 10 + 9.9 + 10 + 6 + 40.
    assert contention(with_own(size=3), Slower()) == pytest.approx(10 + 10 + 40 + 12, rel=2e-3)


def test_what_is_sent_over_another_group_does_not_queue() -> None:
    # %a and %b and then 40 us, with all else beside them.
    found = lower_bound(with_own(size=3, group="h"), Bytewise())
    assert found.us == pytest.approx(10 + 10 + 40, rel=2e-3)


def test_work_brings_all_that_it_leads_to() -> None:
    # As the first, but what is sent over %g is what a reduction over %h gives.
    own = """%both: f32[2,4] = input()
    %w: f32[2,3] = aten.mm.default(%both, %some)
    %sw: f32[1,3] = reduce_scatter.start(%w) sum over h
    %pw: f32[1,3] = wait(%sw)
    %rw: f32[1,3] = all_reduce.start(%pw) sum over g
    %dw: f32[1,3] = wait(%rw)
    """
    program = parse(HEAD + own + END)
    assert contention(program) == pytest.approx(10 + 9.9 + 10 + 40, rel=2e-3)


def test_two_ops_bring_what_both_lead_to_only_once() -> None:
    # %v and %w are both done at the end, for they hide 19.8 us there and bring 12 us: 10 + 10 + 40 + 12.
    own = """%v: f32[1,3] = aten.mm.default(%a, %some)
    %w: f32[1,3] = aten.addmm.default(%v, %a, %some)
    %rw: f32[1,3] = all_reduce.start(%w) sum over g
    %dw: f32[1,3] = wait(%rw)
    """
    program = parse(HEAD + own + END)
    assert contention(program) == pytest.approx(10 + 10 + 40 + 12, rel=2e-3)


def test_what_has_to_be_sent_at_the_end_anyway_is_not_brought() -> None:
    # %v may be done before %b or behind it: what it leads to needs %b, and is sent behind that in any case.
    own = """%v: f32[1,3] = aten.mm.default(%a, %some)
    %b: f32[1,4] = aten.cumsum.default(%a, 0)
    %w: f32[1,3] = aten.addmm.default(%v, %b, %some)
    %rw: f32[1,3] = all_reduce.start(%w) sum over g
    %dw: f32[1,3] = wait(%rw)
    """
    program = parse(HEAD + own + END.split("\n", 1)[1])
    assert lower_bound(program, Bytewise()).us == pytest.approx(10 + 10 + 40 + 12, rel=2e-3)


@settings(max_examples=60)
@given(backwards())
def test_no_order_of_a_backward_beats_the_bound(program: Program) -> None:
    bound = lower_bound(program, Whole()).us
    for one in (program, *merges(program)):
        assert bound <= optimum(one, prices(one, Whole()))[0] + 1e-6
