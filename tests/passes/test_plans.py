from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from weft.errors import PlanError
from weft.ir import Program
from weft.passes import Context, Plan, Remark, Step
from weft.passes.base import fingerprint
from weft.passes.hoist_starts import HoistStarts
from weft.passes.sink_waits import SinkWaits

TEXT = """
    %x: f32[2] = input()
    %ar: f32[2] = all_reduce.start(%x) sum over g
    %f: f32[2] = wait(%ar)
    %a: f32[2] = aten.neg.default(%x)
    return %a, %f
"""
PROGRAM = program(TEXT)


def plan_of(subject: Program) -> Plan:
    return SinkWaits().plan(subject, Context.of(subject))


def test_a_plan_is_plain_json() -> None:
    plan = plan_of(PROGRAM)
    assert json.loads(plan.to_json()) == {
        "weft_plan": 1,
        "pass": "sink_waits",
        "program": fingerprint(PROGRAM),
        "steps": [{"verb": "move", "ops": ["f"], "detail": {"before": ""}}],
    }
    assert " " not in plan.to_json()


def test_a_plan_survives_json_without_its_remarks() -> None:
    plan = plan_of(PROGRAM)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.hash == plan.hash
    assert (len(plan.remarks), len(again.remarks)) == (1, 0)
    assert SinkWaits().apply(PROGRAM, again) == SinkWaits().apply(PROGRAM, plan)


details = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
steps = st.builds(Step, st.text(), st.lists(st.text()).map(tuple), st.dictionaries(st.text(), details))


@given(st.builds(Plan, st.text(), st.text(), st.lists(steps).map(tuple)))
def test_any_plan_survives_json(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.hash == plan.hash
    assert repr(again.steps) == repr(Plan.from_json(again.to_json()).steps)


HASHING = """
import sys
from weft import parse, pipeline
from weft.passes import PASSES, parse_pipeline
result = pipeline.run(parse(sys.stdin.read()), parse_pipeline("sink_waits,hoist_starts", PASSES))
print(*(stage.plan.hash for stage in result.stages))
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    def hashes(seed: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", HASHING],
            input=str(PROGRAM),
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout

    found = {hashes(seed) for seed in ("0", "1", "4242")}
    assert len(found) == 1
    assert found.pop().split()[0] == plan_of(PROGRAM).hash


def test_the_hash_tells_plans_apart_and_not_remarks() -> None:
    plan = plan_of(PROGRAM)
    assert replace(plan, remarks=()).hash == plan.hash
    assert replace(plan, pass_text="hoist_starts").hash != plan.hash
    assert replace(plan, program="other").hash != plan.hash
    assert replace(plan, steps=()).hash != plan.hash


GOOD: dict[str, Any] = {"weft_plan": 1, "pass": "sink_waits", "program": "0", "steps": []}
STEP: dict[str, Any] = {"verb": "move", "ops": ["f"], "detail": {"before": "y"}}
WRONG_VERSION = "this is not a plan of version 1, the only one that this Weft reads"


def without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], WRONG_VERSION),
        ("plan", WRONG_VERSION),
        (None, WRONG_VERSION),
        (without(GOOD, "weft_plan"), WRONG_VERSION),
        (GOOD | {"weft_plan": 2}, WRONG_VERSION),
        (GOOD | {"weft_plan": "1"}, WRONG_VERSION),
        (GOOD | {"weft_plan": True}, WRONG_VERSION),
        (without(GOOD, "pass"), "this plan lacks 'pass', or it is not a string"),
        (without(GOOD, "program"), "this plan lacks 'program', or it is not a string"),
        (GOOD | {"pass": 7}, "this plan lacks 'pass', or it is not a string"),
        (GOOD | {"program": None}, "this plan lacks 'program', or it is not a string"),
        (without(GOOD, "steps"), "this plan has no list of steps"),
        (GOOD | {"steps": {"verb": "move"}}, "this plan has no list of steps"),
        (GOOD | {"steps": ["move"]}, "this plan has a step that cannot be read: move"),
        (GOOD | {"steps": [without(STEP, "verb")]}, "this plan has a step that cannot be read: "),
        (GOOD | {"steps": [STEP | {"verb": 1}]}, "this plan has a step that cannot be read: "),
        (GOOD | {"steps": [STEP | {"ops": "f"}]}, "this plan has a step that cannot be read: "),
        (GOOD | {"steps": [STEP | {"ops": [1]}]}, "this plan has a step that cannot be read: "),
        (GOOD | {"steps": [STEP | {"detail": []}]}, "this plan has a step that cannot be read: "),
        (GOOD | {"steps": [STEP | {"detail": {"before": ["y"]}}]}, "this plan has a step that cannot be read: "),
    ],
    ids=str,
)
def test_json_that_is_no_plan_is_refused(content: object, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(content))
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "{", "weft 1", "\x00", '{"weft_plan": 1', "[" * 200_000, "9" * 10_000])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"^this plan is not JSON: "):
        Plan.from_json(text)


OTHERS = {
    "another name": TEXT.replace("%a", "%b"),
    "another target": TEXT.replace("neg", "relu"),
    "another order": TEXT.replace("    %a: f32[2] = aten.neg.default(%x)\n", "").replace(
        "    %ar:", "    %a: f32[2] = aten.neg.default(%x)\n    %ar:"
    ),
    "another use": TEXT.replace("aten.neg.default(%x)", "aten.neg.default(%f)"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_plan_is_refused_by_another_program(other: str) -> None:
    with pytest.raises(PlanError, match=r"^the plan of sink_waits was made for another program \([0-9a-f]{16}\)$"):
        SinkWaits().apply(program(other), plan_of(PROGRAM))


def test_a_plan_fits_the_same_program_with_other_sizes_on_another_rank() -> None:
    other = program(TEXT.replace("f32[2]", "f32[3]"), "group g = 4, 5\n")
    assert [op.name for op in SinkWaits().apply(other, plan_of(PROGRAM)).ops] == ["x", "ar", "a", "f"]
    assert plan_of(other).hash == plan_of(PROGRAM).hash


def moving(*made: Step) -> Plan:
    return Plan("by_hand", fingerprint(PROGRAM), made)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("move", ("nothing",), {"before": "a"}), "the plan moves %nothing, which this program does not have"),
        (
            Step("move", ("f",), {"before": "nothing"}),
            "not a move, or one to a place that this program does not have: move f before=nothing",
        ),
        (
            Step("move", ("f",), {"after": ""}),
            "not a move, or one to a place that this program does not have: move f after=",
        ),
        (Step("move", ("f",)), "not a move, or one to a place that this program does not have: move f"),
        (
            Step("merge", ("f",), {"before": "a"}),
            "not a move, or one to a place that this program does not have: merge f before=a",
        ),
        (
            Step("move", ("f",), {"before": "a", "after": "x"}),
            "not a move, or one to a place that this program does not have: move f before=a after=x",
        ),
    ],
    ids=str,
)
def test_a_step_that_cannot_be_carried_out_is_refused(step: Step, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        SinkWaits().apply(PROGRAM, moving(step))
    assert str(caught.value) == message


def test_moves_go_directly_before_and_after_in_the_order_of_the_steps() -> None:
    ops = program("""
        %x: f32[2] = input()
        %a: f32[2] = aten.neg.default(%x)
        %b: f32[2] = aten.neg.default(%x)
        %c: f32[2] = aten.neg.default(%x)
        %d: f32[2] = aten.neg.default(%x)
        %e: f32[2] = aten.neg.default(%x)
    """)
    made = [
        Step("move", ("e", "d"), {"before": "b"}),
        Step("move", ("a",), {"after": "b"}),
        Step("move", ("b",), {"before": ""}),
    ]
    moved = HoistStarts().apply(ops, Plan("by_hand", fingerprint(ops), tuple(made)))
    assert [op.name for op in moved.ops] == ["x", "e", "d", "a", "c", "b"]
    assert moved.history == ("by_hand",)


def test_remarks_and_steps_read_well() -> None:
    assert str(Remark("sink_waits", "f", "done", "moved")) == "sink_waits: done: %f: moved"
    assert str(Step("move", ("a", "b"), {"before": "c", "far": True})) == "move a b before=c far=True"
