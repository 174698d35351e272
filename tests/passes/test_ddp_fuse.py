"""What must hold of `ddp_fuse` on any program. The goldens show each behaviour and refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import weft
from tests.capture import test_training_steps as steps
from tests.programs import programs
from tests.values import assert_computes_the_same, bits, inputs
from weft import OptionError, PlanError, pipeline
from weft.analysis.gradients import gradients, scaling
from weft.ir import Op, Program, Ref
from weft.passes import PASSES, Context, make_pass
from weft.passes.ddp_fuse import DdpFuse
from weft.run import virtual

caps = st.sampled_from([0, 0.0001, 0.001, 25])


@given(
    subject=programs(steps=(10, 40), mutate_inputs=True),
    mode=st.sampled_from(["concat", "coalesced"]),
    first_bucket_mb=caps,
    bucket_cap_mb=caps,
)
def test_the_fused_program_computes_the_same(subject: Program, **options: Any) -> None:
    result = pipeline.run(subject, [make_pass(PASSES["ddp_fuse"], options)])
    event(f"{len(subject.starts) - len(result.program.starts)} fewer")
    assert_computes_the_same(subject, result.program)


@given(programs())
def test_every_all_reduce_gets_a_remark_or_is_named_by_one(subject: Program) -> None:
    plan = DdpFuse().plan(subject, Context.of(subject))
    in_buckets = {name for step in plan.steps for name in step.ops}
    refused = {remark.op for remark in plan.remarks}
    assert {op.name for op in subject.starts} <= in_buckets | refused
    assert {name for name, why in gradients(subject).items() if why is not None}.isdisjoint(in_buckets)


@pytest.mark.parametrize("option", ["bucket_cap_mb", "first_bucket_mb"])
@pytest.mark.parametrize("value", [-1, math.nan, True, "25"])
def test_a_cap_is_a_number_of_megabytes(option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"ddp_fuse: {option} must be a number of megabytes, at least 0, not"):
        DdpFuse(**{option: value})


SCALED = {
    ("aten.div.Tensor", 4): 0.25,
    ("aten.mul_.Scalar", 0.5): 0.5,
    ("aten.div.Tensor", 0): None,
    ("aten.mul.Tensor", Ref("y")): None,
    ("aten.add.Scalar", 2): None,
    ("aten.mul.Scalar", True): None,
}


@pytest.mark.parametrize(("given", "factor"), SCALED.items())
def test_scaling(given: tuple[str, Any], factor: float | None) -> None:
    target, by = given
    assert scaling(Op("s", target, (Ref("x"), by))) == factor


def test_an_activation_that_goes_through_memory_is_no_gradient() -> None:
    program = weft.parse("""weft 1
group dp = 0..1
%x: f32[4,4] = input()
%own: f32[4,4] = aten.clone.default(%x)
%r: f32[4,4] = all_reduce.start(%x) avg over dp
%w: f32[4,4] = wait(%r)
%c: f32[4,4] = aten.copy_.default(%own, %w)
%y: f32[4,4] = aten.mm.default(%own, %own)
return %y
""")
    assert gradients(program) == {
        "r": "it is no average of gradients: its 64 bytes go on into %y (aten.mm.default)",
    }


def test_a_gradient_whose_parameter_is_used_by_the_next_step_is_one() -> None:
    program = weft.parse("""weft 1
group dp = 0..1
%x: f32[4,4] = input()
%r: f32[4,4] = all_reduce.start(%x) avg over dp
%w: f32[4,4] = wait(%r)
%c: f32[4,4] = aten.add_.Tensor(%x, %w)
%y: f32[4,4] = aten.mm.default(%x, %x)
return %y
""")
    assert gradients(program) == {"r": None}


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW, foreach", "AdamW, fused", "SGD, momentum"])
@pytest.mark.parametrize(
    ("function", "counts"),
    [(steps.step, (8, 1)), (steps.clipped, (8, 1)), (steps.accumulated, (16, 4))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_replicated_step_with_its_optimiser(optimizer: str, function: Any, counts: tuple[int, int]) -> None:
    make = steps.OPTIMIZERS[optimizer]
    program = steps.planned(function, make, "replicate")
    fused = pipeline.run(program, [DdpFuse()]).program
    # With two micro-batches the gradients of the first wait only until those of the second are added to them.
    assert (len(program.starts), len(fused.starts)) == counts
    steps.compare(fused, function, make, sharded=False)


SCALED_ALIKE = """weft 1
group pair = 0..1
%x: f32[4] = input()
%y: f32[2,2] = input()
%sx: f32[4] = aten.div.Tensor(%x, 2)
%rx: f32[4] = all_reduce.start(%sx) sum over pair
%wx: f32[4] = wait(%rx)
%sy: f32[2,2] = aten.div.Tensor(%y, 2)
%ry: f32[2,2] = all_reduce.start(%sy) sum over pair
%wy: f32[2,2] = wait(%ry)
return %wx, %wy
"""


def fused(text: str) -> list[str]:
    """The ops that scale after fusion, which computes the same on virtual ranks."""
    program = weft.parse(text)
    made = pipeline.run(program, [DdpFuse()]).program
    assert bits(virtual(made, inputs(made))) == bits(virtual(program, inputs(program)))
    return [op.name for op in made.ops if scaling(op) is not None]


def test_gradients_that_are_scaled_alike_are_scaled_in_the_buffer() -> None:
    assert fused(SCALED_ALIKE) == ["scaled"]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("aten.div.Tensor(%y, 2)", "aten.mul.Tensor(%y, 0.5)"),  # the same number by another op
        ("return %wx", "return %sx"),
        ("%wx: f32[4] = wait(%rx)\n", "%wx: f32[4] = wait(%rx)\n%z: f32[4] = aten.zero_.default(%x)\n"),
    ],
    ids=["another op", "used elsewhere", "written to before it is packed"],
)
def test_others_are_scaled_each_for_itself(line: str, instead: str) -> None:
    names = fused(SCALED_ALIKE.replace(line, instead))
    assert names == ["sx", "sy"]


def test_a_plan_that_says_scaled_of_what_is_not_is_refused() -> None:
    program = weft.parse(SCALED_ALIKE)
    plan = DdpFuse().plan(program, Context.of(program))
    other = weft.parse(SCALED_ALIKE.replace("%y, 2", "%y, 4"))
    with pytest.raises(PlanError, match="not scaled alike and copied into one buffer: rx, ry"):
        DdpFuse().apply(other, plan)
