"""How tight the lower bound is: on small random programs, against the best order that CP-SAT finds.

    python -m bench.tightness

The bound allows for buckets and cuts too, and the optimum for orders only, so part of the gap is no weakness.
"""

from __future__ import annotations

from statistics import mean

from hypothesis import given, settings

from tests.programs import programs
from tests.sim.exact import optimum
from tests.sim.test_exact import Whole
from weft.cost import prices
from weft.ir import Program
from weft.sim import lower_bound, simulate

PROGRAMS = 300


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


def main() -> None:
    found = ratios()
    bounds = [bound for bound, _ in found]
    print(f"{len(found)} programs, divided by the optimum over all orders:")
    exact = sum(bound > 0.989 for bound in bounds) / len(bounds)
    print(f"  bound     mean {mean(bounds):.3f}, least {min(bounds):.3f}, within a percent for {exact:.0%}")
    print(f"  original  mean {mean(original for _, original in found):.3f}")


if __name__ == "__main__":
    main()
