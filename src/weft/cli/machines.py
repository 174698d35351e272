"""`weft machines`: the machines that Weft knows, and where their figures come from."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.cli.common import read_text, reported
from weft.cli.completing import machines
from weft.cli.options import json_option
from weft.cost.machine import Machine, presets
from weft.cost.topology import Level
from weft.errors import visible
from weft.ir.text import counted

_HEADER = re.compile(r"\[+([\w.]+)\]+")
_FIGURE = re.compile(r"""(\w+)\s*=\s*("[^"]*"|[^#"\[]+|\[[^#]*\])\s*(?:#\s*(.*))?$""")
_MEASURED = ("curve", "matmul")  # sections that are summed up and not listed


@dataclass(frozen=True)
class Figure:
    """One figure of a machine's file, and the comment behind it, which says where it is from."""

    section: str
    key: str
    value: str
    source: str


@click.command(name="machines")
@json_option()
@click.argument("machine", required=False, shell_complete=machines)
def command(as_json: bool, machine: str | None) -> None:
    """List the machines that come with Weft; with MACHINE (a name or the path of a .toml file), show that one.

    A figure is shown with its source: a datasheet, a measurement, or "estimate" and from what.

    \b
    Example:
        weft machines
        weft machines h100-ib400
        weft machines --json my-cluster.toml
    \b
    Exit codes: 0 done, 2 there is no such machine or the file does not describe one.
    """
    with reported(as_json):
        if machine is None:
            _list([Machine.load(name) for name in presets()], as_json)
        else:
            _show(Machine.load(machine), as_json)


def _list(machines: list[Machine], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"machines": [_summary(machine) for machine in machines]}, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("machine", "memory", "bf16", "links, GB/s each way", "fitted"):
        table.add_column(title)
    for machine in machines:
        memory = f"{machine.accelerator.memory_gb:g} GB"
        rate = f"{machine.peak_tflops('bf16'):g} TF"
        table.add_row(machine.name, memory, rate, ", ".join(map(_link, machine.levels)), _fitted(machine))
    _console().print(table)


def _show(machine: Machine, as_json: bool) -> None:
    figures, notes = _figures(read_text(str(machine.path)))
    if as_json:
        measured = {"curves": _curves(machine), "matmuls": [surface.dtype for surface in machine.surfaces]}
        listed = [asdict(figure) for figure in figures]
        click.echo(json.dumps({**_summary(machine), "figures": listed, **measured, "notes": notes}, indent=1))
        return
    console = _console()
    console.print(visible(machine.name), style="bold", markup=False)
    console.print(visible(machine.about), markup=False)
    for section in dict.fromkeys(figure.section for figure in figures if figure.section):
        console.print(f"\n{visible(section)}", style="bold", markup=False)
        table = Table.grid(padding=(0, 2))
        for one in figures:
            if one.section == section:
                table.add_row(f"  {one.key}", Text(visible(one.value)), Text(visible(one.source)))
        console.print(table)
    console.print(f"\nfitted: {_fitted(machine)}", markup=False)
    for note in notes:
        console.print(visible(note), markup=False)


def _console() -> Console:
    """Standard output. Rich leaves out colours by itself if NO_COLOR is set, but not what is bold."""
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


def _figures(text: str) -> tuple[list[Figure], list[str]]:
    """The figures that people wrote into a machine's file, with the comments behind them, and comments on their own."""
    figures: list[Figure] = []
    notes: list[str] = []
    section, levels = "", 0
    for line in text.splitlines():
        header, figure = _HEADER.match(line), _FIGURE.match(line)
        if header is not None:
            levels += header[1] == "level"
            section = f"level {levels}" if header[1] == "level" else header[1]
        elif line.startswith("#"):
            notes.append(line.lstrip("# "))
        elif figure is not None and section not in _MEASURED:
            figures.append(Figure(section, figure[1], figure[2].strip(), figure[3] or ""))
    return figures, notes


def _summary(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "about": machine.about,
        "accelerator": asdict(machine.accelerator),
        "levels": [asdict(level) for level in machine.levels],
        "compute_slowdown": machine.compute_slowdown,
    }


def _curves(machine: Machine) -> list[dict[str, Any]]:
    return [
        {"kind": one.kind, "ranks": one.ranks, "nodes": one.nodes, "bytes": [one.bytes[0], one.bytes[-1]]}
        for one in machine.curves
    ]


def _link(level: Level) -> str:
    many = "" if level.ranks is None else f"{level.ranks} x "
    return f"{level.name} {many}{level.gb_per_s / level.shared_by:g}"


def _fitted(machine: Machine) -> str:
    dtypes = {surface.dtype for surface in machine.surfaces}
    return f"{counted(len(machine.curves), 'curve')}, {counted(len(dtypes), 'dtype')}"
