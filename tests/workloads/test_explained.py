"""What holds each workload up is explained, and the remedies hold what they promise."""

from __future__ import annotations

import re
from functools import cache

import pytest

import weft
from bench.workloads import WORKLOADS
from tests.workloads.test_combined import workload
from weft import Machine, Program
from weft.optimizer import PRESETS
from weft.remedies import FASTER, Made, as_it_is, explain, made_by
from weft.sim.explanation import Explanation, Remedy
from weft.sim.inside import inside
from weft.sim.timeline import Timeline

MACHINE = Machine.load("h100-ib400")
ORIGIN = re.compile(r"(gradient of )?\w+(\.\w+)* [\w/]+\.py:\d+")  # module or parameter, file and line
# How many there are that nothing helps, as captured and optimised: the last all-reduce of a few bytes is all latency.
HELPLESS = {"tiny_parameters_ddp": [0, 1]}


def passes_of(text: str) -> tuple[weft.Pass, ...]:
    return weft.parse_pipeline(text, weft.PASSES) if text else ()


@cache
def optimized(name: str, passes: str, memory_limit: int | None) -> Program:
    return weft.optimize(workload(name), MACHINE, passes=passes_of(passes), memory_limit=memory_limit).program


def applied(name: str, remedy: Remedy) -> Timeline:
    """The step after what a remedy says, by the names that users have."""
    machine = MACHINE
    for link in remedy.faster_links:
        machine = machine.faster(link, FASTER)
    return weft.simulate(optimized(name, remedy.passes, remedy.memory_limit), machine)


def waited_for(timeline: Timeline, members: set[str]) -> float:
    """For how long a step waits for collectives of the first program, or for what stands for them."""
    held = {**timeline.exposed, **{one.start: one.us for one in inside(timeline)}}
    return sum(us for name, us in held.items() if not members.isdisjoint(timeline.program[name].sources or (name,)))


def check(name: str, made: Made, one: Explanation) -> None:
    op = made.timeline.program[one.exposure.start]
    assert ORIGIN.fullmatch(op.origin), op.origin
    assert sum(cause.us for cause in one.exposure.causes) == pytest.approx(one.exposure.us, rel=0.01)
    if one.remedy is not None:
        now, members = applied(name, one.remedy), set(op.sources or (op.name,))
        # Of a collective in chunks, all of them are compared with all of them.
        assert waited_for(now, members) < waited_for(made.timeline, members), one.remedy.change
        assert now.step_us < made.timeline.step_us


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_exposed_longest_has_an_origin_causes_and_a_remedy_that_helps(name: str) -> None:
    program, default = workload(name), passes_of(PRESETS["default"])
    found = [(made, explain(made, 5)) for made in (as_it_is(program, MACHINE), made_by(program, MACHINE, default))]
    for made, explained in found:
        assert len(explained) == min(5, len(made.timeline.exposed) + len(inside(made.timeline)))
        for one in explained:
            check(name, made, one)
    assert [sum(one.remedy is None for one in explained) for _, explained in found] == HELPLESS.get(name, [0, 0])
