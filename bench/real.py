"""How long steps of training take on two hosts whose link is as fast as you like, compiled in all ways that there are.

    python -m bench.real                                          # DDP, FSDP and TP, at three rates
    python -m bench.real --kinds fsdp --ratios 1 --repetitions 31
    python -m bench.real --nice -20 --json real.json              # on a machine on which others work too

A host is a network namespace on this machine with one Gloo process in it, which has one thread and one core. The link
is a veth pair; a token bucket limits its rate, which is chosen such that communication alone takes so many times as
long as compute alone ("--ratios"). Compute alone is the step under torch.compile with every collective replaced by a
copy of what the rank itself has; communication alone are its collectives, each waited for before the next. This takes
root, `ip`, `tc` and `unshare`; without them the ranks talk over loopback, unlimited, and the rates are left out.

A step is forward, backward and optimiser of a small Llama. Weft and torch's overlap scheduling plan for the machine as
it is calibrated over the link at its rate. All ways begin with the same parameters, which are compared after a few
steps. The ways take turns, and a step has taken as long as on the slower rank. "÷ larger part" is the step relative to
compute or communication alone, whichever is longer. "÷ floor" is it relative to the sum of the larger parts of the
forward and of the backward, which are two graphs: nothing moves between them. It is an estimate, as all parts are
measured, and collectives that overlap each other can get a little below it. "Gloo ms" is what threads besides the one
that computes took of the same core. Progress goes to standard error. Leaves with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import process_time, thread_time
from typing import Any

from torch import Tensor

import weft
from bench.contenders import ALL, TORCH_DDP, Way, compiling, fixed_ways, planned_ways, silenced
from bench.options import count, listed, ratios
from bench.rates import COMMUNICATION, COMPUTE, say, tuned
from bench.real_cases import Case, Part, Row, table, to_json, verdicts
from bench.trainings import SIZES, Size, Training, apart, data, parallel_model, torch_ddp, training
from weft import Machine, Program
from weft.errors import WeftError
from weft.run import local_ranks
from weft.run.alone import communication_alone
from weft.run.hosts import RANKS, Hosts, why_no_link
from weft.run.measuring import EFFORT, MALLOC, Call, calibrated, measured, slowdown
from weft.run.reports import Report
from weft.run.samples import Effort, from_all

RATIOS = (0.5, 1.0, 2.0)
TOLERANCE = 1e-4  # kernels that are fused round otherwise, and each step adds to it

_TRIES = 3  # of what is measured to find a rate
_STEPS = 2  # before parameters are compared: a gradient that is wrong shows after one
_ROLES = ("forward", "backward")
_FORWARD, _COMM = "forward alone", {role: f"communication of the {role}" for role in _ROLES}


@dataclass(frozen=True)
class Task:
    """What ranks are to measure, with contenders by their names. No ratio: no rate."""

    hosts: Hosts
    sizes: Mapping[str, Size]
    ways: tuple[str, ...]
    ratios: tuple[float | None, ...]
    repetitions: int
    effort: Effort


# In a rank


def cases(rank: int, task: Task) -> list[Case]:
    """What a rank finds: a case for each kind and ratio."""
    found = []
    with compiling(Machine.load("gloo-cpu")):
        for kind, size in task.sizes.items():
            bench = _Bench(rank, task, kind, size)
            found += [bench.case(ratio) for ratio in task.ratios]
    return found


class _Metered:
    """A call whose CPU time in other threads than this one is noted."""

    def __init__(self, call: Call) -> None:
        self._call, self.others_us = call, list[float]()

    def __call__(self) -> None:
        whole, own = process_time(), thread_time()
        self._call()
        self.others_us.append((process_time() - whole - (thread_time() - own)) * 1e6)


class _Bench:
    """One kind of parallelism on one rank: what does not depend on the rate is compiled once."""

    def __init__(self, rank: int, task: Task, kind: str, size: Size) -> None:
        self._rank, self._task, self._kind, self._size = rank, task, kind, size
        self._data = data(kind, size, rank)
        self._wanted: list[Tensor] = []  # the parameters that all ways must come to
        self._ready: dict[str, tuple[Training, float]] = {}
        self._failures: dict[str, str] = {}
        self._alone, self._programs = self._silenced()
        self._prepare(fixed_ways(kind))

    def case(self, ratio: float | None) -> Case:
        """Everything at one rate of the link."""
        title = self._kind if ratio is None else f"{self._kind}, {ratio:g}×"
        rate = None if ratio is None else self._tuned(title, ratio)
        machine = self._machine(title, rate)
        old = {role: weft.last_report(role) for role in _ROLES}
        self._prepare(planned_ways(machine, title))
        new = {role: report for role in _ROLES if (report := weft.last_report(role)) is not None}
        reports = {role: report for role, report in new.items() if report is not old[role]}
        return self._measured(title, ratio, rate, machine, reports)

    def _silenced(self) -> tuple[Training, list[Program]]:
        say(self._rank, f"{self._kind}: compiling compute alone")
        model = parallel_model(self._kind, self._size.config)
        run, silent = silenced(model)
        made = training(model, run, self._data)
        made()
        return made, silent.programs

    def _prepare(self, ways: Mapping[str, Way]) -> None:
        for name, way in ways.items():
            if name in self._task.ways:
                self._compile(name, way)

    def _compile(self, name: str, way: Way) -> None:
        """Compile a way, by its first steps, and compare; what fails is noted."""
        say(self._rank, f"{self._kind}: compiling: {name}")
        config = self._size.config
        model = torch_ddp(config) if name == TORCH_DDP else parallel_model(self._kind, config)
        why, made = "", None
        try:
            made = training(model, way(model), self._data)
            for _ in range(_STEPS):
                made()
        except Exception as error:  # of torch's passes, whatever they raise; it is told in the table
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        why = next(filter(None, from_all(why)), "")
        self._failures.pop(name, None)
        self._ready.pop(name, None)
        if why or made is None:
            self._failures[name] = why
            return
        self._wanted = self._wanted or made.state()
        off: float = max(from_all(apart(made.state(), self._wanted)))
        if not off <= TOLERANCE:
            raise WeftError(f"{self._kind}, {name}: after {_STEPS} steps, a parameter is {off:.1e} away")
        self._ready[name] = made, off

    def _tuned(self, title: str, ratio: float) -> float:
        say(self._rank, f"{title}: looking for the rate of the link")
        alone: Mapping[str, Call] = {COMPUTE: self._alone, COMMUNICATION: communication_alone(*self._programs)}
        return tuned(self._task.hosts, alone, ratio, _TRIES)

    def _machine(self, title: str, rate: float | None) -> Machine:
        say(self._rank, f"{title}: calibrating" + ("" if rate is None else f" at {rate / 1e6:,.0f} Mbit/s"))
        machine = calibrated(self._task.effort)
        return machine if rate is None else replace(machine, compute_slowdown=slowdown(self._alone, rate, _TRIES))

    def _measured(
        self, title: str, ratio: float | None, rate: float | None, machine: Machine, reports: Mapping[str, Report]
    ) -> Case:
        say(self._rank, f"{title}: measuring")
        communication = {_COMM[role]: _communication(reports.get(role)) for role in _ROLES}
        metered = {name: _Metered(made) for name, (made, _) in self._ready.items()}
        alone: Mapping[str, Call] = {COMPUTE: self._alone, _FORWARD: self._alone.forward, **communication}
        alone = {**alone, COMMUNICATION: lambda: [call() for call in communication.values()]}
        times, others = measured({**alone, **metered}, self._task.repetitions)
        rows = [
            Row(name, times[name], max(from_all(median(metered[name].others_us))), off)
            for name, (_, off) in self._ready.items()
        ]
        forward = times[_FORWARD].median
        computes = dict(zip(_ROLES, (forward, times[COMPUTE].median - forward), strict=True))
        ahead, back = (Part(computes[role], times[_COMM[role]].median) for role in _ROLES)
        predicted = sum(report.after.step_us for report in reports.values())
        return Case(
            self._kind,
            ratio,
            rate,
            times[COMPUTE],
            times[COMMUNICATION],
            (ahead, back),
            tuple(rows),
            dict(self._failures),
            predicted,
            machine.compute_slowdown,
            others,
        )


def _communication(report: Report | None) -> Callable[[], Any]:
    """The collectives of a graph that Weft made; of none, nothing."""
    if report is None or report.program_after is None:
        return communication_alone()
    return communication_alone(report.program_after)


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
        sizes = {kind: SIZES[kind] for kind in options.kinds}
        try:
            found = run(Task(hosts, sizes, tuple(options.ways), wanted, options.repetitions, EFFORT))
        except WeftError as error:
            sys.exit(f"bench.real: {error}")
        except KeyboardInterrupt:
            sys.exit("bench.real: interrupted; the ranks, their hosts and the link are gone")
    print("\n\n".join(map(table, found)))
    told = [line for case in found for line in verdicts(case)]
    print("\n" + "\n".join(map(str, told)))
    if options.json:
        options.json.write_text(to_json(found), encoding="utf-8")
    sys.exit(0 if all(line.holds for line in told) else 1)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=_kinds, default=[*SIZES], help=f"of {', '.join(SIZES)}, separated by commas")
    parser.add_argument("--ratios", type=ratios, default=RATIOS, help="communication to compute; 0.5,1,2")
    parser.add_argument("--ways", type=_ways, default=ALL, help=f"of {', '.join(ALL)}, separated by commas")
    parser.add_argument("--repetitions", type=count, default=7, help="how often each way is run; 7")
    parser.add_argument("--nice", type=int, default=0, help="priority of the ranks, -20 to go before all others; 0")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(words)


def _kinds(text: str) -> list[str]:
    for name in listed(text):
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"{name!r} is no kind; there are {', '.join(SIZES)}")
    return listed(text)


def _ways(text: str) -> list[str]:
    for name in listed(text):
        if name not in ALL:
            raise argparse.ArgumentTypeError(f"{name!r} is no way; there are {', '.join(ALL)}")
    return listed(text)


if __name__ == "__main__":
    main()
