"""The options that several commands take alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from weft.cli.completing import machines

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

machine_option: Decorator = click.option(
    "-m", "--machine", default="h100-ib400", show_default=True, shell_complete=machines, help="A preset, or a file."
)


def memory_option(such_as: str = "70GB") -> Decorator:
    """`--memory-limit`, as `memory_limit`."""
    help_text = f"What the step may take, such as {such_as}. Default: no limit."
    return click.option("--memory-limit", metavar="BYTES", help=help_text)


def json_option(what: str = "everything") -> Decorator:
    """`--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")
