"""A sketch runs as the program does that it stands for, and takes no less memory than it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import weft
from tests.programs import programs
from weft.analysis import memory
from weft.analysis.windows import windows
from weft.cost import Machine, prices
from weft.ir import Program
from weft.passes.schedule import order_of
from weft.sim import simulate
from weft.sim.contract import contract
from weft.sim.sketch import Placement, Sketch

MACHINE = Machine.load("h100-ib400")


@st.composite
def placements(draw: st.DrawFn, sketch: Sketch) -> Placement:
    launch = [draw(st.integers(piece.ready, piece.due)) for piece in sketch.pieces]
    wait = [
        draw(st.integers(max(slot, piece.settled), piece.used))
        for piece, slot in zip(sketch.pieces, launch, strict=True)
    ]
    order = sorted(draw(st.permutations(range(len(launch)))), key=lambda number: launch[number])
    return Placement(tuple(launch), tuple(wait), tuple(order))


@given(programs(random=True, barriers=True), st.data())
def test_any_placement_is_the_program_that_it_stands_for(program: Program, data: st.DataObject) -> None:
    # One that is waited for again after its use stays where it is, and what it holds is only estimated.
    assume(all(one.settled < one.used for one in windows(program).values()))
    sketch = contract(program, prices(program, MACHINE))
    placement = data.draw(placements(sketch))
    made = replace(program, ops=tuple(program.ops[place] for place in order_of(sketch, placement)))
    weft.verify(program, made, reorders=True)
    assert sketch.run(placement).step_us == pytest.approx(simulate(made, MACHINE).step_us)
    assert memory(made).peak_bytes <= max(sketch.memory(placement), default=0)


def gradients(count: int, ranks: int, parameters: int = 0) -> Program:
    """Gradients in bf16, one made from the other, that are summed and cast; and parameters that lie there meanwhile."""
    lines = ["weft 1", f"group dp = 0..{ranks - 1}", "", "%x: bf16[64,64] = input()"]
    lines += [f"%p{number}: f32[64,64] = input()" for number in range(parameters)]
    for number in range(count):
        lines += [
            f"%g{number}: bf16[64,64] = aten.mm.default(%{f'g{number - 1}' if number else 'x'}, %x)",
            f"%s{number}: bf16[64,64] = all_reduce.start(%g{number}) sum over dp",
            f"%w{number}: bf16[64,64] = wait(%s{number})",
            f"%y{number}: f32[64,64] = aten._to_copy.default(%w{number}, dtype=f32)",
        ]
    return weft.parse("\n".join([*lines, "return " + ", ".join(f"%y{number}" for number in range(count)), ""]))


def casts(program: Program) -> int:
    return sum(op.target == "aten._to_copy.default" for op in program.ops)


@pytest.mark.parametrize("machine", ["h100-ib400", "h100-eth100", "gb200-nvl72"])
def test_casts_that_a_bucket_does_at_once_are_saved_behind_its_wait(machine: str) -> None:
    program = gradients(40, ranks=64)
    found = weft.optimize(program, machine, passes="bucket_auto")
    assert casts(found.program) <= 2
    (_, said) = (str(remark) for remark in found.remarks if remark.verdict == "done")
    assert said.endswith(f"save {_step_in_time(program, machine) - found.after.step_us:,.1f} us")


def test_small_gradients_are_copied_together_where_memory_must_not_grow() -> None:
    program = gradients(120, ranks=16, parameters=120)
    limit = int(1.05 * memory(program).peak_bytes)
    found = weft.optimize(program, "h100-ib400", passes="bucket_auto", memory_limit=limit)
    assert casts(found.program) <= 20
    assert found.after.peak_bytes <= limit


def _step_in_time(program: Program, machine: str) -> float:
    """The step if collectives are only launched when their time has come."""
    return weft.optimize(program, machine, passes="schedule").after.step_us


def hybrid_gradients(count: int) -> Program:
    """Gradients, one made from the other, that are scattered within nodes and then averaged between them."""
    lines = ["weft 1", "group shard = 0..7", "group replicate = 0..56 by 8", "", "%x: bf16[4096,4096] = input()"]
    for number in range(count):
        lines += [
            f"%g{number}: bf16[4096,4096] = aten.mm.default(%{f'g{number - 1}' if number else 'x'}, %x)",
            f"%s{number}: bf16[512,4096] = reduce_scatter.start(%g{number}) sum over shard",
            f"%t{number}: bf16[512,4096] = wait(%s{number})",
            f"%a{number}: bf16[512,4096] = all_reduce.start(%t{number}) sum over replicate",
            f"%w{number}: bf16[512,4096] = wait(%a{number})",
        ]
    return weft.parse("\n".join([*lines, "return " + ", ".join(f"%w{number}" for number in range(count)), ""]))


def test_who_sends_a_result_on_frees_it() -> None:
    program = hybrid_gradients(2)
    (*_, average) = contract(program, prices(program, MACHINE)).pieces
    assert average.comm.kind == "all_reduce"
    assert average.makes == average.frees == 512 * 4096 * 2
    assert not average.grows  # so it is launched when it is ready
