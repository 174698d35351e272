"""`weft opt`: put a program through passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weft import pipeline
from weft.cli.common import read_text, reported, say
from weft.cli.completing import files, machines, pipelines
from weft.cli.options import json_option, memory_option
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.errors import OptionError
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.ir.text import print_program
from weft.optimizer import PRESETS, Optimized, optimize, parse_bytes, replay
from weft.passes import PASSES, Plan, Remark, parse_pipeline
from weft.pipeline import Stage
from weft.sim import Timeline
from weft.verify import verify

Watch = Callable[[Stage], None]


@dataclass(frozen=True)
class _Result:
    """What came out. `stages` are the passes that ran, and `optimized` is there if the simulator was asked."""

    program: Program
    plans: tuple[Plan, ...]
    remarks: tuple[Remark, ...]
    stages: tuple[Stage, ...]
    optimized: Optimized | None = None


@click.command(name="opt")
@click.option(
    "-p",
    "--passes",
    metavar="PIPELINE",
    shell_complete=pipelines,
    help="The passes, e.g. 'sink_waits,hoist_starts{group=dp}'.",
)
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Passes by name. With a machine: default.")
@click.option("-m", "--machine", shell_complete=machines, help="For passes that decide by cost: a preset, or a file.")
@memory_option()
@click.option("--plan-out", metavar="FILE", shell_complete=files, help="Write what was decided, as JSON.")
@click.option(
    "--plan", "plan_in", metavar="FILE", shell_complete=files, help="Decide nothing, and do what --plan-out wrote."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the program here instead of printing it.")
@click.option("--print-after-all", is_flag=True, help="Print the program after each pass to standard error.")
@click.option("--verify/--no-verify", "verify_each", default=True, help="Check each pass's result. On by default.")
@click.option("--quiet", is_flag=True, help="Print no remarks and no summary.")
@json_option("program, plans, remarks and timings")
@click.argument("file", shell_complete=files)
def command(
    passes: str | None,
    preset: str | None,
    machine: str | None,
    memory_limit: str | None,
    plan_out: str | None,
    plan_in: str | None,
    output: str | None,
    print_after_all: bool,
    verify_each: bool,
    quiet: bool,
    as_json: bool,
    file: str,
) -> None:
    """Put the program in FILE (or on standard input, for -) through passes and print what comes out.

    Which passes: those of -p, those of a preset, or, if there is a machine and nothing else, the preset default. Of a
    preset only that is kept which the simulator confirms, and what it gained is summed up in one line. Remarks, which
    say what each pass did and refused, go to standard error. A reproducer that Weft wrote names its passes itself:
    `weft opt FILE`, with the same --machine and --memory-limit, replays it.

    \b
    Example:
        weft opt --machine h100-ib400 --memory-limit 70GB -o fast.weft step.weft
        weft opt --machine h100-ib400 --preset safe --plan-out plan.json step.weft
        weft opt --machine h100-ib400 --plan plan.json step.weft
        weft opt -p sink_waits,hoist_starts step.weft
        weft opt -p 'hoist_starts{group="dp"}' --json step.weft
    \b
    Exit codes: 0 done, 1 a program is not safe or a pass failed, 2 the input cannot be used.
    """
    with reported(as_json):
        if sum(way is not None for way in (passes, preset, plan_in)) > 1:
            raise OptionError("-p, --preset and --plan each say what to do: give one of them")
        if plan_in == "":  # a variable of the shell that is not set
            raise OptionError("--plan is empty: give the file that --plan-out wrote")
        if plan_in is not None and memory_limit is not None:
            raise OptionError("--memory-limit is for deciding, and --plan decides nothing: give one of them")
        text = read_text(file)
        wanted = passes if preset or plan_in or passes is not None else pipeline.read_replay(text)
        cost = Machine.load(machine) if machine is not None else None
        limit = parse_bytes(memory_limit) if memory_limit is not None else None
        watch: Watch = _print_stage if print_after_all else lambda stage: None
        if wanted is None:
            needed = _needed(cost, preset or plan_in, verify_each)
            step = _checked(text, file)
            result = _replayed(step, plan_in, needed) if plan_in else _optimized(step, preset, needed, limit, watch)
        else:
            result = _piped(_checked(text, file), wanted, cost, limit, verify_each, watch)
        if plan_out is not None:
            _save(plan_out, _plan_text(result.plans))
        _write(result, output, as_json, quiet)


def _needed(cost: Machine | None, way: str | None, verify_each: bool) -> Machine:
    """The machine, without which a preset cannot decide and a plan's gain cannot be told."""
    if cost is None and way is None:
        raise OptionError(
            f"which passes? Give -p with some of: {', '.join(PASSES)}; or --machine, for the preset default"
        )
    if cost is None:
        raise OptionError("for which machine? Give --machine; `weft machines` lists those that are known")
    if not verify_each:
        raise OptionError("--no-verify goes with -p: what a preset or a plan makes is always checked")
    return cost


def _checked(text: str, file: str) -> Program:
    program = parse(text, source=file)
    verify(program)
    return program


def _piped(
    step: Program, passes: str, cost: Machine | None, limit: int | None, verify_each: bool, watch: Watch
) -> _Result:
    made = pipeline.run(
        step, parse_pipeline(passes, PASSES), cost=cost, memory_limit=limit, verify_each=verify_each, watch=watch
    )
    return _Result(made.program, tuple(stage.plan for stage in made.stages), made.remarks, made.stages)


def _optimized(step: Program, preset: str | None, cost: Machine, limit: int | None, watch: Watch) -> _Result:
    stages: list[Stage] = []
    with capture_progress("optimising") as progress:

        def watched(stage: Stage) -> None:
            stages.append(stage)
            progress(f"{stage.plan.pass_text} done", len(stage.program))
            watch(stage)

        made = optimize(step, cost=cost, passes=preset, memory_limit=limit, watch=watched)
    kept = tuple(stage for stage in stages if stage.plan in made.plans)
    return _Result(made.program, made.plans, made.remarks, kept, made)


def _replayed(step: Program, path: str, cost: Machine) -> _Result:
    made = replay(step, read_text(path), cost)
    return _Result(made.program, made.plans, made.remarks, (), made)


# What is printed


def _print_stage(stage: Stage) -> None:
    click.echo(f"# after {stage.plan.pass_text}\n{print_program(stage.program)}", err=True)


def _write(result: _Result, output: str | None, as_json: bool, quiet: bool) -> None:
    text = json.dumps(_as_json(result), indent=1) + "\n" if as_json else print_program(result.program)
    if not as_json and not quiet:
        for remark in result.remarks:
            say(str(remark))
        if result.optimized is not None:
            say(str(result.optimized))
    if output is None:
        click.echo(text, nl=False)  # unlike `write`, it copes with ASCII and with no standard output
    else:
        _save(output, text)


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None


def _plan_text(plans: tuple[Plan, ...]) -> str:
    """The plans as `replay` takes them, one a line."""
    return "[\n" + ",\n".join(plan.to_json() for plan in plans) + "\n]\n"


def _as_json(result: _Result) -> dict[str, Any]:
    seconds = {
        id(stage.plan): {"plan": stage.plan_s, "apply": stage.apply_s, "verify": stage.verify_s}
        for stage in result.stages
    }
    passes = [
        {"pass": plan.pass_text, "plan": json.loads(plan.to_json()), "hash": plan.hash}
        | ({"seconds": seconds[id(plan)]} if id(plan) in seconds else {})
        for plan in result.plans
    ]
    remarks = [
        {"pass": remark.pass_name, "op": remark.op, "verdict": remark.verdict, "message": remark.message}
        for remark in result.remarks
    ]
    content: dict[str, Any] = {"program": print_program(result.program), "passes": passes, "remarks": remarks}
    if result.optimized is not None:
        content |= {"before": _figures(result.optimized.before), "after": _figures(result.optimized.after)}
    return content


def _figures(timeline: Timeline) -> dict[str, float | int]:
    return {
        "step_us": timeline.step_us,
        "exposed_us": timeline.exposed_us,
        "peak_bytes": timeline.peak_bytes,
        "collectives": len(timeline.program.communicating),
    }
