"""What planning costs: all of `weft.optimize` beside torch's own pass on the same graph, and how it grows.

    python -m bench.speed                                  # 32 layers beside torch, and 5,000 to 100,000 ops
    python -m bench.speed --layers 2 --depths 1,2          # a short run; the limits are those of the long one

Times are CPU seconds of this process, the best of several runs, everything in one run. Weft's begin with a GraphModule
and end with it: `from_fx`, each pass with its verification, simulations, and `relink`, which lowers the result into the
graph that it came from. torch's pass is given its times, so pricing is no part of it.

In the end, twenty processes with different hash seeds plan one step: their plans have to be one and the same.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from time import process_time
from unittest.mock import patch

import weft
from bench.capture import captured_on
from bench.rows import Row, report
from bench.seeds import printed
from bench.torch_pass import torch_pass
from bench.workloads import WORKLOADS, Workload
from weft import pipeline
from weft.cost import Machine
from weft.errors import WeftWarning
from weft.fx.exporter import relink
from weft.ir import Program
from weft.pipeline import Stage

WORKLOAD = WORKLOADS["llama3_8b_fsdp"]
LAYERS = 32
DEPTHS = (12, 32, 80, 254)  # about 5,000 to 100,000 ops
RUNS = 3

PROCESSES = 20
HASH = "import sys, weft; print(weft.optimize(weft.parse(sys.stdin.read()), sys.argv[1]).hash)"

RATIO = 0.1  # of the time of torch's pass
SECONDS = 20.0  # for 100,000 ops
EXPONENT = 1.15


@dataclass(frozen=True)
class Times:
    """CPU seconds of one run, by what they were spent on. `ops` and `starts` are those of the original."""

    ops: int
    starts: int
    parts: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.parts)


def weft_times(program: Program, machine: Machine) -> Times:
    """What Weft takes for a program that came from a graph: from a copy of that graph and back into it."""
    graph = weft.to_fx(program)
    gc.collect()
    stages: list[Stage] = []
    with patch.object(pipeline, "perf_counter", process_time):
        begin = process_time()
        made = weft.from_fx(graph)
        imported = process_time()
        result = weft.optimize(made, machine, watch=stages.append)
        optimized = process_time()
        relink(result.program)
        end = process_time()
    parts = [("from_fx", imported - begin)]
    for stage in stages:
        name = stage.plan.pass_text.split("{")[0]
        parts += [(f"{name}: plan", stage.plan_s), (f"{name}: apply", stage.apply_s)]
        parts.append((f"{name}: verify", stage.verify_s))
    passes = sum(seconds for _, seconds in parts[1:])
    parts += [("prices and simulations", optimized - imported - passes), ("relink", end - optimized)]
    return Times(len(program), len(program.starts), tuple(parts))


def best_times(program: Program, machine: Machine, runs: int = RUNS) -> Times:
    return min((weft_times(program, machine) for _ in range(runs)), key=lambda times: times.seconds)


@contextmanager
def captured(workload: Workload, layers: int, *, reshard_after_forward: bool = True) -> Iterator[Program]:
    """The workload at a depth; inside, its groups are known."""
    deep = workload.with_layers(layers)
    with weft.planning(dict(deep.mesh)) as mesh:
        yield captured_on(mesh, deep, reshard_after_forward=reshard_after_forward)


def ratio_rows(workload: Workload, machine: Machine, layers: int) -> list[Row]:
    """Weft's parts beside torch's pass. Each parameter is gathered once, and its gradient scattered once."""
    with captured(workload, layers, reshard_after_forward=False) as program:
        # In turn: a machine that is slow for a while is so for both.
        runs, torchs = [best_times(program, machine)], dict[str, float]()
        for what, bucketing in (("torch's pass", False), ("torch's pass, with buckets", True)):
            _, torchs[what] = torch_pass(program, machine, bucketing=bucketing, memory_increase=None)
            runs.append(best_times(program, machine))
    own = min(runs, key=lambda times: times.seconds)
    rows = [Row(f"{layers} layers: operations", own.ops, "", inf), Row("collectives", own.starts, "", inf)]
    rows += [Row(f"weft, {what}", seconds, "s", inf) for what, seconds in own.parts]
    rows.append(Row("weft, all of it", own.seconds, "s", inf))
    limits = (inf, RATIO if layers >= LAYERS else inf)  # Weft buckets, so the pass with buckets does the same work
    for (what, seconds), limit in zip(torchs.items(), limits, strict=True):
        rows.append(Row(what, seconds, "s", inf))
        rows.append(Row(f"weft ÷ {what}", own.seconds / seconds, "", limit))
    return rows


def growth_rows(workload: Workload, machine: Machine, depths: Sequence[int]) -> list[Row]:
    """How the time grows with the depth of the model."""
    found = []
    for depth in depths:
        with captured(workload, depth) as program:
            found.append(best_times(program, machine))
    return growth(found)


def growth(found: Sequence[Times]) -> list[Row]:
    """The seconds at each size, and the exponents between sizes; the last one is from the smallest to the largest."""
    rows = [
        Row(f"weft, {one.ops:,} ops and {one.starts:,} collectives", one.seconds, "s", _seconds_for(one.ops))
        for one in found
    ]
    for less, more in pairwise(found) if len(found) > 2 else ():
        rows.append(Row(f"exponent of growth, {less.ops:,} to {more.ops:,} ops", exponent(less, more), "", inf))
    if len(found) > 1:
        first, last = found[0], found[-1]
        limit = EXPONENT if last.ops >= 100_000 else inf
        rows.append(Row(f"exponent of growth, {first.ops:,} to {last.ops:,} ops", exponent(first, last), "", limit))
    return rows


def plan_rows(workload: Workload, machine: str, processes: int = PROCESSES) -> list[Row]:
    """How many different plans so many processes make for one step of two layers."""
    with captured(workload, 2) as program:
        text = str(program)
    hashes = printed(HASH, [machine], text, processes)
    return [Row(f"different plans of {processes} processes with other hash seeds", len(hashes), "", 1)]


def exponent(less: Times, more: Times) -> float:
    """With which power of the ops the time grows: 1 is linear."""
    return log(more.seconds / less.seconds) / log(more.ops / less.ops)


def _seconds_for(ops: int) -> float:
    return SECONDS if ops >= 100_000 else inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS, help="how deep the model is beside torch's pass")
    parser.add_argument("--depths", type=_numbers, default=DEPTHS, help="depths for the growth, separated by commas")
    parser.add_argument("--machine", default="h100-ib400")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore", WeftWarning)  # buckets beyond the last knot of a curve are extrapolated
    machine = Machine.load(options.machine)
    report(
        (
            lambda: ratio_rows(WORKLOAD, machine, options.layers),
            lambda: growth_rows(WORKLOAD, machine, options.depths),
            lambda: plan_rows(WORKLOAD, options.machine),
        ),
        as_json=options.json,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


if __name__ == "__main__":
    main()
