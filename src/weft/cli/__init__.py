"""The command line: one file a command."""

from __future__ import annotations

import os
from importlib import import_module

import click

_COMMANDS = {
    "bench": "measure a training script on local processes, as it is written and as Weft makes it",
    "calibrate": "measure the cluster that is here, and write it down as a machine",
    "demo": "train a small model with and without Weft, and plan a large one for 64 GPUs that are not there",
    "diff": "say what is different in another program, and what that bought",
    "explain": "say why a step waits for its collectives, and what would help",
    "machines": "list the machines that Weft knows, or show one and where its figures come from",
    "opt": "put a program through passes",
    "plan": "plan a training script for a cluster that is not there, and see what would change",
    "simulate": "say how long a program takes on a machine, and what it waits for",
    "tune": "search knobs, and show the step against the memory that it takes",
    "verify": "check that one program may replace another",
}


class _Lazy(click.Group):
    """Imports a command when it is used, so that `weft --help` and `weft opt` do not wait for torch."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"weft.cli.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="weft")
@click.pass_context
def main(context: click.Context) -> None:
    """Weft, a communication compiler for distributed PyTorch.

    \b
    Plan a training script for a cluster that is not there:
        weft plan examples/fsdp.py --world-size 64 --memory-limit 70GB --out report
    Make a step shorter, and see why it still waits:
        weft opt --machine h100-ib400 --memory-limit 70GB -o fast.weft step.weft
        weft explain --machine h100-ib400 fast.weft
    Look at what a pass does to a program:
        weft opt -p sink_waits,hoist_starts step.weft
    Check that one program may replace another:
        weft verify before.weft after.weft
    """
    if os.environ.get("NO_COLOR"):
        context.color = False  # otherwise colours are for terminals
