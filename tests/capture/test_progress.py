"""Progress: what is told while a step is traced, and what a person sees of it."""

from __future__ import annotations

from io import StringIO
from itertools import count, groupby

import torch
from rich.console import Console

import weft
from tests.capture.test_capture import Stack, step
from weft.cli.progress import capture_progress


def test_every_op_is_told_with_the_module_that_it_belongs_to() -> None:
    told: list[tuple[str, int]] = []
    model = Stack()
    args = (model, torch.optim.SGD(model.parameters()), torch.ones(4, 8))
    quiet = weft.capture(step, args)
    assert str(weft.capture(step, args, progress=lambda where, ops: told.append((where, ops)))) == str(quiet)
    assert [ops for _, ops in told] == list(range(1, len(told) + 1))
    assert [where for where, _ in groupby(told, key=lambda one: one[0]) if where not in ("", "backward")] == [
        "layers.0.up",
        "layers.0",
        "layers.0.down",
        "layers.1.up",
        "layers.1",
        "layers.1.down",
        "backward of layers.1.down",
        "backward of layers.1",
        "backward of layers.1.up",
        "backward of layers.0.down",
        "backward of layers.0",
        "backward of layers.0.up",
    ]


def shown(terminal: bool, seconds_per_op: int) -> str:
    """What three ops leave on a console."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=terminal, width=40)
    clock = count(step=seconds_per_op)
    with capture_progress("step", console, lambda: float(next(clock))) as progress:
        progress("layers.0", 1)
        progress("layers.0\x1b[2J", 2)
        progress("", 3)
    return screen.getvalue()


def test_without_a_terminal_a_line_is_printed_now_and_then() -> None:
    assert shown(terminal=False, seconds_per_op=1) == ""
    assert shown(terminal=False, seconds_per_op=6) == "step: 2 ops, layers.0·[2J\n"
    assert shown(terminal=False, seconds_per_op=10) == (
        "step: 1 op, layers.0\nstep: 2 ops, layers.0·[2J\nstep: 3 ops\n"
    )


def test_on_a_terminal_one_line_moves() -> None:
    screen = shown(terminal=True, seconds_per_op=1)
    assert "step" in screen
    assert "\x1b[2J" not in screen
    assert screen.endswith("\x1b[2K")  # the line is cleared
