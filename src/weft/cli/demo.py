"""`weft demo`: a training on two real processes with and without Weft, and a plan for 64 GPUs that are not there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
import torch
from torch import Tensor, nn

import weft
from weft.cli import tasks
from weft.cli.common import UNSAFE, reported
from weft.cli.demo_training import RATE, SMALL, STEPS, TINY, TRACED, WEFT, WRITTEN, Trained, train
from weft.cli.llama import Llama, batch, llama3_8b
from weft.cli.options import json_option
from weft.cli.output import output_directory
from weft.cli.plan import PLAN_FILES, content_of, print_plan, print_table, texts_of
from weft.cli.planning import Case, Planned, planned
from weft.cli.progress import capture_progress
from weft.ir.program import Program
from weft.optimizer import PRESETS
from weft.parallel import data_parallel
from weft.passes import PASSES, parse_pipeline
from weft.run.hosts import RANKS

WORLD, MACHINE, LIMIT = 64, "h100-ib400", "75GB"  # of the 80 GB that an H100 has
_WHAT = f"""\
{WRITTEN}: PyTorch op by op; weft.parallel gathers each weight when it is needed
{TRACED}: torch.compile(model, backend="aot_eager"), the same ops from graphs, without Weft
{WEFT}: weft.compile(model, mode="eager"), those graphs with their collectives merged and moved"""


@click.command(name="demo")
@click.option("--out", default="weft-demo", show_default=True, metavar="DIR", help="Write the report here.")
@click.option("--quick", is_flag=True, help="A tiny model, and 1 of the 32 layers of Llama 3 8B.")
@json_option()
def command(out: str, quick: bool, as_json: bool) -> None:
    """Train a small Llama with and without Weft, then plan Llama 3 8B for 64 H100s that are not there.

    Two Gloo processes train a fully sharded model: as it is written, from torch.compile's graphs, and with Weft.
    Losses and parameters must be equal bit by bit. As root, on Linux, the two are joined by a link with a limited
    rate, so that there is something to hide; otherwise they talk over loopback. Then the step of Llama 3 8B is
    captured, optimised and simulated, and a report with its timelines is written.

    \b
    Example:
        weft demo
        weft demo --quick --out /tmp/weft-demo
    \b
    Exit codes: 0 done, 1 the results differ or a program is not safe, 2 it could not be done.
    """
    with reported(as_json):
        with output_directory(out, PLAN_FILES) as texts:
            found = train(TINY if quick else SMALL)
            if not as_json:
                _print_training(found)
            one = _llama(1 if quick else llama3_8b().layers)
            texts |= texts_of(_title(one), one)
        files = [str(Path(out) / name) for name in PLAN_FILES]
        if as_json:
            content = {"training": asdict(found), "plan": content_of(_title(one), one, (), files)}
            click.echo(json.dumps(content, indent=1))
        else:
            click.echo()
            print_plan(_title(one), one, (), files)
        if not found.same:
            sys.exit(UNSAFE)


# What was trained


def _print_training(found: Trained) -> None:
    where = f"a link of {RATE / 1e6:,.0f} Mbit/s" if found.why_no_link is None else "loopback"
    click.echo(click.style(f"A small Llama, fully sharded over {RANKS} Gloo processes joined by {where}", bold=True))
    click.echo(_WHAT + "\n")
    print_table([("loss", *(way.name for way in found.ways)), *_losses(found)])
    verdict = "all losses and parameters are the same, bit for bit" if found.same else "THE RESULTS DIFFER"
    click.echo(click.style(verdict, fg="green" if found.same else "red", bold=True) + "\n")
    print_table([("step", "median ms", "quartiles", f"÷ {WRITTEN}", "predicted ms"), *_times(found)])
    if found.why_no_link is not None:
        click.echo(f"There is no link with a limited rate here ({found.why_no_link}), so there is little to hide.")


def _losses(found: Trained) -> list[tuple[str, ...]]:
    return [(f"step {number + 1}", *(f"{way.losses[number]:.6f}" for way in found.ways)) for number in range(STEPS)]


def _times(found: Trained) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    first = found.ways[0].took
    for way in found.ways:
        took = way.took
        predicted = f"{way.predicted_us / 1e3:,.0f}" if way.predicted_us is not None else ""
        quartiles = f"{took.low / 1e3:,.0f} to {took.high / 1e3:,.0f}"
        rows.append((way.name, f"{took.median / 1e3:,.0f}", quartiles, f"{took.median / first.median:.2f}", predicted))
    return rows


# What is planned


def _title(one: Planned) -> str:
    return f"Llama 3 8B, fully sharded over {one.case.world_size} ranks"


def _llama(layers: int) -> Planned:
    program = _captured(layers)
    weft.verify(program)
    case = Case.of(str(WORLD), MACHINE, LIMIT)
    return planned(lambda _: (program, f"data={WORLD}"), case, parse_pipeline(PRESETS["default"], PASSES))


def _captured(layers: int) -> Program:
    """A step of Llama 3 8B with AdamW, one sequence of 8192 tokens a rank: float32 weights, products in bfloat16."""
    config = replace(llama3_8b(), layers=layers)
    with weft.planning({"data": WORLD}) as mesh, capture_progress("capturing Llama 3 8B") as progress:
        model = data_parallel(Llama(config), mesh, "fully_shard", param_dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        return weft.capture(_step, (model, optimizer, *batch(config, 1)), progress=progress)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = tasks.loss(model, inputs, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
