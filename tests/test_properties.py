"""What must hold for any program whatsoever, and any pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.programs import programs
from tests.values import bits, inputs
from weft import pipeline
from weft.analysis import memory
from weft.cost import Machine
from weft.ir import Program
from weft.passes import PASSES, Pass, Plan
from weft.run import virtual

COST = Machine.load("h100-ib400")


def pipelines_of(names: Iterable[str]) -> st.SearchStrategy[list[Pass]]:
    return st.lists(st.sampled_from(sorted(names)).map(lambda name: PASSES[name]()), min_size=1, max_size=4)


pipelines = pipelines_of(PASSES)
# On virtual ranks, reductions are exact in any bucket; what is added before it is reduced is rounded otherwise.
exact_pipelines = pipelines_of(PASSES.keys() - {"merge_sums"})


@given(programs())
def test_generated_programs_are_valid(program: Program) -> None:
    weft.verify(program)
    weft.verify(program, program)


@given(programs(random=True, barriers=True), pipelines)
def test_verify_holds_after_any_pipeline(program: Program, passes: list[Pass]) -> None:
    made = pipeline.run(program, passes, cost=COST).program  # verified after each pass
    weft.verify(program, made, reorders=True)


@given(programs(), exact_pipelines, st.sampled_from(["early", "late"]))
def test_outputs_and_inputs_end_up_the_same_on_virtual_ranks(program: Program, passes: list[Pass], reads: Any) -> None:
    made = pipeline.run(program, passes, cost=COST).program
    given_before, given_after = inputs(program), inputs(program)
    assert bits(virtual(made, given_after, reads=reads)) == bits(virtual(program, given_before))
    assert bits(given_after) == bits(given_before)


@given(programs(random=True, barriers=True), pipelines)
def test_plans_are_deterministic_and_replay(program: Program, passes: list[Pass]) -> None:
    first = pipeline.run(program, passes, cost=COST)
    again = pipeline.run(weft.parse(str(program)), passes, cost=COST)
    assert [stage.plan.hash for stage in first.stages] == [stage.plan.hash for stage in again.stages]
    replayed = program
    for one, stage in zip(passes, first.stages, strict=True):
        replayed = one.apply(replayed, Plan.from_json(stage.plan.to_json()))
    assert replayed == first.program


@given(programs())
def test_memory_is_never_negative_and_ends_with_what_is_kept(program: Program) -> None:
    known = memory(program)
    assert min(known.bytes_at, default=0) >= 0
    assert known.peak_bytes >= sum(op.out[0].nbytes for op in program.inputs)
