"""`weft bench`: whether Weft does anything for a training script, measured on real local processes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from math import isfinite
from typing import Any

import click

from weft.cli.bench_ranks import CAPTURED, WRITTEN, Measured, Row, Task, measure
from weft.cli.common import UNSAFE, reported
from weft.cli.completing import files, machines, pipelines_or_presets
from weft.cli.options import json_option, memory_option
from weft.cli.plan import print_table
from weft.cli.script import opened
from weft.cost import Machine
from weft.errors import OptionError, visible
from weft.ir.notebook import shown
from weft.optimizer import PRESETS, parse_bytes
from weft.passes import PASSES, parse_pipeline
from weft.run.hosts import RANKS, why_no_link
from weft.run.local import local_ranks
from weft.run.measuring import local_hosts

TOLERANCE = 1e-5  # what buckets and other orders of summing make of float32
_TIME_LIMIT_S = 1800
_BITS = {"k": 1e3, "M": 1e6, "G": 1e9}


@click.command(name="bench")
@click.option("--ranks", default=RANKS, show_default=True, type=click.IntRange(min=2), help="How many processes.")
@click.option("--rate", metavar="RATE", help="Of the link between two ranks, such as 300Mbit. Takes root on Linux.")
@click.option("--steps", default=10, show_default=True, type=click.IntRange(min=1), help="How many to measure.")
@click.option(
    "-m",
    "--machine",
    shell_complete=machines,
    help="To plan for: a preset, or a file. Default: this one, calibrated on the spot.",
)
@memory_option("2GB")
@click.option(
    "-p",
    "--passes",
    "pipelines",
    multiple=True,
    shell_complete=pipelines_or_presets,
    help="A pipeline, or a preset; several are compared.",
)
@json_option()
@click.argument("script", shell_complete=files)
def command(
    ranks: int,
    rate: str | None,
    steps: int,
    machine: str | None,
    memory_limit: str | None,
    pipelines: tuple[str, ...],
    as_json: bool,
    script: str,
) -> None:
    """Measure the step of SCRIPT on Gloo processes of this computer: as it is written, captured, and with Weft.

    The script has the two functions that `weft plan` takes, and its code is run. All ways start from the same state,
    and what they return and leave behind must be equal; then they take turns, and the median step of the slowest rank
    counts. With --rate the two ranks are joined by a link that is so fast; otherwise they talk over loopback, where
    there may be little to hide. What is predicted is the simulator's, for the machine that is planned for.

    \b
    Example:
        weft bench examples/fsdp.py
        weft bench --rate 300Mbit -p safe -p default --steps 20 examples/fsdp.py
    \b
    Exit codes: 0 done, 1 the results differ or a program is not safe, 2 it could not be measured.
    """
    with reported(as_json):
        bits = _rate(rate, ranks)
        limit = parse_bytes(memory_limit) if memory_limit is not None else None
        chosen = Machine.load(machine) if machine is not None else None
        ways = {name: _pipeline(name) for name in pipelines or ("default",)}
        with opened(script) as one:
            one.mesh(ranks)  # what is wrong is said before processes are started
        with local_hosts(limited=bits is not None) as hosts:
            task = Task(script, ranks, hosts, bits, chosen, limit, ways, steps)
            found: Measured = local_ranks(measure, ranks, task, time_limit_s=_TIME_LIMIT_S, before=hosts.enter)[0]
        same = all(row.apart <= TOLERANCE for row in found.rows)
        if as_json:
            content = {"script": script, "ranks": ranks, "bits_per_s": bits, "same": same, **_content(found)}
            click.echo(json.dumps(content, indent=1, allow_nan=False))
        else:
            _print(script, task, found, same)
        if not same:
            sys.exit(UNSAFE)


def _content(found: Measured) -> dict[str, Any]:
    """What was measured as plain data. A difference that is not finite is null: JSON has no infinity."""
    content = asdict(found)
    for row in content["rows"]:
        row["apart"] = row["apart"] if isfinite(row["apart"]) else None
    return content


def _rate(text: str | None, ranks: int) -> float | None:
    """Bits per second; an error says what is wrong with them, or why no link can have a rate here."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([kMG])bit(?:/s)?", text)
    if found is None or float(found[1]) == 0:
        raise OptionError(f"{shown(text, 40)!r} is no rate; write such as 300Mbit or 1.5Gbit")
    if ranks != RANKS:
        raise OptionError(f"a link with a rate joins {RANKS} ranks: leave out --rate, or --ranks {ranks}")
    if (why := why_no_link()) is not None:
        raise OptionError(f"there can be no link with a rate here: {why}. Without --rate, ranks talk over loopback")
    return float(found[1]) * _BITS[found[2]]


def _pipeline(text: str) -> str:
    passes = PRESETS.get(text, text)
    parse_pipeline(passes, PASSES)
    return passes


def _print(script: str, task: Task, found: Measured, same: bool) -> None:
    where = "loopback" if task.rate is None else f"a link of {task.rate / 1e6:,.0f} Mbit/s"
    planned = "this machine, calibrated" if task.machine is None else found.machine
    title = f"{script}: {task.ranks} Gloo processes over {where}, planned for {planned}, {task.steps} steps"
    click.echo(click.style(visible(title), bold=True))
    header = ("", "step ms", "quartiles", f"÷ {WRITTEN}", "predicted ms", "collectives", "apart")
    print_table([header, *(_cells(found, row) for row in found.rows)])
    click.echo(f"{CAPTURED}: the same ops in the same order, without Python and autograd between them")
    if same:
        click.echo(click.style(f"all results are the same, within {TOLERANCE:g}", fg="green", bold=True))
    else:
        click.echo(click.style("THE RESULTS DIFFER", fg="red", bold=True))
    if found.others > 0.1:
        click.echo(f"other processes had {found.others:.0%} of the cores: on an idle computer figures would be others")


def _cells(found: Measured, row: Row) -> tuple[str, ...]:
    took = row.took
    return (
        row.name,
        f"{took.median / 1e3:,.1f}",
        f"{took.low / 1e3:,.1f} to {took.high / 1e3:,.1f}",
        f"{took.median / found.rows[0].took.median:.2f}",
        "" if row.predicted_us is None else f"{row.predicted_us / 1e3:,.1f}",
        "" if row.collectives is None else f"{row.collectives:,}",
        f"{row.apart:.0e}" if row.apart else "0",
    )
