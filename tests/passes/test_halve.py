"""`halve` and `micro_pipeline` on any program: what cannot be cut is refused, and all else computes the same."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import weft
from tests.passes.test_micro_pipeline import COST, apart, golden, numbers, results
from tests.programs import programs, world_of
from weft import PlanError, pipeline
from weft.ir import Program
from weft.passes import Context, Pass, Plan
from weft.passes.halve import Halve
from weft.passes.micro_pipeline import MicroPipeline


def in_doubles(subject: Program) -> Program:
    """The program with f64 for every other dtype: there, small whole numbers stay exact through all matmuls."""
    return weft.parse(re.sub(r"\b(f32|bf16)\b", "f64", str(subject)))


@given(
    programs(steps=(10, 40)).map(in_doubles), st.sampled_from([2, 4]), st.booleans(), st.sampled_from(["early", "late"])
)
def test_halves_and_chunks_compute_the_same(subject: Program, chunks: int, sum_chunks: bool, reads: Any) -> None:
    passes: list[Pass] = [Halve(always=True), MicroPipeline(always=True, chunks=chunks, sum_chunks=sum_chunks)]
    made = pipeline.run(subject, passes, cost=COST)
    event(f"{len(made.stages[-1].plan.steps)} cut")
    values = numbers(subject, world_of(subject))
    expected, found = results(subject, values), results(made.program, values, reads)
    assert not expected or apart(expected, found) == 0.0


@given(programs(random=True, barriers=True))
def test_every_collective_gets_a_remark(subject: Program) -> None:
    for one in (Halve(always=True), MicroPipeline(always=True)):
        plan = one.plan(subject, Context.of(subject, COST))
        meant = [op.name for op in subject.starts if one.name != "halve" or (op.comm and op.comm.kind == "all_reduce")]
        assert sorted(remark.op for remark in plan.remarks) == sorted(meant)


def test_a_plan_from_json_gives_the_same_program() -> None:
    subject, _ = golden("halve__then_micro_pipeline")
    plan = Halve(always=True).plan(subject, Context.of(subject))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert Halve(always=True).apply(subject, again) == Halve(always=True).apply(subject, plan)


def test_a_plan_for_another_program_is_refused() -> None:
    subject, _ = golden("halve__then_micro_pipeline")
    other, _ = golden("halve__as_rows")
    plan = Halve(always=True).plan(subject, Context.of(subject))
    with pytest.raises(PlanError, match="was made for another program"):
        Halve(always=True).apply(other, plan)


@pytest.mark.parametrize("change", [{"ops": ("y",)}, {"ops": ("nobody",)}, {"ops": ("r", "r")}, {"verb": "cut"}])
def test_a_step_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    subject, _ = golden("halve__then_micro_pipeline")
    plan = Halve(always=True).plan(subject, Context.of(subject))
    with pytest.raises(PlanError, match="this cannot be halved in this program"):
        Halve().apply(subject, replace(plan, steps=(replace(plan.steps[0], **change),)))
