"""What the commands share: reading programs, figures of a step, and errors as one paragraph and an exit code."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from weft.errors import PassError, VerifyError, WeftError, WeftWarning, visible
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.sim.timeline import Timeline

UNSAFE, BAD_INPUT = 1, 2  # exit codes: a program or a plan is not safe; the command could not do its work


def read_text(path: str) -> str:
    """The text of a file, or of standard input for `-`."""
    if path == "-" and sys.stdin is None:  # a shell can close it
        raise WeftError("cannot read -: there is no standard input")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8", "surrogatepass")
    except OSError as error:
        raise WeftError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WeftError(f"{path} is not text: byte {error.start} is not UTF-8") from None


def read_program(path: str) -> Program:
    """The program in a file, or on standard input for `-`."""
    return parse(read_text(path), source=path)


def figures(timeline: Timeline) -> dict[str, Any]:
    """What a step takes, and what it takes at least, as plain data."""
    return {
        "step_us": timeline.step_us,
        "compute_us": timeline.compute_us,
        "comm_us": timeline.comm_us,
        "exposed_us": timeline.exposed_us,
        "peak_bytes": timeline.peak_bytes,
        "bound_us": timeline.bound_us,
        "bound_by": timeline.bound.name,
    }


@contextmanager
def warnings_told(quiet: bool = False) -> Iterator[None]:
    """What Weft warns of goes to standard error, each thing once; or nowhere, for a rank that is not the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "once", WeftWarning)
        warnings.showwarning = _warned
        yield


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Print a WeftError as its message, or as JSON, and leave with the exit code that it stands for.

    What Weft warns of goes to standard error, each thing once.
    """
    try:
        with warnings_told():
            yield
    except WeftError as error:
        code = UNSAFE if isinstance(error, VerifyError | PassError) else BAD_INPUT
        if as_json:
            click.echo(json.dumps({"error": type(error).__name__, "message": str(error)}))
        else:
            say(f"weft: {error}")
        sys.exit(code)


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What Python calls to show a warning: where in Weft it was raised is of no use to a reader."""
    say(f"weft: warning: {message}")


def say(text: str) -> None:
    """Print to standard error. A name or a bad file may hold anything, and must not steer the reader's terminal."""
    click.echo("\n".join(map(visible, text.split("\n"))), err=True)
