"""`weft verify`: check that one program may replace another."""

from __future__ import annotations

import json
import sys

import click

from weft.cli.common import UNSAFE, read_program, reported
from weft.cli.completing import files
from weft.cli.options import json_option
from weft.errors import OptionError, VerifyError
from weft.verify import violations


@click.command(name="verify")
@click.option("--reorders", is_flag=True, help="Permit another order of the collectives within a group.")
@json_option("the violations")
@click.argument("before", shell_complete=files)
@click.argument("after", required=False, shell_complete=files)
def command(reorders: bool, as_json: bool, before: str, after: str | None) -> None:
    """Check that the program in AFTER may replace the one in BEFORE; with one file, check that one by itself.

    \b
    Example:
        weft verify before.weft after.weft
    \b
    Exit codes: 0 safe, 1 not safe (every violation is listed), 2 a file cannot be used.
    """
    with reported(as_json):
        if before == after == "-":
            raise OptionError("only one of the two programs can come from standard input")
        first = read_program(before)
        second = read_program(after) if after is not None else None
        found = violations(first, second, reorders=reorders)
        if as_json:
            rows = [{"rule": one.rule, "op": one.op, "message": one.message} for one in found]
            click.echo(json.dumps({"safe": not found, "violations": rows}, indent=1))
            sys.exit(UNSAFE if found else 0)
        if found:
            raise VerifyError(found)
        click.echo("safe")
