"""A calibration as the file of a machine: every figure with the comment that says how it was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from weft.cost.curves import Curve
from weft.cost.matmul import Surface
from weft.cost.topology import Level
from weft.cost.writing import curve_text, listed, surface_text
from weft.run.fit import Memory


class Measured(Protocol):
    """What a file is made of."""

    @property
    def accelerator(self) -> str: ...
    @property
    def memory_gb(self) -> float: ...
    @property
    def ranks(self) -> int: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def surfaces(self) -> Sequence[Surface]: ...
    @property
    def curves(self) -> Sequence[Curve]: ...
    @property
    def levels(self) -> Sequence[Level]: ...
    @property
    def start_us(self) -> float: ...
    @property
    def slowdown(self) -> float: ...


def machine_text(found: Measured, name: str) -> str:
    """The file, as `Machine.load` reads it."""
    parts = [
        _head(found, name),
        *map(_level, found.levels),
        _communication(found),
        *map(curve_text, found.curves),
        *map(surface_text, found.surfaces),
    ]
    return "\n\n".join(parts) + "\n"


def _head(found: Measured, name: str) -> str:
    memory = found.memory
    tflops = "\n".join(f"{one.dtype} = {listed([one.top_tflops])}" for one in found.surfaces)
    return f"""\
name = {_quoted(name)}
about = "Measured by `weft calibrate` on {found.ranks} ranks."

[accelerator]
name = {_quoted(found.accelerator)}
memory_gb = {listed([found.memory_gb])}  # as the system tells; a rank's share
memory_gb_per_s = {listed([memory.peak_gb_per_s])}  # measured: the best that copies and additions reach
memory_efficiency = {listed([memory.gb_per_s / memory.peak_gb_per_s])}  # measured: what they reach in the middle
launch_us = {listed([memory.launch_us])}  # measured: an operation on a few bytes

[accelerator.tflops]  # measured: the best of the matmuls below
{tflops}"""


def _level(level: Level) -> str:
    ranks = "" if level.ranks is None else f"ranks = {level.ranks}\n"
    return f"""\
[[level]]
name = {_quoted(level.name)}
{ranks}gb_per_s = {listed([level.gb_per_s])}  # measured: the largest all-gather
latency_us = {listed([level.latency_us])}  # measured: the smallest all-gather against the smallest all-reduce
efficiency = 1  # gb_per_s is what is reached"""


def _communication(found: Measured) -> str:
    return f"""\
[collectives]
start_us = {listed([found.start_us])}  # measured: what is left of the smallest all-gather without its steps
protocols = ["plain"]  # what a protocol costs is in the figures

[contention]
compute_slowdown = {listed([found.slowdown])}  # measured: matmuls beside collectives in flight"""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
