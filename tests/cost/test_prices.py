"""The prices of whole programs: kernels that ops share, collectives, and cost models that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.cost.toys import Toy
from tests.orders import reordered
from tests.programs import programs
from weft.cost.prices import Prices, prices
from weft.errors import CostError
from weft.ir import Collective, Op, Program, TensorSpec


class Plain:
    """A cost model that knows nothing of hardware, and counts how often it is asked."""

    def __init__(self, us: Callable[[Op], float] = lambda op: 3.0) -> None:
        self.us = us
        self.asked: list[str] = []

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        self.asked.append(op.name)
        return self.us(op)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 7.0


def paid(subject: Program, found: Prices) -> dict[str, float]:
    return {op.name: us for op, us in zip(subject.ops, found.us, strict=True) if us}


def fused(ops: str) -> dict[str, float]:
    """What each op pays where a byte takes 1 and a launch 100."""
    subject = program(ops)
    return paid(subject, prices(subject, Toy()))


def test_a_chain_reads_once_and_writes_once() -> None:
    assert fused("""
        %x: f32[4] = input()
        %a: f32[4] = aten.neg.default(%x)
        %b: f32[4] = aten.relu.default(%a)
        %c: f32[4] = aten.exp.default(%b)
        return %c
    """) == {"a": 100 + 16, "c": 16}


def test_an_input_that_several_ops_read_is_paid_by_the_first_and_in_whole_only_once() -> None:
    assert fused("""
        %x: f32[2,4] = input()
        %t: f32[4,2;1,4] = aten.t.default(%x)
        %part: f32[2,2;4,1] = aten.slice.Tensor(%x, 1, 0, 2)
        %a: f32[2,4] = aten.neg.default(%x)
        %v: f32[4,2] = aten.view.default(%a, [4, 2])
        %b: f32[4,2] = aten.mul.Tensor(%v, %t)
        %c: f32[2,2] = aten.neg.default(%part)
        return %b, %c
    """) == {"a": 100 + 32, "b": 32, "c": 100 + 16 + 16}


def test_what_is_used_outside_the_kernel_is_written_and_read_there_again() -> None:
    assert fused("""
        %x: f32[2,2] = input()
        %a: f32[2,2] = aten.neg.default(%x)
        %b: f32[2,2] = aten.relu.default(%a)
        %m: f32[2,2] = aten.mm.default(%a, %x)
        %c: f32[2,2] = aten.exp.default(%m)
        return %b, %c
    """) == {"a": 100 + 16 + 16, "b": 16, "m": 100 + 8, "c": 100 + 16 + 16}


def test_a_result_that_nobody_reads_is_written_all_the_same() -> None:
    assert fused("%x: f32[4] = input()\n%a: f32[4] = aten.neg.default(%x)") == {"a": 100 + 16 + 16}


def test_an_optimiser_reads_and_writes_its_state_once() -> None:
    found = fused("""
        %w: f32[4] = input()
        %v: f32[4] = input()
        %g: f32[4] = input()
        %less: f32[4] = aten.mul_.Tensor(%v, 0.9)
        %square: f32[4] = aten.addcmul_.default(%less, %g, %g, value=0.1)
        %root: f32[4] = aten.sqrt.default(%square)
        %safe: f32[4] = aten.add_.Scalar(%root, 1e-08)
        %new: f32[4] = aten.addcdiv_.default(%w, %g, %safe, value=-0.1)
    """)
    assert sum(found.values()) == 100 + 3 * 16 + 2 * 16
    assert found == {"less": 100 + 32, "square": 16, "new": 32}


def test_numbers_that_are_made_on_the_way_move_nothing() -> None:
    assert fused("""
        %x: f32[4] = input()
        %zero: f32[4] = aten.zeros_like.default(%x)
        %a: f32[4] = aten.maximum.default(%x, %zero)
        %one: f32[2,2] = aten.ones.default([2, 2])
        %m: f32[2,2] = aten.mm.default(%one, %one)
        return %a, %m
    """) == {"a": 100 + 16 + 16, "one": 100 + 16, "m": 100 + 8}


def test_results_of_one_op_leave_one_by_one() -> None:
    assert fused("""
        %x: f32[4,8] = input()
        %n: (f32[4,8], f32[4,1], f32[4,1]) = aten.native_layer_norm.default(%x, [8], None, None, 1e-05)
        %y: f32[4,8] = getitem(%n, 0)
        %mean: f32[4,1] = getitem(%n, 1)
        %a: f32[4,8] = aten.relu.default(%y)
        return %a, %mean
    """) == {"n": 100 + 128 + 16 + 16, "a": 128}


def test_a_gather_reads_what_it_takes() -> None:
    assert fused("""
        %table: f32[100,4] = input()
        %i: i64[2] = input()
        %rows: f32[2,4] = aten.embedding.default(%table, %i)
        %a: f32[2,4] = aten.neg.default(%rows)
        return %a
    """) == {"rows": 100 + 32 + 16, "a": 32}


STEP = """
    %x: f32[4] = input()
    %a: f32[4] = aten.neg.default(%x)
    %s: f32[8] = all_gather.start(%a) over g
    %r: f32[1] = reduce_scatter.start(%x) sum over four
    %b: f32[4] = aten.neg.default(%a)
    %f: f32[8] = wait(%s)
    %n: int = aten.sym_size.int(%f, 0)
    %e: f32[8] = wait(%r)
    %v: f32[2,4] = aten.view.default(%f, [2, 4])
    %c: f32[2,4] = aten.exp.default(%v)
"""


def test_starts_have_prices_and_links_of_their_own() -> None:
    subject = program(STEP)
    found = prices(subject, Toy())
    assert found.comm_us == (0, 0, 10 + 2 * 32, 10 + 4 * 16, 0, 0, 0, 0, 0, 0)
    assert found.links == {2: {"nic": 32}, 3: {"nic": 16}}
    assert found.slowdown == 1.25


def test_a_plain_cost_model_is_asked_for_every_op() -> None:
    subject, plain = program(STEP), Plain()
    found = prices(subject, plain)
    assert paid(subject, found) == {"a": 3, "b": 3, "c": 3}
    assert plain.asked == ["a", "b", "c"]
    assert found.comm_us[2:4] == (7, 7)
    assert (found.links, found.slowdown, found.unknown) == ({2: {}, 3: {}}, 1.0, {})


def test_what_is_said_of_a_fused_op_counts_and_the_rest_of_its_kernel_goes_by_bytes() -> None:
    class Said(Toy):
        def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
            return 5.0 if op.name == "a" else None

    subject = program("""
        %x: f32[4] = input()
        %a: f32[4] = aten.neg.default(%x)
        %b: f32[4] = aten.relu.default(%a)
    """)
    assert paid(subject, prices(subject, Toy())) == {"a": 100 + 16, "b": 16}
    assert paid(subject, prices(subject, Said())) == {"a": 5, "b": 100 + 16}


def test_ops_that_nothing_is_known_of_are_listed_with_their_number() -> None:
    subject = program("""
        %x: f32[4] = input()
        %a: f32[4] = vendor.mystery.default(%x) {pure}
        %b: f32[4] = vendor.mystery.default(%a) {pure}
        %c: f32[4] = another.riddle.default(%a)
        %d: f32[4] = aten.neg.default(%a)
    """)
    assert prices(subject, Toy()).unknown == {"another.riddle.default": 1, "vendor.mystery.default": 2}


@pytest.mark.parametrize("us", [-1.0, nan, inf, "3", None])
def test_an_impossible_time_names_the_op(us: float) -> None:
    with pytest.raises(
        CostError, match=r"op_us of %b \(aten.relu.default\) is .*; it must be a finite number of at least 0"
    ):
        prices(
            program("%x: f32[4] = input()\n%a: f32[4] = aten.neg.default(%x)\n%b: f32[4] = aten.relu.default(%a)"),
            Plain(lambda op: us if op.name == "b" else 1.0),
        )


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("collective_us", lambda collective, nbytes: -1.0, "collective_us of %s is -1.0"),
        ("link_us", lambda collective, nbytes: {"nic": nan}, "link_us of %s on nic is nan"),
        ("moved_us", lambda nbytes: inf, "moved_us of the 48 bytes around %a is inf"),
        ("launch_us", -2.0, "launch_us is -2.0"),
        ("compute_slowdown", 0.5, "compute_slowdown is 0.5; it must be a finite number of at least 1"),
    ],
)
def test_an_impossible_machine_is_refused(attribute: str, value: object, message: str) -> None:
    machine = Toy()
    setattr(machine, attribute, value)
    with pytest.raises(CostError, match=message):
        prices(program(STEP), machine)


def test_a_program_without_ops_has_no_prices() -> None:
    assert prices(program("return"), Toy()).us == ()


# Every program

every = programs(mutate_inputs=True, random=True, barriers=True)


@given(every, st.randoms(use_true_random=False))
def test_no_legal_reordering_changes_a_price(subject: Program, random: Random) -> None:
    other = reordered(subject, random)
    assert paid(other, prices(other, Toy())) == pytest.approx(paid(subject, prices(subject, Toy())))


@given(every)
def test_prices_are_never_negative_and_sharing_a_kernel_is_never_dearer(subject: Program) -> None:
    together, apart = prices(subject, Toy()), prices(subject, Apart())
    assert len(together.us) == len(subject)
    assert min(together.us, default=0.0) >= 0
    assert sum(together.us) <= sum(apart.us) + 1e-6


class Apart(Plain):
    """The same machine, if it fused nothing."""

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        return Toy().op_us(op, inputs)
