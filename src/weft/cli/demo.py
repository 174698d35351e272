"""`weft demo`: the whole path on a small model, on real processes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import click
import torch
import torch.distributed as dist
from rich.console import Console

import weft
from weft.cli import demo_model
from weft.cli.common import UNSAFE, reported
from weft.ir.text import counted
from weft.run.local import local_ranks

RANKS = 2
MACHINE = "gloo-cpu"
_TIME_LIMIT_S = 100


@dataclass(frozen=True)
class _Outcome:
    """What a rank reports: the programs as text, remarks, what was gained by prediction, and how many outputs are equal
    bit by bit."""

    before: str
    after: str
    remarks: list[str]
    gained: str
    loss: float
    equal: int
    outputs: int


@click.command(name="demo")
@click.option("--full", is_flag=True, help="Print both programs whole, not only around the collectives.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(full: bool, as_json: bool) -> None:
    """Capture a small sharded Llama, optimise it, run both programs on two Gloo processes and compare.

    \b
    Example:
        weft demo
        weft demo --full
    """
    with reported(as_json):
        console = Console(highlight=False, soft_wrap=True, quiet=as_json)
        with console.status(f"a training step on {RANKS} Gloo processes ..."):
            outcome, *others = local_ranks(_rank, RANKS, time_limit_s=_TIME_LIMIT_S)
        same = all(one.equal == one.outputs for one in (outcome, *others))
        if as_json:
            click.echo(json.dumps(vars(outcome)))
        else:
            _show(outcome, full, same, console)
        if not same:
            sys.exit(UNSAFE)


def _rank(rank: int) -> _Outcome:
    """Capture, optimise and run both, as one of the ranks."""
    data, tensor = (dist.new_group(list(range(RANKS))) for _ in range(2))
    step = demo_model.Step(data, tensor)
    shards, batch = demo_model.parameters(RANKS, seed=rank), demo_model.tokens(seed=rank)
    program = weft.capture(step, (shards, *batch))
    optimized = weft.optimize(program, MACHINE)
    expected = weft.to_fx(program)(*shards, *batch)
    found = optimized.to_fx()(*shards, *batch)
    return _Outcome(
        before=str(program),
        after=str(optimized.program),
        remarks=[str(remark) for remark in optimized.remarks],
        gained=str(optimized),
        loss=float(expected[0]),
        equal=sum(map(torch.equal, expected, found)),
        outputs=len(expected),
    )


def _show(outcome: _Outcome, full: bool, same: bool, console: Console) -> None:
    for title, text in (("Before", outcome.before), ("After", outcome.after)):
        console.rule(title, align="left")
        _print_program(text if full else _excerpt(text), console)
    console.rule("Remarks", align="left")
    for remark in outcome.remarks:
        if full or ": done:" in remark:
            console.print(remark, markup=False)
    console.rule("Result", align="left")
    console.print(f"on {MACHINE}, by prediction: {outcome.gained}")
    console.print(f"loss {outcome.loss:.6f}")
    verdict = "the same, bit for bit" if same else "NOT the same"
    style = "bold green" if same else "bold red"
    counts = f"{outcome.equal} of {outcome.outputs} outputs (loss and gradients)"
    console.print(f"{counts} are {verdict}, on {RANKS} Gloo processes", style=style)


def _excerpt(text: str) -> str:
    """The collectives and waits, with what lies between them counted."""
    lines: list[str] = []
    skipped = 0
    for line in text.splitlines():
        if line.startswith("%") and ".start(" not in line and " = wait(" not in line:
            skipped += 1
            continue
        if skipped:
            lines.append(f"    ... {counted(skipped, 'op')}")
        skipped = 0
        lines.append(line)
    return "\n".join(lines)


def _print_program(text: str, console: Console) -> None:
    for line in text.splitlines():
        style = "cyan" if ".start(" in line else "yellow" if " = wait(" in line else "dim"
        console.print(line, style=style, markup=False)
