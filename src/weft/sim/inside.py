"""Matmuls that wait for the collective inside them."""

from __future__ import annotations

from weft.analysis.kernels import input_specs
from weft.cost.fused import Steps, fused_steps
from weft.cost.machine import Machine
from weft.ir.text import counted
from weft.sim.reasons import Cause, Exposure
from weft.sim.timeline import Timeline
from weft.sim.units import time_text


def inside(timeline: Timeline) -> tuple[Exposure, ...]:
    """The ops with a collective inside them, in order, and for how long each of them does nothing but wait for it.

    Only a machine can tell: of any other cost model there are none.
    """
    machine = timeline.cost
    if not isinstance(machine, Machine):
        return ()
    program = timeline.program
    found = {op.name: fused_steps(machine, op, input_specs(program, op)) for op in program.ops if op.inside is not None}
    return tuple(Exposure(name, steps.held_us, (_cause(steps),)) for name, steps in found.items())


def _cause(steps: Steps) -> Cause:
    times = f"{time_text(steps.shard_us)} to multiply and {time_text(steps.travel_us)} to travel"
    message = f"inside the matmul each of {counted(steps.count, 'shard')} takes {times}"
    if steps.barriers_us:
        message += f", and the ranks meet for {time_text(steps.barriers_us)}"
    return Cause("inside a matmul", steps.held_us, "", message)
