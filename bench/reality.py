"""Does the simulator agree with reality? Calibrates two Gloo ranks on this machine, then predicts and runs five steps.

    python -m bench.reality
    python -m bench.reality --rounds 3 --json

A round measures, calibrates and measures again, in the same processes; what counts is the median over the rounds of
predicted and measured. Leaves with 1 if they differ by more than 15 % for any step. Ranks have a thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import weft
from weft import Program, pipeline
from weft.errors import WeftWarning
from weft.ir.specs import TensorSpec
from weft.run import local_ranks
from weft.run.inputs import tensor
from weft.run.measuring import MALLOC, calibrated, in_turn
from weft.run.samples import Effort, from_all

LIMIT = 0.15
RANKS = 2
_EFFORT = Effort(rounds=3, sample_s=0.06, growth=4, longest_s=0.04)  # a sample is about as long as a step
_REPETITIONS = 7  # of each step, before and after a calibration
_LAYERS = 4
_ROWS, _WIDTH = 256, 1024  # a layer multiplies 256x1024 by 1024x1024, a few milliseconds on one core
_GRADIENT = 512  # the bucketed gradients are 512x512


# The five steps


def compute_only(group: str) -> Program:
    """Layers one after the other, with whole weights."""
    lines = [f"%w: f32[{_WIDTH},{_WIDTH}] = input()", f"%h0: f32[{_ROWS},{_WIDTH}] = input()"]
    for layer in range(1, 2 * _LAYERS + 1):
        lines.append(f"%h{layer}: f32[{_ROWS},{_WIDTH}] = aten.mm.default(%h{layer - 1}, %w)")
    return _program(group, lines, [f"h{2 * _LAYERS}"])


def communication_only(group: str) -> Program:
    """Gathers and scatters of weights, each waited for at once."""
    lines = [f"%w: f32[{_WIDTH},{_WIDTH}] = input()", f"%shard: f32[{_WIDTH // RANKS},{_WIDTH}] = input()"]
    for layer in range(_LAYERS):
        lines += _gather("shard", layer) + _scatter("w", layer)
    return _program(group, lines, [f"{kind}{layer}" for layer in range(_LAYERS) for kind in ("full", "own")])


def serial(group: str) -> Program:
    """A step of sharded layers: each weight is gathered when it is needed, each gradient scattered when it is there."""
    lines = [f"%shard{layer}: f32[{_WIDTH // RANKS},{_WIDTH}] = input()" for layer in range(_LAYERS)]
    lines.append(f"%h0: f32[{_ROWS},{_WIDTH}] = input()")
    for layer in range(_LAYERS):
        lines += _gather(f"shard{layer}", layer)
        lines.append(f"%h{layer + 1}: f32[{_ROWS},{_WIDTH}] = aten.mm.default(%h{layer}, %full{layer})")
    for layer in reversed(range(_LAYERS)):
        lines.append(f"%t{layer}: f32[{_WIDTH},{_ROWS};1,{_WIDTH}] = aten.t.default(%h{layer})")
        lines.append(f"%d{layer}: f32[{_WIDTH},{_WIDTH}] = aten.mm.default(%t{layer}, %h{_LAYERS})")
        lines += _scatter(f"d{layer}", layer)
    return _program(group, lines, [f"own{layer}" for layer in range(_LAYERS)])


def prefetched(group: str) -> Program:
    """The serial step as Weft's passes leave it."""
    return pipeline.run(serial(group), weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES)).program


def bucketed(group: str) -> Program:
    """Gradients that are copied into one bucket, summed by one all-reduce, and added to their weights."""
    size, count = _GRADIENT, 2 * _LAYERS
    lines = [f"%x: f32[{_WIDTH},{size}] = input()", f"%t: f32[{size},{_WIDTH};1,{size}] = aten.t.default(%x)"]
    lines += [f"%w{at}: f32[{size},{size}] = input()" for at in range(count)]
    for at in range(count):
        lines.append(f"%d{at}: f32[{size},{size}] = aten.mm.default(%t, %x)")
        lines.append(f"%flat{at}: f32[{size**2}] = aten.view.default(%d{at}, [{size**2}])")
    flats = ", ".join(f"%flat{at}" for at in range(count))
    lines.append(f"%bucket: f32[{count * size**2}] = aten.cat.default([{flats}])")
    lines.append(f'%flying: f32[{count * size**2}] = all_reduce.start(%bucket) sum over "{group}"')
    lines.append(f"%summed: f32[{count * size**2}] = wait(%flying)")
    for at in range(count):
        lines.append(f"%part{at}: f32[{size**2}] = aten.slice.Tensor(%summed, 0, {at * size**2}, {(at + 1) * size**2})")
        lines.append(f"%g{at}: f32[{size},{size}] = aten.view.default(%part{at}, [{size}, {size}])")
        lines.append(f"%new{at}: f32[{size},{size}] = aten.add.Tensor(%w{at}, %g{at})")
    return _program(group, lines, [f"new{at}" for at in range(count)])


STEPS: Mapping[str, Callable[[str], Program]] = {
    "compute only": compute_only,
    "communication only": communication_only,
    "fully serial": serial,
    "prefetched": prefetched,
    "bucketed": bucketed,
}


def _gather(shard: str, number: int) -> list[str]:
    spec = f"f32[{_WIDTH},{_WIDTH}]"
    return [f"%ag{number}: {spec} = all_gather.start(%{shard}) over dp", f"%full{number}: {spec} = wait(%ag{number})"]


def _scatter(whole: str, number: int) -> list[str]:
    spec = f"f32[{_WIDTH // RANKS},{_WIDTH}]"
    start = f"%rs{number}: {spec} = reduce_scatter.start(%{whole}) sum over dp"
    return [start, f"%own{number}: {spec} = wait(%rs{number})"]


def _program(group: str, lines: list[str], outputs: list[str]) -> Program:
    text = "\n".join(lines).replace("over dp", f'over "{group}"')
    results = ", ".join(f"%{name}" for name in outputs)
    return weft.parse(f'weft 1\ngroup "{group}" = 0..{RANKS - 1}\n\n{text}\nreturn {results}\n')


# Predicting and running them


@dataclass(frozen=True)
class Row:
    """A step in one round, or over all of them, in microseconds."""

    step: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        state = "ok" if abs(self.error) <= LIMIT else "OVER"
        return (
            f"{self.step:<20} predicted {self.predicted / 1e3:8.2f} ms   measured {self.measured / 1e3:8.2f} ms   "
            f"{self.error:+6.1%}  {state}"
        )


def rounds_of(rank: int, rounds: int) -> list[list[Row]]:
    """What one rank finds: for each round a row for each step."""
    world = dist.group.WORLD
    assert world is not None
    programs = {name: make(world.group_name) for name, make in STEPS.items()}
    calls = {name: ready(program) for name, program in programs.items()}
    found = []
    for number in range(rounds):
        # Before and after: a machine that becomes slower meanwhile does so by half for what is measured.
        before = measure(calls)
        machine = calibrated(_EFFORT)
        after = measure(calls)
        measured = {name: (before[name] + after[name]) / 2 for name in calls}
        rows = [Row(name, weft.simulate(one, machine).step_us, measured[name]) for name, one in programs.items()]
        found.append(rows)
        if rank == 0:
            errors = ", ".join(f"{row.step} {row.error:+.0%}" for row in rows)
            print(f"round {number + 1} of {rounds}: {errors}", file=sys.stderr, flush=True)
    return found


def ready(program: Program) -> Callable[[], Any]:
    """A step that is ready to be run, with inputs."""
    module = weft.to_fx(program)
    specs = [op.out[0] for op in program.ops if op.target == "input"]
    inputs = [tensor(spec, torch.device("cpu")) for spec in specs if isinstance(spec, TensorSpec)]
    return lambda: module(*inputs)


@torch.no_grad()
def measure(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of each step, the median of many, and then of the ranks; in turn, so that drift hits all alike."""
    for call in calls.values():
        call()
    times = in_turn(calls, _REPETITIONS)
    ranks = from_all({name: median(one) for name, one in times.items()})
    return {name: median(rank[name] for rank in ranks) for name in calls}


def overall(rounds: list[list[Row]]) -> list[Row]:
    """The medians over the rounds."""
    return [
        Row(rows[0].step, median(row.predicted for row in rows), median(row.measured for row in rows))
        for rows in zip(*rounds, strict=True)
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=7, help="how often to calibrate and measure")
    arguments.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = arguments.parse_args()
    os.environ.update(MALLOC)  # the ranks inherit it
    found, *_ = local_ranks(rounds_of, RANKS, options.rounds, time_limit_s=120 + 120 * options.rounds)
    rows = overall(found)
    if options.json:
        print(json.dumps([{**vars(row), "error": row.error} for row in rows]))
    else:
        print("\n".join(map(str, rows)))
    sys.exit(0 if all(abs(row.error) <= LIMIT for row in rows) else 1)


if __name__ == "__main__":
    warnings.simplefilter("error", WeftWarning)  # a prediction beyond what was measured would be none
    main()
