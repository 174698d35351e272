"""What simulating costs: 10,000 ops, and whether it grows linearly. Prints every number that the README claims of it.

    python -m bench.simulator

Times are CPU seconds of this process, the best of several runs.
"""

from __future__ import annotations

from dataclasses import replace

import weft
from bench.foundation import training_graph
from bench.rows import Row, best_of, report
from weft.cost import Machine, prices
from weft.ir import Program
from weft.sim import lower_bound, simulate

OPS = 10_000
MANY = 100_000


def program_of(ops: int) -> Program:
    return weft.from_fx(training_graph(ops), groups={"dp": range(8)})


def simulator_rows() -> list[Row]:
    machine = Machine.load("h100-ib400")
    few, many = program_of(OPS), program_of(MANY)
    unpriced = [program_of(OPS) for _ in range(3)]
    # What a machine says of a program is kept with it. Copies of prices are not its own: nothing is kept for them.
    priced, priced_many = replace(prices(few, machine)), replace(prices(many, machine))
    once = best_of(5, lambda: simulate(few, machine, priced=priced))
    often = best_of(3, lambda: simulate(many, machine, priced=priced_many))
    return [
        Row(f"simulate {OPS:,} ops whose prices are known", once * 1e3, "ms", 100),
        Row(f"an op among {MANY:,} ÷ an op among {OPS:,}", often / len(many) / (once / len(few)), "", 1.5),
        Row(f"prices of {OPS:,} ops", best_of(3, lambda: prices(unpriced.pop(), machine)) * 1e3, "ms", float("inf")),
        Row(
            f"lower bound for {OPS:,} ops",
            best_of(3, lambda: lower_bound(few, machine, priced=priced)) * 1e3,
            "ms",
            float("inf"),
        ),
    ]


if __name__ == "__main__":
    report([simulator_rows])
