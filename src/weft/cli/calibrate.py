"""`weft calibrate`: measure the cluster that is here, and write it down as a machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from math import isnan
from pathlib import Path
from time import monotonic

import click
import torch
import torch.distributed as dist
from rich.console import Console
from rich.text import Text

from weft.cli.common import reported
from weft.cli.completing import files
from weft.cli.options import json_option
from weft.cost.machine import Machine
from weft.errors import WeftError
from weft.run.benchmark import present_device
from weft.run.calibrate import Calibration, calibrate
from weft.run.fit import Fit
from weft.run.local import local_ranks
from weft.run.samples import FULL, QUICK, Effort, Progress

RANKS = 2
_ANSWER_S = 300  # a rank that does not answer for so long has failed
_WHOLE_S = 1800  # no calibration of local ranks takes so long
_MOVING_S, _PRINTED_S = 0.1, 10.0  # seconds between two updates of a line, and between two lines


@click.command(name="calibrate")
@click.option(
    "-o", "--output", default="machine.toml", show_default=True, shell_complete=files, help="The file to write."
)
@click.option("--quick", is_flag=True, help="Fewer and smaller sizes: a third of the time, and a rougher machine.")
@click.option("--ranks", type=click.IntRange(min=2), help=f"Without torchrun: how many processes.  [default: {RANKS}]")
@click.option("--ranks-per-node", type=click.IntRange(min=1), help="Neighbours, if not the ranks of a host.")
@json_option("the errors of the fits")
def command(output: str, quick: bool, ranks: int | None, ranks_per_node: int | None, as_json: bool) -> None:
    """Measure the present cluster and write a machine that `weft simulate` and all others take.

    Under torchrun its ranks are measured. Without it, on a computer that has no accelerator, two processes are started
    that talk Gloo. Nothing else should run meanwhile. For each curve the error is printed that it makes on a point that
    it does not know.

    \b
    Example:
        weft calibrate
        weft calibrate --quick --ranks 4 -o laptop.toml
        torchrun --nproc-per-node=8 -m weft calibrate -o node.toml
    \b
    Exit codes: 0 done, 2 it could not be measured or written.
    """
    with reported(as_json):
        path = _writable(output)
        effort = QUICK if quick else FULL
        if dist.is_torchelastic_launched():
            _refuse_ranks(ranks)
            found = _joined(effort, ranks_per_node)
            if dist.get_rank() == 0:
                _finish(found, path, as_json)
            dist.destroy_process_group()
        else:
            found = _started(effort, ranks or RANKS, ranks_per_node)
            _finish(found, path, as_json)


def _writable(output: str) -> Path:
    """The path to write to. What cannot be written is refused before minutes of measuring."""
    path = Path(output)
    if path.suffix != ".toml":
        raise WeftError(f"{output} must end in .toml: that is how a file is told from a preset")
    written = path
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        written = path.parent
    except OSError as error:  # such as a name that is too long
        raise WeftError(f"cannot write {output}: {error.strerror}") from None
    if os.path.isdir(path) or not os.path.isdir(path.parent) or not os.access(written, os.W_OK):
        raise WeftError(f"cannot write {output}: its folder must exist, and writing be allowed")
    return path


def _refuse_ranks(ranks: int | None) -> None:
    if ranks is not None:
        raise WeftError("--ranks is for processes that weft starts itself; here torchrun has started them")


def _started(effort: Effort, ranks: int, ranks_per_node: int | None) -> Calibration:
    """Calibrate processes of our own."""
    device = present_device()
    if ranks_per_node is not None and ranks % ranks_per_node:
        raise WeftError(f"{ranks} ranks cannot be nodes of {ranks_per_node} each")
    if device.type != "cpu":
        raise WeftError(
            f"there is an accelerator here ({device.type}), and it takes a process for each: "
            f"torchrun --nproc-per-node={torch.accelerator.device_count()} -m weft calibrate"
        )
    found: Calibration = local_ranks(_local_rank, ranks, effort, ranks_per_node, time_limit_s=_WHOLE_S)[0]
    return found


def _local_rank(rank: int, effort: Effort, ranks_per_node: int | None) -> Calibration:
    with _shown(quiet=rank != 0) as progress:
        return calibrate(effort, ranks_per_node=ranks_per_node, progress=progress)


def _joined(effort: Effort, ranks_per_node: int | None) -> Calibration:
    """Calibrate the ranks of torchrun, of which this is one. If another one fails, so does this one, in time."""
    device = present_device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=_ANSWER_S))
        with _shown(quiet=dist.get_rank() != 0) as progress:
            return calibrate(effort, ranks_per_node=ranks_per_node, progress=progress)
    except RuntimeError as error:  # what torch.distributed raises when a peer is gone
        raise WeftError(f"a rank has failed, or does not answer any more; its own message says why: {error}") from error


@contextmanager
def _shown(quiet: bool) -> Iterator[Progress]:
    """Progress on standard error: one moving line on a terminal, otherwise a line now and then."""
    console = Console(stderr=True, quiet=quiet, highlight=False)
    if console.is_terminal:
        with console.status(Text("calibrating")) as status:
            yield _seldom(_MOVING_S, status.update)
    else:
        yield _seldom(_PRINTED_S, lambda line: console.print(line, soft_wrap=True))


def _seldom(seconds: float, show: Callable[[Text], None]) -> Progress:
    due = monotonic()

    def progress(what: str, left: float | None) -> None:
        nonlocal due
        if (now := monotonic()) >= due:
            due = now + seconds
            show(Text(f"calibrating: {what}{'' if left is None else f', about {left:.0f} s to go'}"))

    return progress


def _finish(found: Calibration, path: Path, as_json: bool) -> None:
    """Write the file, make sure that it can be read, and say how good it is."""
    try:
        path.write_text(found.text(path.stem), encoding="utf-8")
    except OSError as error:
        raise WeftError(f"cannot write {path}: {error.strerror}") from None
    machine = Machine.load(path)
    if as_json:
        fits = [{**asdict(fit), "error": None if isnan(fit.error) else fit.error} for fit in found.fits]
        content = {"file": str(path), "ranks": found.ranks, "seconds": found.seconds, "fits": fits}
        click.echo(json.dumps({**content, "compute_slowdown": machine.compute_slowdown}, indent=1))
        return
    click.echo("Mean error on points that the fit does not know:")
    for fit in found.fits:
        click.echo(f"  {_line(fit)}")
    click.echo(f"Compute takes {machine.compute_slowdown:.2f} times as long while anything is communicated.")
    click.echo(f"Wrote {path} after {found.seconds:.0f} s. Next: weft simulate -m {path} step.weft")


def _line(fit: Fit) -> str:
    error = "too few to say" if isnan(fit.error) else f"{fit.error:.1%}"
    return f"{fit.what:<32} {fit.points:>3} points  {error}"
