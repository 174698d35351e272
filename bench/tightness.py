"""How tight the lower bound is, and how good `schedule`: on small random programs, against the best order that CP-SAT
finds.

    python -m bench.tightness

The bound allows for buckets and cuts too, and the optimum for orders only, so part of the gap is no weakness.
"""

from __future__ import annotations

from statistics import mean

from hypothesis import given, settings

from tests.programs import programs
from tests.sim.exact import optimum
from tests.sim.test_exact import Whole
from weft import pipeline
from weft.cost import prices
from weft.ir import Program
from weft.passes.schedule import SchedulePass
from weft.sim import lower_bound, simulate

PROGRAMS = 300
SCHEDULED = 100  # programs whose original order is not the best already


def ratios() -> list[tuple[float, float]]:
    """For each program that takes any time, bound and original order, both divided by the optimum."""
    found: list[tuple[float, float]] = []

    @settings(max_examples=PROGRAMS, derandomize=True, deadline=None, database=None)
    @given(programs(steps=(3, 14)))
    def measure(program: Program) -> None:
        best, _ = optimum(program, prices(program, Whole()))
        if best:
            found.append((lower_bound(program, Whole()).us / best, simulate(program, Whole()).step_us / best))

    measure()
    return found


def scheduled(count: int = SCHEDULED) -> list[tuple[float, Program]]:
    """For the first programs that leave something to gain, the step that `schedule` makes, divided by the optimum."""
    found: list[tuple[float, Program]] = []

    @settings(max_examples=PROGRAMS, derandomize=True, deadline=None, database=None)
    @given(programs(steps=(3, 14)))
    def measure(program: Program) -> None:
        if len(found) == count:
            return
        best, _ = optimum(program, prices(program, Whole()))
        if best < simulate(program, Whole()).step_us:
            made = pipeline.run(program, [SchedulePass()], cost=Whole()).program
            found.append((simulate(made, Whole()).step_us / best, program))

    measure()
    return found


def main() -> None:
    found = ratios()
    bounds = [bound for bound, _ in found]
    print(f"{len(found)} programs, divided by the optimum over all orders:")
    exact = sum(bound > 0.989 for bound in bounds) / len(bounds)
    print(f"  bound     mean {mean(bounds):.3f}, least {min(bounds):.3f}, within a percent for {exact:.0%}")
    print(f"  original  mean {mean(original for _, original in found):.3f}")
    steps = scheduled()
    worst, program = max(steps, key=lambda one: one[0])
    near = sum(step <= 1.02 for step, _ in steps)
    print(f"{len(steps)} programs whose order can be improved, after `schedule`, divided by the optimum:")
    print(
        f"  schedule  mean {mean(step for step, _ in steps):.4f}, within two percent for {near}, at worst {worst:.3f}:"
    )
    print(program)


if __name__ == "__main__":
    main()
