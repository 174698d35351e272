"""What must hold of `sink_waits` and `hoist_starts` on any program. The goldens show each behaviour and refusal."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.programs import programs
from weft import pipeline
from weft.analysis import ancestors
from weft.errors import OptionError
from weft.ir import Program
from weft.passes import PASSES, Context, Pass, Plan, Remark, parse_pipeline

everything = programs(random=True, barriers=True, mutate_inputs=True)
passes = pytest.mark.parametrize("name", ["sink_waits", "hoist_starts"])


def made_by(one: Pass, subject: Program) -> tuple[Program, Plan]:
    (stage,) = pipeline.run(subject, [one]).stages
    return stage.program, stage.plan


def names(subject: Program) -> list[str]:
    return [op.name for op in subject.ops]


@passes
@given(subject=everything)
def test_the_second_time_changes_nothing(name: str, subject: Program) -> None:
    once, _ = made_by(PASSES[name](), subject)
    twice, plan = made_by(PASSES[name](), once)
    assert names(twice) == names(once)
    assert plan.steps == ()
    assert {remark.verdict for remark in plan.remarks} <= {"refused"}


@passes
@given(subject=everything)
def test_only_what_a_step_names_is_moved_and_every_remark_counts_right(name: str, subject: Program) -> None:
    made, plan = made_by(PASSES[name](), subject)
    moved = set(chain.from_iterable(step.ops for step in plan.steps))
    assert [op for op in names(made) if op not in moved] == [op for op in names(subject) if op not in moved]
    for remark in plan.remarks:
        past = passed(remark.op, subject, made, upwards=name == "hoist_starts")
        words = f" past {past} op" + ("s" if past != 1 else "")
        assert (f"{words}," in remark.message) if past else remark.verdict == "refused", str(remark)


def passed(op: str, before: Program, after: Program, upwards: bool) -> int:
    """How many ops it has overtaken."""
    here, there = before.index[op], after.index[op]
    crossed = before.ops[:here] if upwards else before.ops[here:]
    return sum((after.index[other.name] < there) != upwards for other in crossed if other.name != op)


@given(everything)
def test_there_is_one_remark_for_each_wait_and_each_start(subject: Program) -> None:
    result = pipeline.run(subject, parse_pipeline("sink_waits,hoist_starts", PASSES))
    sunk, hoisted = (stage.plan.remarks for stage in result.stages)
    assert [remark.op for remark in sunk] == [op.name for op in subject.ops if op.is_wait]
    assert [remark.op for remark in hoisted] == [op.name for op in subject.starts]


@given(everything)
def test_a_wait_that_was_sunk_cannot_go_farther(subject: Program) -> None:
    made, _ = made_by(PASSES["sink_waits"](), subject)
    is_ancestor = ancestors(made)
    for position in (made.index[op.name] for op in made.ops if op.is_wait):
        others = (other for other in range(position + 1, len(made)) if not made.ops[other].traits.is_view)
        following = next(others, None)
        assert following is None or is_ancestor(position, following)


@given(everything)
def test_a_start_that_was_hoisted_cannot_go_farther(subject: Program) -> None:
    made, _ = made_by(PASSES["hoist_starts"](), subject)
    is_ancestor = ancestors(made)
    for position in (made.index[op.name] for op in made.starts):
        above = next(other for other in reversed(range(position)) if not made.ops[other].is_start)
        # One of those that stand there holds up the ones behind it, by the order of its group.
        together = range(above + 1, position + 1)
        assert made.ops[above].is_input or any(is_ancestor(above, start) for start in together)


@passes
@given(subject=programs(world=2), data=st.data())
def test_with_a_group_only_that_group_is_moved(name: str, subject: Program, data: st.DataObject) -> None:
    if not subject.groups:
        return
    group = data.draw(st.sampled_from(subject.groups)).name
    (one,) = parse_pipeline(f'{name}{{group="{group}"}}', PASSES)
    made, plan = made_by(one, subject)
    assert made.history == (f'{name}{{group="{group}"}}',)
    others = [op.name for op in subject.ops if op.is_start and op.comm is not None and op.comm.group.name != group]
    assert not set(others) & {op for step in plan.steps for op in step.ops}
    assert not set(others) & {remark.op for remark in plan.remarks}


@passes
def test_a_program_without_collectives_stays_as_it_is(name: str) -> None:
    subject = program("%x: f32[2] = input()\n%y: f32[2] = aten.neg.default(%x)\nreturn %y")
    made, plan = made_by(PASSES[name](), subject)
    assert (made.ops, plan.steps, plan.remarks) == (subject.ops, (), ())


@passes
def test_an_empty_program_stays_as_it_is(name: str) -> None:
    made, plan = made_by(PASSES[name](), program("return"))
    assert (made.ops, plan.steps, plan.remarks) == ((), (), ())


@passes
def test_an_unknown_group_is_an_error_that_lists_those_that_there_are(name: str) -> None:
    subject = program("""
        %x: f32[4] = input()
        %a: f32[4] = all_reduce.start(%x) sum over four
        %fa: f32[4] = wait(%a)
        %b: f32[4] = all_reduce.start(%x) sum over g
        %fb: f32[4] = wait(%b)
    """)
    (one,) = parse_pipeline(f"{name}{{group=dp}}", PASSES)
    with pytest.raises(OptionError, match=r"^there is no group 'dp'; this program has: four, g$"):
        pipeline.run(subject, [one])


def test_a_start_without_inputs_is_left_where_it_is() -> None:
    # Not a valid program, and no reason to fail: `verify` has the say.
    subject = program("""
        %a: f32[2] = aten.zeros.default([2])
        %s: () = all_reduce.start([]) sum over g
        %t: () = all_reduce.start([]) sum over g
    """)
    plan = PASSES["hoist_starts"]().plan(subject, Context.of(subject))
    assert plan.steps == ()
    assert plan.remarks == (
        Remark("hoist_starts", "s", "refused", "stays where it is, after the inputs of the program"),
        Remark("hoist_starts", "t", "refused", "stays where it is, after %s, the collective before it in group g"),
    )
