"""`weft simulate`: how long a program takes on a machine, and what it waits for."""

from __future__ import annotations

import json
from typing import Any

import click

from weft.cli.common import figures, read_program, reported, say
from weft.cli.completing import files
from weft.cli.options import json_option, machine_option
from weft.cost import CostModel, Estimates, Machine, Profile, coverage, warn_if_partial
from weft.errors import visible
from weft.ir.program import Program
from weft.report import lanes
from weft.sim import Timeline, simulate
from weft.verify import verify

_SHOWN = 10  # exposed collectives that are worth a line each


@click.command(name="simulate")
@machine_option
@click.option(
    "--profile",
    "traces",
    multiple=True,
    shell_complete=files,
    help="A trace of torch.profiler with better times; one for each rank.",
)
@click.option("--lanes", "draw", is_flag=True, help="Draw the timeline with characters.")
@json_option("the figures")
@click.argument("program", shell_complete=files)
def command(machine: str, traces: tuple[str, ...], draw: bool, as_json: bool, program: str) -> None:
    """Simulate the step in PROGRAM (a file, or - for standard input) on a machine that need not be there.

    \b
    Example:
        weft simulate --machine h100-ib400 step.weft
        weft opt -p hoist_starts step.weft | weft simulate --lanes -
        weft simulate --profile rank0.json --profile rank1.json step.weft
    \b
    A collective is exposed for as long as the compute stream does nothing but wait for it. The bound is proved: no
    legal order, bucketing or splitting of this program makes the step shorter on this machine.
    \b
    Exit codes: 0 done, 1 the program is not safe, 2 the input cannot be used.
    """
    with reported(as_json):
        step = read_program(program)
        verify(step)
        timeline = simulate(step, _cost(step, Machine.load(machine), traces))
        if as_json:
            click.echo(json.dumps(_content(timeline), indent=1))
        elif draw:
            click.echo(lanes(timeline), nl=False)
        else:
            _print(timeline)


def _cost(step: Program, machine: Machine, traces: tuple[str, ...]) -> CostModel:
    """The machine, behind the traces if there are any; a warning says what they do not know."""
    if not traces:
        return machine
    profile = Profile.load(*traces)
    estimates = Estimates(machine, compute_estimator="profile", collective_estimator="profile", profile=profile)
    warn_if_partial(coverage(step, estimates))
    return estimates


def _content(timeline: Timeline) -> dict[str, Any]:
    exposures = [
        {"op": one.start, "us": one.us, "causes": [{"kind": c.kind, "us": c.us, "op": c.op} for c in one.causes]}
        for one in timeline.exposures
    ]
    return {
        **figures(timeline),
        "exposures": exposures,
        "memory": timeline.memory_at,
        "estimated_from_bytes": dict(timeline.prices.unknown),
    }


def _print(timeline: Timeline) -> None:
    count = len(timeline.flights)
    rows = {
        "step": f"{timeline.step_us:,.1f} us",
        "compute": f"{timeline.compute_us:,.1f} us",
        "communication": f"{timeline.comm_us:,.1f} us in {count:,} collective{'s' if count != 1 else ''}",
        "exposed": f"{timeline.exposed_us:,.1f} us",
        "peak memory": f"{timeline.peak_bytes:,} bytes",
        "bound": f"{timeline.bound_us:,.1f} us, by {timeline.bound.name}",
    }
    for name, value in rows.items():
        click.echo(f"{name:<14} {value}")
    for exposure in timeline.exposures[:_SHOWN]:
        click.echo(visible(str(exposure)))
    if (more := len(timeline.exposures) - _SHOWN) > 0:
        click.echo(f"and {more:,} more exposed collectives")
    if timeline.prices.unknown:
        guessed = ", ".join(f"{target} ({count})" for target, count in timeline.prices.unknown.items())
        say(f"estimated from their bytes only: {guessed}")
