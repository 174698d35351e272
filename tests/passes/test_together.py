"""Flights of several groups, moved to each other."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.programs import programs
from weft.cost import Machine
from weft.ir import Program, parse
from weft.passes.fitting_in import Limits, Placed, fitted
from weft.passes.placing import best_placement
from weft.passes.together import moved_together
from weft.sim import simulate
from weft.sim.contract import contract
from weft.sim.sketch import Placement, Run, Sketch

H100 = Machine.load("h100-ib400")

# %b could go at any time, and would go first; %a needs %w, and is of another group.
TWO = """weft 1
group near = 0..7
group far = 0, 8

%x: bf16[8192,8192] = input()
%v: bf16[4194304] = input()
%b: bf16[4194304] = all_reduce.start(%v) sum over far
%fb: bf16[4194304] = wait(%b)
%h: bf16[8192,8192] = aten.mm.default(%x, %x)
%a: bf16[8192,8192] = all_reduce.start(%h) sum over near
%fa: bf16[8192,8192] = wait(%a)
%i: bf16[8192,8192] = aten.mm.default(%x, %x)
%j: bf16[8192,8192] = aten.mm.default(%i, %x)
return %j, %fa, %fb
"""


def sketched(subject: Program) -> Sketch:
    return contract(subject, simulate(subject, H100).prices)


def early(sketch: Sketch) -> Placed:
    """Everything launched as soon as it can be, and waited for as late as it can be."""
    launch, wait = (tuple(getattr(piece, what) for piece in sketch.pieces) for what in ("ready", "used"))
    order = tuple(sorted(range(len(launch)), key=lambda number: (launch[number], number)))
    return fitted(sketch, Placement(launch, wait, order), Limits())


def at_once_us(run: Run) -> float:
    """For how long two are in flight."""
    (first, first_end), (second, second_end) = zip(run.begins, run.lands, strict=True)
    return max(0.0, min(first_end, second_end) - max(first, second))


def test_what_has_time_goes_when_another_group_sends() -> None:
    sketch = sketched(parse(TWO))
    alone = early(sketch)
    assert at_once_us(alone.run) == 0
    moved = moved_together(sketch, alone.placement, alone.run, [1e9, 1e9], "far")
    together = fitted(sketch, moved, Limits()).run
    assert at_once_us(together) == min(
        land - begin for begin, land in zip(together.begins, together.lands, strict=True)
    )
    assert together.step_us < alone.run.step_us
    assert best_placement(sketch, Limits()).run.step_us <= together.step_us


@given(programs(steps=(6, 24)), st.booleans())
def test_a_group_keeps_its_order_and_all_stay_in_their_windows(subject: Program, first: bool) -> None:
    sketch = sketched(subject)
    groups = sorted({piece.group for piece in sketch.pieces})
    assume(len(groups) > 1)
    placed, group = early(sketch), groups[0 if first else -1]
    moved = moved_together(sketch, placed.placement, placed.run, placed.run.lands, group)
    for number, piece in enumerate(sketch.pieces):
        assert piece.ready <= moved.launch[number] <= piece.due
        assert moved.wait[number] >= moved.launch[number]
        assert piece.group == group or moved.launch[number] == placed.placement.launch[number]
    of_group = [
        [number for number in one.order if sketch.pieces[number].group == group] for one in (placed.placement, moved)
    ]
    assert of_group[0] == of_group[1]
