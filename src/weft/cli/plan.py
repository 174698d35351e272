"""`weft plan`: what a training script would do on a cluster that is not there, before and after Weft."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from weft.cli.common import figures, reported
from weft.cli.completing import directories, files, machines, pipelines_or_presets, swept
from weft.cli.options import json_option, memory_option
from weft.cli.output import output_directory
from weft.cli.planning import Case, Planned, planned, steps_of
from weft.cli.progress import capture_progress
from weft.cli.sweep import SWEPT, axes_of, cases_of, content, points_of, table
from weft.errors import visible
from weft.ir.text import print_program
from weft.optimizer import PRESETS
from weft.passes import PASSES, Pass, parse_pipeline
from weft.remedies import explain, made_of
from weft.report.explain import explained, explained_json
from weft.report.html import html_report
from weft.report.perfetto import perfetto_trace
from weft.report.sweep import sweep_page
from weft.sim.explanation import Explanation
from weft.sim.summary import summary
from weft.sim.timeline import Timeline
from weft.sim.units import size_text

PLAN_FILES = ("report.html", "before.json", "after.json", "plan.json", "program.weft", "optimized.weft")
_SWEEP_FILES = ("sweep.html", "sweep.json")


@click.command(name="plan")
@click.option("-n", "--world-size", metavar="RANKS", help="How many ranks the script is planned for.")
@click.option("-m", "--machine", shell_complete=machines, help="A preset, or a file. Default: h100-ib400.")
@memory_option()
@click.option(
    "-p",
    "--passes",
    default="default",
    show_default=True,
    shell_complete=pipelines_or_presets,
    help="A pipeline, or the name of a preset.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    shell_complete=swept,
    metavar="NAME=A,B,…",
    help=f"Try several: {', '.join(SWEPT)}.",
)
@click.option("--top", default=5, show_default=True, type=click.IntRange(min=0), help="How many remedies to look for.")
@click.option("--out", metavar="DIR", shell_complete=directories, help="Write the report and everything else here.")
@json_option()
@click.argument("step", shell_complete=files)
def command(
    world_size: str | None,
    machine: str | None,
    memory_limit: str | None,
    passes: str,
    sweeps: tuple[str, ...],
    top: int,
    out: str | None,
    as_json: bool,
    step: str,
) -> None:
    """Plan STEP, a training script or a program, for a cluster that is not there: capture, optimise, simulate.

    A script (.py) has two functions. mesh_for(world_size) returns the names and sizes of the mesh, and build(mesh) the
    training step and a tuple of what it is called with. Both are called, so THE CODE OF THE SCRIPT IS RUN, with your
    rights; its `if __name__ == "__main__"` is not. A program (.weft, or - for standard input) is only read.

    What is printed is the step before and after, and what would help against what is still exposed. --out gets
    report.html, before.json and after.json (for ui.perfetto.dev), plan.json, and the program that it is for,
    program.weft, with what becomes of it, optimized.weft. With --sweep it is one table of all cases, and sweep.html
    and sweep.json.

    \b
    Example:
        weft plan examples/fsdp.py --world-size 64 --memory-limit 70GB --out report
        weft plan examples/fsdp.py --sweep world-size=8,64 --sweep machine=h100-ib400,gb200-nvl72 --out report
        weft plan step.weft --machine h100-eth100 --passes safe
        weft opt --machine h100-ib400 --plan report/plan.json report/program.weft
    \b
    Exit codes: 0 done, 1 a program is not safe or a pass failed, 2 the input cannot be used.
    """
    with reported(as_json):
        typed = {"world-size": world_size, "machine": machine, "memory-limit": memory_limit}
        axes = axes_of(sweeps, typed)
        cases = cases_of(axes, typed)
        chosen = parse_pipeline(PRESETS.get(passes, passes), PASSES)
        if sweeps:
            _sweep(step, cases, chosen, tuple(axes), out, as_json)
        else:
            _plan(step, cases[0], chosen, top, out, as_json)


# One case


def _plan(step: str, case: Case, passes: Sequence[Pass], top: int, out: str | None, as_json: bool) -> None:
    with output_directory(out, PLAN_FILES) if out is not None else nullcontext() as texts:
        with steps_of(step, [case]) as steps:
            one = planned(steps, case, passes)
        found = _explanations(one, passes, top)
        if texts is not None:
            texts |= texts_of(step, one)
    files = [str(Path(out) / name) for name in PLAN_FILES] if out is not None else []
    if as_json:
        click.echo(json.dumps(content_of(step, one, found, files), indent=1))
    else:
        print_plan(step, one, found, files)


def _explanations(one: Planned, passes: Sequence[Pass], top: int) -> tuple[Explanation, ...]:
    """What would help against what is still exposed, after all passes."""
    if not top:
        return ()
    made = made_of(one.made, one.stages, passes, one.case.memory_limit)
    with capture_progress("looking for remedies") as progress:
        return explain(made, top, lambda change: progress(f"trying {change}", len(one.program)))


def texts_of(step: str, one: Planned) -> dict[str, str]:
    """The files, by their names."""
    made, limit = one.made, one.case.memory_limit
    about = f"{one.about}, {' → '.join(plan.pass_text for plan in made.plans) or 'no pass'}"
    return {
        "report.html": html_report(step, made.before, made.after, made.remarks, memory_limit=limit, about=about),
        "before.json": perfetto_trace(made.before),
        "after.json": perfetto_trace(made.after),
        "plan.json": made.plan + "\n",
        "program.weft": print_program(one.program),
        "optimized.weft": print_program(made.program),
    }


def print_plan(step: str, one: Planned, found: Sequence[Explanation], files: Sequence[str]) -> None:
    """The table of a step before and after, what would help, and which files there are: the first is to be opened."""
    made, limit = one.made, one.case.memory_limit
    click.echo(click.style(visible(f"{step}: {one.about}"), bold=True))
    rows = [(row.name, row.before, row.after, row.change) for row in summary(made.before, made.after, limit)]
    print_table([("", "before", "after", "change"), *rows])
    if limit is not None and made.after.peak_bytes > limit:
        over = size_text(made.after.peak_bytes - limit)
        click.echo(click.style(f"\nit does not fit: {over} over the limit", fg="red", bold=True))
    for title, lines in list(explained(made.after, found))[1:]:
        click.echo("\n" + click.style(title, bold=True))
        for line in lines:
            click.echo(f"   {line}")
    if files:
        click.echo("\n" + visible(f"open {files[0]}; also written: {', '.join(files[1:])}"))


def content_of(step: str, one: Planned, found: Sequence[Explanation], files: Sequence[str]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "step": step,
        "world_size": one.case.world_size,
        "mesh": one.mesh,
        "machine": one.case.machine.name,
        "memory_limit": one.case.memory_limit,
        "passes": [plan.pass_text for plan in one.made.plans],
        "before": _figures(one.made.before),
        "after": _figures(one.made.after),
        "remedies": explained_json(one.made.after, found)["collectives"],
        "files": list(files),
    }


def _figures(timeline: Timeline) -> dict[str, Any]:
    kinds = Counter(op.collective.kind for op in timeline.program.communicating if op.collective is not None)
    return {**figures(timeline), "collectives": dict(sorted(kinds.items()))}


# Many cases


def _sweep(
    step: str, cases: Sequence[Case], passes: Sequence[Pass], axes: tuple[str, ...], out: str | None, as_json: bool
) -> None:
    with output_directory(out, _SWEEP_FILES) if out is not None else nullcontext() as texts:
        with steps_of(step, cases) as steps:
            points = points_of(steps, cases, passes)
        data = json.dumps(content(step, points), indent=1)
        rows = table(points, axes)
        if texts is not None:
            texts |= {"sweep.html": sweep_page(step, points, rows, axes), "sweep.json": data + "\n"}
    if as_json:
        click.echo(data)
        return
    print_table(rows)
    if out is not None:
        click.echo("\n" + visible(f"open {Path(out) / 'sweep.html'}; also written: {Path(out) / 'sweep.json'}"))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows below a header, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, (name, *cells) in enumerate(rows):
        aligned = map(str.rjust, map(visible, cells), widths[1:])
        line = "  ".join([visible(name).ljust(widths[0]), *aligned]).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)
