"""What holds for every simulated program, on a machine whose links are shared and whose compute is slowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.orders import reordered
from tests.programs import programs
from weft.cost import Machine
from weft.errors import MachineError
from weft.ir import Collective, Op, Program, TensorSpec, parse
from weft.sim import lower_bound, simulate


@dataclass(frozen=True)
class Shared:
    """Groups that go through one link, half of the time at its full bandwidth; compute at two thirds beside them."""

    compute_slowdown: float = 1.5
    launch_us: float = 1.0

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        return 5.0 + len(inputs)

    def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        return None

    def moved_us(self, nbytes: int) -> float:
        return nbytes / 64

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 2 + total_bytes / 32

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        return {"nic": total_bytes / 32}


COST = Shared()


@given(programs(), st.randoms(use_true_random=False))
def test_no_order_beats_the_bound(program: Program, random: Random) -> None:
    bound = lower_bound(program, COST).us
    assert bound <= simulate(program, COST).step_us * (1 + 1e-9)
    assert bound <= simulate(reordered(program, random), COST).step_us * (1 + 1e-9)


@given(programs())
def test_a_step_is_work_and_waiting(program: Program) -> None:
    timeline = simulate(program, COST)
    assert timeline.compute_us + timeline.exposed_us == pytest.approx(timeline.step_us)
    assert timeline == simulate(program, COST)


@given(programs())
def test_streams_do_one_thing_at_a_time_and_in_order(program: Program) -> None:
    timeline = simulate(program, COST)
    assert list(timeline.begins) == sorted(timeline.begins)
    assert all(begin <= end for begin, end in zip(timeline.begins, timeline.ends, strict=True))
    last: dict[str, float] = {}
    for position, flight in timeline.flights.items():
        comm = program.ops[position].comm
        assert comm is not None
        assert flight.begin >= max(timeline.begins[position], last.get(comm.group.name, 0.0))
        assert flight.us >= timeline.prices.comm_us[position] * (1 - 1e-9)
        last[comm.group.name] = flight.end


@given(programs())
def test_causes_explain_the_whole_exposure(program: Program) -> None:
    timeline = simulate(program, COST)
    assert {exposure.start: exposure.us for exposure in timeline.exposures} == dict(timeline.exposed)
    for exposure in timeline.exposures:
        assert sum(cause.us for cause in exposure.causes) == pytest.approx(exposure.us)


def test_what_nobody_waits_for_holds_up_the_end_of_the_step() -> None:
    program = parse(
        "weft 1\ngroup dp = 0..1\n%x: f32[8] = input()\n%s: f32[8] = all_reduce.start(%x) sum over dp\nreturn %s"
    )
    timeline = simulate(program, COST)
    assert (timeline.step_us, timeline.compute_us, timeline.exposed_us) == (3, 0, 3)
    assert [cause.kind for cause in timeline.exposures[0].causes] == ["end of step"]


def test_a_machine_may_be_named() -> None:
    program = parse("weft 1\n%x: f32[8] = input()\n%y: f32[8] = aten.neg.default(%x)\nreturn %y")
    assert simulate(program, "h100-ib400").step_us == simulate(program, Machine.load("h100-ib400")).step_us
    with pytest.raises(MachineError, match="h100-ib40"):
        simulate(program, "h100-ib40")
