"""The bound against the truth: bound <= exact optimum <= simulated original, on a thousand small programs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from hypothesis import given, settings

from tests.programs import programs
from tests.sim.exact import optimum
from tests.sim.variants import merges
from weft.cost.prices import prices
from weft.ir import Collective, Op, Program, TensorSpec
from weft.sim import lower_bound, simulate


class Whole:
    """A cost model with whole microseconds, and the same for the same op in any order."""

    def op_us(self, op: Op, inputs: Sequence[TensorSpec]) -> float:
        return float(zlib.crc32(op.name.encode()) % 9)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return float(3 + total_bytes // 16)


@settings(max_examples=1000)
@given(programs(steps=(3, 14)) | programs(steps=(3, 14), random=True, barriers=True))
def test_bound_optimum_and_original_are_in_order(program: Program) -> None:
    cost = Whole()
    priced = prices(program, cost)
    best, ordered = optimum(program, priced)
    assert lower_bound(program, cost).us <= best + 1e-6
    assert best <= simulate(program, cost).step_us
    assert simulate(ordered, cost).step_us == best


@settings(max_examples=150)
@given(programs(steps=(6, 14), mutation=False))
def test_no_merged_program_beats_the_bound(program: Program) -> None:
    bound = lower_bound(program, Whole()).us
    for merged in merges(program):
        assert bound <= optimum(merged, prices(merged, Whole()))[0] + 1e-6
