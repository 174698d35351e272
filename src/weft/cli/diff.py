"""`weft diff`: what is different in another program, and what that bought."""

from __future__ import annotations

import json

import click

from weft.cli.common import read_program, reported
from weft.cli.completing import files, machines
from weft.cli.options import json_option
from weft.cost import Machine
from weft.errors import OptionError
from weft.report.changes import changes
from weft.report.diff import diff_json, diff_text
from weft.sim import simulate
from weft.verify import verify


@click.command(name="diff")
@click.option(
    "-m", "--machine", shell_complete=machines, help="A preset, or a file: say what each change bought there."
)
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(min=1), help="How many changes of a kind to show."
)
@json_option()
@click.argument("before", shell_complete=files)
@click.argument("after", shell_complete=files)
def command(machine: str | None, top: int, as_json: bool, before: str, after: str) -> None:
    """Say what was merged, split, replaced, moved, is new or gone from the program in BEFORE to the one in AFTER.

    With a machine both are simulated, and every change has the time that it takes off the step: a collective is counted
    for as long as it is exposed, other ops for as long as they run. The biggest gain comes first, and all gains
    together are what the step became shorter.

    \b
    Example:
        weft opt --machine h100-ib400 -o after.weft before.weft
        weft diff before.weft after.weft
        weft diff --machine h100-ib400 before.weft after.weft
    \b
    Exit codes: 0 done, 1 a program is not safe, 2 the input cannot be used.
    """
    with reported(as_json):
        if before == after == "-":
            raise OptionError("only one of the two programs can come from standard input")
        first, second = map(read_program, (before, after))
        timelines = None
        if machine is not None:
            cost = Machine.load(machine)
            verify(first)
            verify(second)
            timelines = simulate(first, cost), simulate(second, cost)
        found = changes(first, second, timelines)
        if as_json:
            click.echo(json.dumps(diff_json(first, second, found, timelines), indent=1))
            return
        for number, (title, lines) in enumerate(diff_text(first, second, found, timelines, top)):
            click.echo(("\n" if number else "") + click.style(title, bold=True))
            for line in lines:
                click.echo(f"   {line}")
