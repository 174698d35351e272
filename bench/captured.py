"""How long captured steps take on two hosts whose link is as fast as you like: as written, and as Weft makes them.

    python -m bench.captured                                             # a tensor-parallel block, at three rates
    python -m bench.captured --steps tp,fsdp,ddp --ratios 1 --repetitions 31
    python -m bench.captured --also "micro_pipeline{always=true},schedule"
    python -m bench.captured --nice -20 --json captured.json                 # on a machine on which others work too

A host is a network namespace on this machine with one Gloo process in it, which has one thread and one core. The link
is a veth pair; a token bucket limits its rate, which is chosen such that communication alone takes so many times as
long as compute alone ("--ratios"). Compute alone is the step with every collective replaced by a copy of what the rank
itself has; communication alone are its collectives, each waited for before the next. This takes root, `ip`, `tc` and
`unshare`; without them the ranks talk over loopback, unlimited, and the rates are left out.

Plans are made for the machine as it is calibrated over the link at its rate, but for how much slower compute is beside
communication, which the step's own compute beside a long all-reduce tells. Both ranks carry out the plans of rank 0.
Every program is verified, and its results are compared with those of the step as written: they may differ by 1e-5 of
the largest number in a result. The ways take turns, and a step has taken as long as on the slower rank. "÷ larger part"
is the step relative to compute or communication alone, whichever is longer. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import weft
from bench.captured_cases import Case, Row, table, to_json
from bench.captured_steps import SIZES, Size, step
from bench.options import count, listed, ratios
from bench.rates import COMMUNICATION, COMPUTE, say, tuned
from weft import PASSES, PRESETS, parse_pipeline
from weft.errors import WeftError
from weft.run import local_ranks
from weft.run.alone import communication_alone, compute_alone
from weft.run.hosts import RANKS, Hosts, why_no_link
from weft.run.measuring import EFFORT, MALLOC, Call, calibrated, measured, slowdown
from weft.run.samples import Effort
from weft.run.steps import Step, difference, planned_together

RATIOS = (0.5, 1.0, 2.0)
TOLERANCE = 1e-5

_TRIES = 7  # of what is measured to find a rate


@dataclass(frozen=True)
class Task:
    """What ranks are to measure: steps by name, and pipelines by the names of their rows. No ratio: no rate."""

    hosts: Hosts
    sizes: Mapping[str, Size]
    ways: Mapping[str, str]
    ratios: tuple[float | None, ...]
    repetitions: int
    effort: Effort


def pipelines() -> Mapping[str, str]:
    """What Weft does, by the name of its row."""
    passes = PRESETS["default"].split(",")
    without = [name for name in passes if name not in ("halve", "micro_pipeline")]
    return {"scheduled": ",".join(without), "micro-pipelined": ",".join(passes)}


# In a rank


@torch.no_grad()
def cases(rank: int, task: Task) -> list[Case]:
    """What a rank finds: a case for each step and ratio."""
    found = []
    for name, size in task.sizes.items():
        say(rank, f"{name}: capturing the step")
        with torch.enable_grad():
            made = step(name, size)
        for ratio in task.ratios:
            found.append(_case(rank, task, name, made, ratio))
    return found


def _case(rank: int, task: Task, name: str, made: Step, ratio: float | None) -> Case:
    title = name if ratio is None else f"{name}, {ratio:g}×"
    alone: Mapping[str, Call] = {COMPUTE: compute_alone(made), COMMUNICATION: communication_alone(made.program)}
    rate = None
    if ratio is not None:
        say(rank, f"{title}: looking for the rate of the link")
        rate = tuned(task.hosts, alone, ratio, _TRIES)
    say(rank, f"{title}: calibrating" + ("" if rate is None else f" at {rate / 1e6:,.0f} Mbit/s"))
    machine = calibrated(task.effort)
    if rate is not None:
        machine = replace(machine, compute_slowdown=slowdown(alone[COMPUTE], rate, _TRIES))
    optimized = {way: planned_together(made.program, machine, passes) for way, passes in task.ways.items()}
    for way, one in optimized.items():
        say(rank, f"{title}: {way}: {one}")
    before = weft.simulate(made.program, machine)
    timelines = {"as written": before, **{way: one.after for way, one in optimized.items()}}
    calls = {way: made.call(timeline.program) for way, timeline in timelines.items()}
    apart = {way: _apart(way, calls["as written"], call) for way, call in calls.items()}
    say(rank, f"{title}: measuring")
    times, others = measured({**alone, **calls}, task.repetitions)
    rows = [
        Row(way, times[way], timeline.step_us, len(timeline.program.starts), apart[way])
        for way, timeline in timelines.items()
    ]
    return Case(name, ratio, rate, times[COMPUTE], times[COMMUNICATION], tuple(rows), machine.compute_slowdown, others)


def _apart(way: str, written: Call, call: Call) -> float:
    """By how much results differ from those of the step as written, the most of all ranks; WeftError if by too much."""
    worst = difference(written(), call())
    if not worst <= TOLERANCE:
        raise WeftError(f"{way}: a result is {worst:.1e} of its largest number away from the step as written")
    return worst


# In the process that starts them


def run(task: Task) -> list[Case]:
    """Start the ranks, and return what they found."""
    os.environ.update(MALLOC)  # the ranks inherit it
    limit_s = 300 + 600 * len(task.sizes) * len(task.ratios)
    found, *_ = local_ranks(cases, RANKS, task, time_limit_s=limit_s, before=task.hosts.enter)
    return list(found)


def main(words: Sequence[str] | None = None) -> None:
    options = _options(words)
    why = why_no_link()
    if why is not None:
        print(f"No link with a rate: {why}. The ranks talk over loopback, unlimited.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(Path(folder), why is None, options.nice)
        wanted = (None,) if why is not None else tuple(options.ratios)
        sizes = {name: SIZES[name] for name in options.steps}
        ways = {**pipelines(), **{passes: passes for passes in options.also}}
        try:
            found = run(Task(hosts, sizes, ways, wanted, options.repetitions, EFFORT))
        except WeftError as error:
            sys.exit(f"bench.captured: {error}")
        except KeyboardInterrupt:
            sys.exit("bench.captured: interrupted; the ranks, their hosts and the link are gone")
    print("\n\n".join(map(table, found)))
    if options.json:
        options.json.write_text(to_json(found), encoding="utf-8")


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=_steps, default=["tp"], help=f"of {', '.join(SIZES)}, separated by commas; tp")
    parser.add_argument("--ratios", type=ratios, default=RATIOS, help="communication to compute; 0.5,1,2")
    parser.add_argument("--also", type=_passes, action="append", default=[], help="a pipeline to measure too")
    parser.add_argument("--repetitions", type=count, default=15, help="how often each way is run; 15")
    parser.add_argument("--nice", type=int, default=0, help="priority of the ranks, -20 to go before all others; 0")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(words)


def _steps(text: str) -> list[str]:
    for name in listed(text):
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"{name!r} is no step; there are {', '.join(SIZES)}")
    return listed(text)


def _passes(text: str) -> str:
    try:
        parse_pipeline(text, PASSES)
    except WeftError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == "__main__":
    main()
