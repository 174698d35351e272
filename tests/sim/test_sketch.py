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
