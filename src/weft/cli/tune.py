"""`weft tune`: which knobs give which step for which memory."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from weft.cli.common import read_program, reported
from weft.cli.completing import files
from weft.cli.options import json_option, machine_option
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.ir.text import counted
from weft.optimizer import parse_bytes
from weft.sim.units import size_text, time_text
from weft.tuning import Tuned, tune
from weft.verify import verify


@click.command(name="tune")
@machine_option
@click.option(
    "--memory-limit", metavar="BYTES", help="Leave out what takes more, such as 70GB, unless all does. Default: none."
)
@json_option("the table")
@click.argument("program", shell_complete=files)
def command(machine: str, memory_limit: str | None, as_json: bool, program: str) -> None:
    """Search the knobs for the step in PROGRAM (a file, or - for standard input): buckets, limits, order.

    What is printed is a table of step against peak memory. Each row is faster than all that take less memory, and
    names the pipeline that gives it, for `weft opt -p`, and the --memory-limit to go with it.

    \b
    Example:
        weft tune --machine h100-ib400 step.weft
        weft tune --memory-limit 70GB --json step.weft
    \b
    Exit codes: 0 done, 1 a program is not safe or a pass failed, 2 the input cannot be used.
    """
    with reported(as_json):
        step = read_program(program)
        verify(step)
        limit = parse_bytes(memory_limit) if memory_limit is not None else None
        cost = Machine.load(machine)
        with capture_progress("tuning") as progress:
            found = tune(step, cost, memory_limit=limit, watch=lambda text: progress(text, len(step)))
        if as_json:
            click.echo(json.dumps(_content(found), indent=1))
        else:
            _print(found, limit)


def _content(found: Tuned) -> dict[str, object]:
    before = {"step_us": found.before.step_us, "peak_bytes": found.before.peak_bytes}
    rows = [asdict(row) for row in found.rows]
    return {"before": before, "bound_us": found.before.bound_us, "tried": found.tried, "rows": rows}


def _print(found: Tuned, limit: int | None) -> None:
    before = found.before
    click.echo(
        f"as it is: step {time_text(before.step_us)}, peak {size_text(before.peak_bytes)}; "
        f"bound {time_text(before.bound_us)}; {counted(found.tried, 'setting')} tried"
    )
    if limit is not None and all(row.peak_bytes > limit for row in found.rows):
        said = f"nothing fits into {size_text(limit)}: all that follow take more"
        click.echo(click.style(said, fg="red", bold=True))
    table = [("step", "peak", "memory limit", "pipeline")]
    for row in found.rows:
        within, pipeline = row.memory_limit or "none", row.pipeline or "as it is"
        table.append((time_text(row.step_us), size_text(row.peak_bytes), within, pipeline))
    widths = [max(len(cells[column]) for cells in table) for column in range(3)]
    for number, cells in enumerate(table):
        line = "  ".join([*map(str.rjust, cells[:3], widths), cells[3]])
        click.echo(click.style(line, bold=True) if number == 0 else line)
