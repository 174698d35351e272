"""`weft explain`: why a step waits for its collectives, and what would help."""

from __future__ import annotations

import json

import click

from weft.cli.common import read_program, reported
from weft.cli.completing import files, pipelines
from weft.cli.options import json_option, machine_option, memory_option
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.errors import OptionError
from weft.ir.program import Program
from weft.optimizer import PRESETS, parse_bytes
from weft.passes import PASSES, parse_pipeline
from weft.remedies import Made, as_it_is, explain, made_by
from weft.report.explain import explained, explained_json
from weft.verify import verify


@click.command(name="explain")
@machine_option
@memory_option()
@click.option("--optimize", "optimized", is_flag=True, help="Explain what `weft opt` would make of it.")
@click.option(
    "-p", "--passes", metavar="PIPELINE", shell_complete=pipelines, help="Explain what these passes make of it."
)
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(min=1), help="How many collectives to explain."
)
@json_option()
@click.argument("program", shell_complete=files)
def command(
    machine: str,
    memory_limit: str | None,
    optimized: bool,
    passes: str | None,
    top: int,
    as_json: bool,
    program: str,
) -> None:
    """Say why the step in PROGRAM (a file, or - for standard input) waits, for which collectives, and what would help.

    The collectives that hold the compute stream are listed, most costly first: where they come from, for how long they
    are exposed, why, and the smallest change that hides them. Every remedy was tried in the simulator.

    \b
    Example:
        weft explain --machine h100-ib400 step.weft
        weft explain --optimize --memory-limit 70GB step.weft
        weft explain -p 'schedule{max_in_flight_gb=0.5}' --top 3 --json step.weft
    \b
    Exit codes: 0 done, 1 a program is not safe or a pass failed, 2 the input cannot be used.
    """
    with reported(as_json):
        if optimized and passes is not None:
            raise OptionError("--optimize runs the preset default: give either that or -p")
        step = read_program(program)
        verify(step)
        limit = parse_bytes(memory_limit) if memory_limit is not None else None
        with capture_progress("explaining") as progress:
            made = _made(step, machine, PRESETS["default"] if optimized else passes, limit)
            found = explain(made, top, lambda change: progress(f"trying {change}", len(step)))
        if as_json:
            click.echo(json.dumps(explained_json(made.timeline, found), indent=1))
            return
        for number, (title, lines) in enumerate(explained(made.timeline, found)):
            click.echo(("\n" if number else "") + click.style(title, bold=True))
            for line in lines:
                click.echo(f"   {line}" if number else line)


def _made(step: Program, machine: str, passes: str | None, limit: int | None) -> Made:
    cost = Machine.load(machine)
    if passes is None:
        return as_it_is(step, cost, limit)
    return made_by(step, cost, parse_pipeline(passes, PASSES), limit)
