"""What must hold of `gather_once` on any program, and what it does to a step that is optimised. The goldens show it."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import weft
from tests.passes.test_dedupe import repetitive
from tests.values import assert_computes_the_same
from weft import pipeline
from weft.analysis import memory
from weft.cost import Machine
from weft.ir import Program
from weft.optimizer import PRESETS
from weft.passes import PASSES, make_pass

MACHINE = Machine.load("h100-eth100")


@given(repetitive(), st.integers(0, 4096))
def test_the_program_computes_the_same_within_the_limit(subject: Program, more: int) -> None:
    limit = memory(subject).peak_bytes + more
    one = make_pass(PASSES["gather_once"], {})
    result = pipeline.run(subject, [one], cost=MACHINE, memory_limit=limit)
    event(f"{len(result.stages[0].plan.steps)} steps")
    assert memory(result.program).peak_bytes <= limit
    assert_computes_the_same(subject, result.program)


def sharded(layers: int) -> Program:
    """Layers whose weights are gathered in the forward and again in the backward."""
    lines = ["weft 1", "group dp = 0..63", "", "%x0: bf16[4096,4096] = input()"]
    lines += [f"%w{layer}: bf16[64,4096] = input()" for layer in range(layers)]

    def multiplied(what: str, given: str, layer: int) -> str:
        lines.append(f"%{what}_g: bf16[4096,4096] = all_gather.start(%w{layer}) over dp  # layers.{layer}")
        lines.append(f"%{what}_w: bf16[4096,4096] = wait(%{what}_g)")
        lines.append(f"%{what}: bf16[4096,4096] = aten.mm.default(%{given}, %{what}_w)")
        return what

    last = "x0"
    for layer in range(layers):
        last = multiplied(f"x{layer + 1}", last, layer)
    for layer in reversed(range(layers)):
        last = multiplied(f"d{layer}", last, layer)
    return weft.parse("\n".join([*lines, f"return %{last}", ""]))


@pytest.mark.parametrize("increase", [0.0, 0.3, 1.0, 3.0])
def test_memory_that_is_left_makes_the_step_shorter(increase: float) -> None:
    program = sharded(8)
    peak = memory(program).peak_bytes
    found = weft.optimize(program, MACHINE, memory_limit=round((1 + increase) * peak))
    tight = weft.optimize(program, MACHINE, memory_limit=peak)
    assert found.after.peak_bytes <= (1 + increase) * peak
    assert len(found.program.starts) <= len(tight.program.starts)
    assert found.after.step_us < tight.after.step_us if increase else found.hash == tight.hash


@pytest.mark.parametrize("machine", ["h100-eth100", "h100-ib400", "gb200-nvl72"])
@pytest.mark.parametrize("room_mb", [35, 70, 105])
def test_memory_may_have_a_better_use(machine: str, room_mb: int) -> None:
    """It takes memory that a gather could be launched early with: the step is no longer than without."""
    program = sharded(8)
    limit = memory(program).peak_bytes + room_mb * 1_000_000
    others = ",".join(name for name in PRESETS["default"].split(",") if name != "gather_once")
    without = weft.optimize(program, machine, memory_limit=limit, passes=others)
    assert weft.optimize(program, machine, memory_limit=limit).after.step_us <= without.after.step_us
