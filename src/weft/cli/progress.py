"""Signs of life while a large model is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.text import Text

from weft.errors import visible
from weft.ir.text import counted

_MOVING_S, _PRINTED_S = 0.1, 10.0  # seconds between two updates of a line, and between two lines


@contextmanager
def capture_progress(
    title: str, console: Console | None = None, clock: Callable[[], float] = monotonic
) -> Iterator[Callable[[str, int], None]]:
    """What `capture` takes as `progress`. It shows one moving line on a terminal, and otherwise a line now and then.

    Nothing goes to standard output, nothing is left of the moving line, and a capture of a few seconds prints no lines.
    """
    console = console if console is not None else Console(stderr=True)
    if console.is_terminal:
        with console.status(Text(title)) as status:
            yield _seldom(_MOVING_S, title, status.update, clock)
    else:
        yield _seldom(_PRINTED_S, title, lambda line: console.print(line, soft_wrap=True), clock)


def _seldom(
    seconds: float, title: str, show: Callable[[Text], None], clock: Callable[[], float]
) -> Callable[[str, int], None]:
    """A progress that shows what it is told, but not again before `seconds` have passed."""
    due = clock() + seconds

    def progress(where: str, ops: int) -> None:
        nonlocal due
        if (now := clock()) >= due:
            due = now + seconds
            show(Text(visible(f"{title}: {counted(ops, 'op')}{', ' if where else ''}{where}")))

    return progress


@contextmanager
def stage_progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Tells which stage long work has come to: one moving line on a terminal, otherwise a line for each, on standard
    error. `quiet` is for ranks that are not the first."""
    console = Console(stderr=True, quiet=quiet, highlight=False)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda stage: status.update(Text(visible(stage)))
    else:
        yield lambda stage: console.print(Text(visible(stage)), soft_wrap=True)
