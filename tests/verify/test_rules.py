"""What the text form cannot say, and what must hold of any program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import Kind, dependencies
from weft.errors import VerifyError
from weft.ir import Collective, Editor, Group, Op, Program, Ref, TensorSpec
from weft.verify import verify, violations

REDUCED = program("""
    %x: f32[2] = input()
    %ar: f32[2] = all_reduce.start(%x) sum over g
    %f: f32[2] = wait(%ar)
    return %f
""")


def messages(before: Program, after: Program | None = None) -> list[str]:
    return [f"{found.rule}: {found.message}" for found in violations(before, after)]


def with_op(before: Program, op: Op) -> Program:
    """The program with `op` in the place of the one of its name."""
    return replace(before, ops=tuple(op if old.name == op.name else old for old in before.ops))


def with_comm(comm: Collective | None) -> Program:
    return with_op(REDUCED, replace(REDUCED["ar"], comm=comm))


def test_a_start_without_a_group_is_rejected() -> None:
    assert messages(with_comm(None)) == [
        "collectives_complete: %ar is a start and does not say over which group",
        "starts_waited: %f waits for something that no start made, or that was waited for already",
    ]


def test_a_start_of_another_kind_than_its_target_is_rejected() -> None:
    assert messages(with_comm(Collective("all_gather", Group("g", (0, 1))))) == [
        "collectives_complete: %ar is said to be all_gather, and its target all_reduce.start is not that"
    ]


def test_an_empty_group_is_rejected() -> None:
    assert messages(with_comm(Collective("all_reduce", Group("g", ()), "sum"))) == [
        "collectives_complete: %ar uses the group g, which is empty or names a rank twice"
    ]


def test_one_name_for_two_groups_is_rejected() -> None:
    comm = Collective("all_reduce", Group("g", (2, 3)), "sum")
    other = replace(REDUCED["ar"], name="other", comm=comm)
    done = replace(REDUCED["f"], name="done", args=(Ref("other"),))
    assert messages(replace(REDUCED, ops=(*REDUCED.ops, other, done))) == [
        "collectives_complete: %other uses a group g of other ranks than the ops before it"
    ]


def test_verify_raises_and_lists_every_violation() -> None:
    broken = program("""
        %x: f32[2] = input()
        %ar: f32[2] = all_reduce.start(%x) sum over g
        %y: f32[3] = aten.neg.default(%x)
    """)
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert [getattr(found, "rule", None) for found in caught.value.violations] == ["starts_waited", "shapes"]
    assert str(caught.value) == (
        "2 violations\n"
        "\n"
        "starts_waited: %ar is never waited for\n"
        "        0 | %x: f32[2] = input()\n"
        "  >     1 | %ar: f32[2] = all_reduce.start(%x) sum over g\n"
        "        2 | %y: f32[3] = aten.neg.default(%x)\n"
        "\n"
        "shapes: %y (aten.neg.default) should be f32[2], and says f32[3]\n"
        "        0 | %x: f32[2] = input()\n"
        "        1 | %ar: f32[2] = all_reduce.start(%x) sum over g\n"
        "  >     2 | %y: f32[3] = aten.neg.default(%x)"
    )


def test_an_excerpt_shows_two_ops_on_each_side_and_cuts_long_ones() -> None:
    values = ", ".join(f"%x{i}" for i in range(40))
    inputs = "\n".join(f"    %x{i}: f32[1] = input()" for i in range(40))
    (found,) = violations(program(f"{inputs}\n    %y: f32[7] = aten.cat.default([{values}])"))
    lines = found.excerpt.split("\n")
    assert [line[:11] for line in lines] == ["       38 |", "       39 |", "  >    40 |"]
    assert max(map(len, lines)) == len("  >    40 | ") + 160
    assert lines[-1].endswith("…")


def test_a_broken_original_is_reported_and_not_compared() -> None:
    twice = program("""
        %x: f32[2] = input()
        %x: f32[2] = input()
    """)
    assert messages(twice, REDUCED) == ["unique_names: in the original, the name %x is taken twice"]


def test_an_op_replaced_under_its_own_name_must_say_so() -> None:
    editor = Editor(REDUCED)
    editor.replace(replace(REDUCED["f"], target="aten.alias.default"))
    assert "arguments_kept" in {found.rule for found in violations(REDUCED, editor.finish("careless"))}


def test_floats_that_are_not_numbers_are_the_same_argument() -> None:
    def filled(value: float) -> Program:
        return Program((Op("x", "aten.full.default", ((2,), value), {}, (TensorSpec((2,), "f32"),)),), (Ref("x"),))

    assert messages(filled(float("nan")), filled(float("nan"))) == []
    assert messages(filled(0.0), filled(-0.0)) == [
        "arguments_kept: %x was another op before: %x: f32[2] = aten.full.default([2], 0.0)"
    ]


@pytest.mark.parametrize("count", [3000])
def test_a_program_that_stands_on_its_head_is_reported_in_linear_time(count: int) -> None:
    chain = "\n".join(f"%a{i}: f32[2] = aten.neg.default(%a{i + 1})" for i in range(count))
    found = violations(program(f"{chain}\n%a{count}: f32[2] = input()"))
    assert len(found) == count
    assert found[0].message == "%a0 uses %a1, which is defined only later"


# Cycles, against every path there is


@st.composite
def tangles(draw: st.DrawFn) -> Program:
    """A few ops that use whichever values they like."""
    count = draw(st.integers(1, 7))
    names = [f"v{i}" for i in range(count)]
    uses = st.lists(st.sampled_from(names), max_size=3)
    ops = [
        Op(name, "aten.cat.default", (tuple(map(Ref, draw(uses))),), {}, (TensorSpec((1,), "f32"),)) for name in names
    ]
    return Program(tuple(ops))


def reachable(tangle: Program, start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        fresh = {ref.name for ref in tangle[todo.pop()].refs()} - found
        found |= fresh
        todo += fresh
    return found


@given(tangles())
def test_a_use_is_called_a_cycle_if_and_only_if_it_is_on_one(tangle: Program) -> None:
    expected = []
    for position, op in enumerate(tangle.ops):
        for name in dict.fromkeys(ref.name for ref in op.refs()):
            if name == op.name:
                expected.append(f"%{name} uses its own value: a cycle")
            elif tangle.index[name] > position:
                loop = ": a cycle" if op.name in reachable(tangle, name) else ""
                expected.append(f"%{op.name} uses %{name}, which is defined only later{loop}")
    assert [found.message for found in violations(tangle) if found.rule == "defined_before_use"] == expected


# Orders, against the dependencies

everything = programs(random=True, barriers=True, mutate_inputs=True)


def swapped(before: Program, first: int) -> Program:
    ops = list(before.ops)
    ops[first : first + 2] = reversed(ops[first : first + 2])
    return replace(before, ops=tuple(ops))


@given(everything)
def test_swapping_two_neighbours_is_refused_if_they_depend_on_each_other_and_else_allowed(before: Program) -> None:
    known = dependencies(before)
    in_flight = {(one, other) for one, other, kind in known.order if kind is Kind.IN_FLIGHT}
    for second in range(1, len(before)):
        one, other = before.ops[second - 1 : second + 1]
        if (one.is_input and other.is_input) or (second - 1, second) in in_flight:
            continue  # the order of inputs is their meaning; waits may be moved in ways that dependencies rule out
        same_group = one.comm is not None and other.comm is not None and one.comm.group == other.comm.group
        bound = second - 1 in known.before[second] or same_group
        assert bool(violations(before, swapped(before, second - 1))) == bound, f"%{one.name} and %{other.name}"


@st.composite
def reordered(draw: st.DrawFn) -> tuple[Program, Program]:
    """A program, and the same in another order that keeps its dependencies and the order of its groups."""
    before = draw(everything)
    needed = [set(earlier) for earlier in dependencies(before).before]
    last: dict[object, int] = {}
    for position, op in enumerate(before.ops):
        kind = "input" if op.is_input else op.comm.group if op.comm is not None else None
        if kind is not None:
            needed[position] |= {last[kind]} if kind in last else set()
            last[kind] = position
    order: list[int] = []
    while len(order) < len(before):
        ready = [i for i in range(len(before)) if i not in order and needed[i] <= set(order)]
        order.append(draw(st.sampled_from(ready)))
    return before, replace(before, ops=tuple(before.ops[position] for position in order))


@given(reordered())
def test_any_order_that_keeps_the_dependencies_is_safe(pair: tuple[Program, Program]) -> None:
    verify(*pair)


@given(everything, st.data())
def test_a_lost_op_is_missed_unless_it_is_pure_and_nobody_uses_it(before: Program, data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(before.ops))
    used = {ref.name for other in before.ops for ref in other.refs()} | {
        output.name for output in before.outputs if isinstance(output, Ref)
    }
    without = replace(before, ops=tuple(other for other in before.ops if other is not op))
    waits = [other for other in before.ops if other.is_wait and other.args == op.args]
    if len(waits) > 1:
        return  # whether the other comes in time is for the rules on collectives in flight to say
    needed = op.name in used or op.has_effect or op.is_input or op.is_wait
    assert bool(violations(before, without)) == needed, str(before)
