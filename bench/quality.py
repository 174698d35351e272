"""How good schedules are: the original order, torch's own pass, Weft and the bound, on workloads and machines.

    python -m bench.quality                                                    # all workloads, as deep as they are
    python -m bench.quality --workloads llama3_8b_fsdp --machines h100-ib400,gb200-nvl72 --layers 4
    python -m bench.quality --limits +5% --json quality.json --picture quality.png
    python -m bench.quality --json again.json --reuse quality.json             # torch's rows are taken from there
    python -m bench.quality --rows weft --limits +0%,+10%,+20%                 # Weft alone, under each of these limits

Every row is simulated by Weft on the same machine. "exposed" is the time in which compute waits for communication,
"pass s" are CPU seconds, for Weft with verification, and "÷ bound" says how many times as long as the bound a step
takes: nothing can be below 1. Where there is memory for it Weft may gather a parameter once instead of twice; such a
row is compared with the bound of what is left to do. The peak is counted twice, by the simulator and independently; a
row whose peak is over the limit is marked. In the end comes the geometric mean of each row, and every case in which
Weft is behind the original or behind torch's pass within the same memory; and how near `schedule` comes to the best
order that CP-SAT finds for small random programs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time

import weft
from bench.capture import captured_on
from bench.cases import Case, Figures, Row, from_json, summary, table, to_json
from bench.options import known_workloads, listed
from bench.picture import draw
from bench.tightness import SCHEDULED, scheduled
from bench.torch_pass import torch_pass
from bench.workloads import WORKLOADS, Workload
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.errors import WeftWarning
from weft.ir import Program
from weft.passes import PASSES, Plan, parse_pipeline
from weft.passes.gather_once import GatherOnce
from weft.pipeline import carry_out
from weft.sim import Timeline, simulate

# What Weft is measured with, by the name of its row: presets of `weft.optimize`.
PIPELINES: Mapping[str, str] = {"weft": "default", "weft, safe": "safe"}

MACHINES = ("h100-ib400", "h100-eth100", "gb200-nvl72")
LIMITS = ("none", "+5%")


@dataclass(frozen=True)
class Problem:
    """A step to schedule on a machine. `limit_bytes` is the most that may live at once, None for any number."""

    original: Timeline
    machine: Machine
    limit_bytes: int | None

    @property
    def program(self) -> Program:
        return self.original.program


@dataclass(frozen=True)
class Made:
    """A step that was scheduled, the CPU seconds that it took, and its bound if it does less than it did."""

    program: Program
    seconds: float
    bound_us: float | None = None


Way = Callable[[Problem], Made]


def by_torch(bucketing: bool) -> Way:
    def way(problem: Problem) -> Made:
        limit, peak = problem.limit_bytes, problem.original.peak_bytes
        increase = None if limit is None else limit - peak
        made, seconds = torch_pass(problem.program, problem.machine, bucketing=bucketing, memory_increase=increase)
        weft.verify(made)
        return Made(made, seconds)

    return way


def by_weft(passes: str) -> Way:
    def way(problem: Problem) -> Made:
        begin = process_time()
        found = weft.optimize(problem.program, problem.machine, memory_limit=problem.limit_bytes, passes=passes)
        return Made(found.program, process_time() - begin, _bound_of_less(problem, found.plans))

    return way


def _bound_of_less(problem: Problem, plans: Sequence[Plan]) -> float | None:
    """The bound of the step without the gathers that plans left out; None if they left out none."""
    passes = [parse_pipeline(plan.pass_text, PASSES)[0].name for plan in plans]
    if GatherOnce.name not in passes or not plans[passes.index(GatherOnce.name)].steps:
        return None
    program = problem.program
    for plan in plans[: passes.index(GatherOnce.name) + 1]:
        program = carry_out(program, plan)
    return simulate(program, problem.machine).bound_us


WAYS: Mapping[str, Way] = {
    "torch": by_torch(bucketing=False),
    "torch, buckets": by_torch(bucketing=True),
    **{name: by_weft(passes) for name, passes in PIPELINES.items()},
}


def measured(problem: Problem, name: str, way: Way) -> Row:
    """The figures of one way. One that fails has an error instead: the others are still worth having."""
    try:
        made = way(problem)
        return Row(name, Figures.of(simulate(made.program, problem.machine), made.seconds, made.bound_us))
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return Row(name, None, f"{type(error).__name__}: {first}")


def limit_bytes(limit: str, peak_bytes: int) -> int | None:
    """What "none" or "+5%" of the original peak is in bytes. ValueError if it is neither."""
    if limit == "none":
        return None
    if not (limit.startswith("+") and limit.endswith("%")):
        raise ValueError(f'a memory limit is "none" or such as "+5%", not {limit!r}')
    return round(peak_bytes * (1 + float(limit[1:-1]) / 100))


def cases(
    workload: Workload,
    machines: Iterable[str],
    limits: Sequence[str],
    say: Callable[[str], None] = lambda line: None,
    known: Sequence[Case] = (),
    rows: Collection[str] | None = None,
) -> Iterator[Case]:
    """A workload, captured once, on each machine under each limit. `say` is told what comes next; `rows` are the names
    of those that are wanted beside the original, all if it is None.

    torch's pass takes minutes and is the same every time: its rows are taken from cases that are `known`, if they have
    the same program at the same prices, which the bound tells.
    """
    with weft.planning(dict(workload.mesh)) as mesh:
        with capture_progress(workload.name) as progress:
            program = captured_on(mesh, workload, progress)
        for machine in map(Machine.load, machines):
            original = simulate(program, machine)
            for limit in limits:
                problem = Problem(original, machine, limit_bytes(limit, original.peak_bytes))
                found = [Row("original", Figures.of(original, 0.0))]
                before = _rows(known, _case(workload, problem, limit, found))
                for name, way in WAYS.items():
                    if rows is None or name in rows:
                        say(f"{workload.name} on {machine.name}, limit {limit}: {name}")
                        found.append(before[name] if name in before else measured(problem, name, way))
                yield _case(workload, problem, limit, found)


def _rows(known: Sequence[Case], case: Case) -> dict[str, Row]:
    """The rows of torch's pass in a case that is the same but for its rows."""
    same = (one for one in known if replace(one, rows=()) == replace(case, rows=()))
    return {row.name: row for one in same for row in one.rows if row.name.startswith("torch")}


def _case(workload: Workload, problem: Problem, limit: str, rows: Iterable[Row]) -> Case:
    return Case(
        workload=workload.name,
        layers=workload.config.layers,
        machine=problem.machine.name,
        limit=limit,
        limit_bytes=problem.limit_bytes,
        bound_us=problem.original.bound_us,
        bound_by=problem.original.bound.name,
        rows=tuple(rows),
    )


def sound(case: Case) -> bool:
    """Whether every schedule of Weft was made and is within the limit, and none is below the bound or miscounted."""
    known = [row.figures for row in case.rows if row.figures is not None]
    ours = [row.figures for row in case.rows if row.name in PIPELINES]
    made = all(figures is not None and not case.over_limit(figures) for figures in ours)
    return made and not any(case.below_bound(figures) or figures.miscounted for figures in known)


def small_programs(count: int) -> str:
    """How long the step of small random programs is after `schedule`, against the best order that there is."""
    ratios = [ratio for ratio, _ in scheduled(count)]
    near = sum(ratio <= 1.02 for ratio in ratios)
    return f"{near} of {len(ratios)} small programs are within 2% of CP-SAT's optimum, at worst {max(ratios):.3f}"


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore", WeftWarning)  # buckets beyond the last knot of a curve are extrapolated
    found: list[Case] = []
    for name in options.workloads:
        workload = WORKLOADS[name] if options.layers is None else WORKLOADS[name].with_layers(options.layers)
        say = partial(print, file=sys.stderr)
        for case in cases(workload, options.machines, options.limits, say, options.reuse, options.rows):
            found.append(case)
            print(table(case), end="\n\n", flush=True)
            if options.json:  # after each case: a run takes long, and one that is ended keeps what it found
                options.json.write_text(to_json(found), encoding="utf-8")
    print(summary(found))
    if options.small:
        print(small_programs(options.small))
    if options.picture:
        draw(found, options.picture)
    sys.exit(0 if all(map(sound, found)) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=known_workloads, default=list(WORKLOADS), help="names, separated by commas")
    parser.add_argument("--machines", type=listed, default=MACHINES, help="presets or files, separated by commas")
    parser.add_argument("--limits", type=_limits, default=LIMITS, help='memory: "none", "+5%%" over the original')
    parser.add_argument("--rows", nargs="+", choices=[*WAYS], help="which rows beside the original; all by default")
    parser.add_argument(
        "--small", type=int, default=SCHEDULED, help="how many small programs to hold against CP-SAT, 0 for none"
    )
    parser.add_argument("--layers", type=int, help="make every model so deep; by default each is as it was published")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--reuse", type=_cases, default=[], help="take torch's rows from a file that --json wrote")
    parser.add_argument("--picture", type=Path, help="draw them into this file, .png or .svg")
    return parser.parse_args()


def _cases(path: str) -> list[Case]:
    return from_json(Path(path).read_text(encoding="utf-8"))


def _limits(text: str) -> list[str]:
    limits = listed(text)
    for limit in limits:
        try:
            limit_bytes(limit, 0)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return limits


if __name__ == "__main__":
    main()
