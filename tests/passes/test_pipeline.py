from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.analysis.texts import program
from weft import pipeline
from weft.errors import OptionError, PassError, VerifyError
from weft.ir import Program, parse, print_program
from weft.passes import Context, Plan, Remark, pass_text
from weft.passes.base import fingerprint
from weft.passes.hoist_starts import HoistStarts
from weft.passes.sink_waits import SinkWaits

STEP = program("""
    %x: f32[2] = input()
    %s: f32[2] = all_reduce.start(%x) sum over g
    %f: f32[2] = wait(%s)
    %y: f32[2] = aten.neg.default(%x)
    return %y, %f
""")


@dataclass(frozen=True)
class Forgetful:
    """Loses the last output, and is unsafe for that."""

    name: ClassVar[str] = "forgetful"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    def plan(self, program: Program, context: Context) -> Plan:
        return Plan(pass_text(self), fingerprint(program), ())

    def apply(self, program: Program, plan: Plan) -> Program:
        return replace(program, outputs=program.outputs[:-1])


@dataclass(frozen=True)
class Swapping(Forgetful):
    """Issues two collectives in another order, and says so or not."""

    name: ClassVar[str] = "swapping"

    def apply(self, program: Program, plan: Plan) -> Program:
        (a, b), rest = program.starts, [op for op in program.ops if not op.is_start and not op.is_input]
        return replace(program, ops=(*program.inputs, b, a, *rest))


@dataclass(frozen=True)
class SwappingOpenly(Swapping):
    reorders: ClassVar[bool] = True


def test_without_passes_the_program_comes_out_as_it_went_in() -> None:
    result = pipeline.run(STEP, [])
    assert (result.program, result.stages, result.remarks) == (STEP, (), ())


def test_every_pass_is_a_stage_with_its_plan_its_program_and_its_times() -> None:
    watched: list[pipeline.Stage] = []
    result = pipeline.run(STEP, [SinkWaits(), HoistStarts("g")], watch=watched.append)
    assert tuple(watched) == result.stages
    assert [stage.plan.pass_text for stage in result.stages] == ["sink_waits", 'hoist_starts{group="g"}']
    assert [stage.program.history for stage in result.stages] == [
        ("sink_waits",),
        ("sink_waits", 'hoist_starts{group="g"}'),
    ]
    assert result.program is result.stages[-1].program
    assert result.remarks == result.stages[0].plan.remarks + result.stages[1].plan.remarks
    assert all(min(stage.plan_s, stage.apply_s, stage.verify_s) >= 0 for stage in result.stages)


def test_barriers_are_remarked_on_once_before_the_passes() -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = vendor.mystery.default(%x)
        %b: f32[2] = vendor.exchange.default(%x) {communicates, barrier}
        return %a, %b
    """)
    assert pipeline.run(subject, [SinkWaits(), SinkWaits()]).remarks == (
        Remark("import", "a", "note", "vendor.mystery.default is unknown to Weft: nothing moves across it"),
        Remark(
            "import",
            "b",
            "note",
            "vendor.exchange.default communicates in a way that Weft does not know: nothing moves across it",
        ),
    )


def test_a_pass_whose_result_is_unsafe_is_named_and_leaves_a_reproducer(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught:
        pipeline.run(STEP, [SinkWaits(), Forgetful()], reproducers=tmp_path)
    error = caught.value
    (written,) = tmp_path.iterdir()
    assert (error.pass_text, error.reproducer) == ("forgetful", str(written))
    assert isinstance(error.cause, VerifyError)
    assert error.__cause__ is error.cause
    text = written.read_text()
    assert pipeline.read_replay(text) == "forgetful"
    assert parse(text) == pipeline.run(STEP, [SinkWaits()]).program


def test_an_unsafe_result_passes_where_nobody_verifies() -> None:
    assert len(pipeline.run(STEP, [Forgetful()], verify_each=False).program.outputs) == 1


def test_an_option_that_does_not_fit_the_program_is_no_failure_of_the_pass(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^there is no group 'dp'; this program has: g$"):
        pipeline.run(STEP, [SinkWaits("dp")], reproducers=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_a_pass_that_says_so_may_reorder_a_group(tmp_path: Path) -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = all_reduce.start(%x) sum over g
        %b: f32[2] = all_reduce.start(%x) max over g
        %fa: f32[2] = wait(%a)
        %fb: f32[2] = wait(%b)
        return %fa, %fb
    """)
    with pytest.raises(PassError, match="group_order: %b was issued after %a in group g, and now comes before it"):
        pipeline.run(subject, [Swapping()], reproducers=tmp_path)
    assert [op.name for op in pipeline.run(subject, [SwappingOpenly()]).program.starts] == ["b", "a"]


def test_reproducers_have_names_of_their_own_and_need_a_place_that_can_be_written(tmp_path: Path) -> None:
    first = pipeline.write_reproducer(STEP, "sink_waits", tmp_path)
    assert first == pipeline.write_reproducer(STEP, "sink_waits", tmp_path)
    assert first != pipeline.write_reproducer(STEP, "hoist_starts", tmp_path)
    assert pipeline.write_reproducer(STEP, "sink_waits", tmp_path / "missing") is None


@pytest.mark.parametrize("text", ["sink_waits", "a,b", 'a{group="it\'s"}', "a{x=[1, 2]}", 'a{s="\\n $HOME `x` é"}'])
def test_any_pipeline_can_be_replayed(tmp_path: Path, text: str) -> None:
    written = pipeline.write_reproducer(STEP, text, tmp_path)
    assert written is not None
    content = Path(written).read_text(encoding="utf-8")
    assert pipeline.read_replay(content) == text
    assert content.split("\n", 1)[1] == print_program(STEP)


@pytest.mark.parametrize(
    "text",
    ["", "weft 1", "# weft verify", "# weft opt -p", "# weft opt -p a b", "# weft opt -p 'a", "x# weft opt -p a"],
)
def test_what_is_no_reproducer_names_no_pipeline(text: str) -> None:
    assert pipeline.read_replay(text) is None
