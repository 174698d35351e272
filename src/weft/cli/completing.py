"""What the shell completes: machines, passes, presets, programs."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from weft.cost.machine import presets
from weft.optimizer import PRESETS
from weft.passes import PASSES

_SWEPT = ("world-size=", "machine=", "memory-limit=")


def files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The files that the shell finds itself."""
    return [CompletionItem(typed, type="file")]


def directories(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The directories that the shell finds itself."""
    return [CompletionItem(typed, type="dir")]


def machines(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Presets by their names; files, if no preset begins like that."""
    return _beginning(typed, presets()) or files(context, parameter, typed)


def pipelines(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The last pass of a pipeline."""
    before, comma, last = typed.rpartition(",")
    return _beginning(last, PASSES, before + comma)


def pipelines_or_presets(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The last pass of a pipeline, or a preset in place of one."""
    return _beginning(typed, PRESETS) + pipelines(context, parameter, typed)


def swept(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """What can be swept, and the last one of several machines."""
    if not typed.startswith("machine="):
        return _beginning(typed, _SWEPT)
    name, equals, values = typed.partition("=")
    before, comma, last = values.rpartition(",")
    return _beginning(last, presets(), name + equals + before + comma)


def _beginning(typed: str, names: Iterable[str], before: str = "") -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.startswith(typed)]
