"""Where the time of traced steps went, beyond what single ops and collectives took.

On a CPU everything is on the thread that runs the step: it waits inside of waits, and Inductor's code is what is left
of a compiled graph when the ops that it calls are taken out. On a device it is the kernels that tell: NCCL's while no
others ran, and those that Inductor made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weft.cost.events import read_events

_GRAPH = "## Call CompiledFxGraph"  # how torch marks a run of Inductor's code
_WAIT = "_c10d_functional::wait_tensor"
_LAUNCH = "_c10d_functional::"
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class Spent:
    """Microseconds of all steps in a trace together.

    - `waiting_us`: nothing was done but to wait for communication, for late ranks too
    - `launching_us`: collectives were started, which on a CPU holds up the step
    - `generated_us`: Inductor's own kernels ran, on a CPU with the code between them; None if Inductor has none here
    """

    waiting_us: float
    launching_us: float
    generated_us: float | None


class _Span(NamedTuple):
    begin: float
    end: float
    name: str


def spent(path: Path) -> Spent:
    """What a trace says about its steps as a whole. Raises ProfileError if it cannot be read."""
    reader = _Reader()
    read_events(path, reader.take)
    if reader.kernels:
        return _on_device(reader.kernels)
    return _on_host(reader.threads.values())


class _Reader:
    """Keeps when ops and Inductor's graphs ran on each thread, and when kernels did."""

    def __init__(self) -> None:
        self.threads: dict[object, list[_Span]] = {}
        self.kernels: list[_Span] = []

    def take(self, event: dict[str, Any]) -> None:
        begin, us, name, category = (event.get(key) for key in ("ts", "dur", "name", "cat"))
        if not isinstance(begin, int | float) or not isinstance(us, int | float) or not isinstance(name, str):
            return
        if category in _KERNELS:
            self.kernels.append(_Span(begin, begin + us, name))
        elif category == "cpu_op" or (category == "user_annotation" and name.startswith(_GRAPH)):
            self.threads.setdefault(event.get("tid"), []).append(_Span(begin, begin + us, name))


def _on_host(threads: Iterable[list[_Span]]) -> Spent:
    waiting = launching = generated = 0.0
    seen = False
    for spans in threads:
        graphs = list(_outermost(span for span in spans if span.name.startswith(_GRAPH)))
        ops = [span for span in spans if not span.name.startswith(_GRAPH)]
        waiting += _us(_outermost(span for span in ops if span.name == _WAIT))
        launching += _us(_outermost(span for span in ops if span.name.startswith(_LAUNCH) and span.name != _WAIT))
        generated += _us(graphs) - _us(_outermost(_inside(ops, graphs)))
        seen = seen or bool(graphs)
    return Spent(waiting, launching, generated if seen else None)


def _on_device(kernels: list[_Span]) -> Spent:
    computing = [span for span in kernels if not span.name.startswith("nccl")]
    made = [span for span in computing if span.name.startswith("triton_")]
    return Spent(_busy(kernels) - _busy(computing), 0.0, _us(made) if made else None)


def _outermost(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Those that no other one of them surrounds."""
    until = float("-inf")
    for span in sorted(spans, key=lambda one: (one.begin, -one.end)):
        if span.begin >= until:
            yield span
            until = span.end


def _inside(spans: Iterable[_Span], graphs: list[_Span]) -> Iterator[_Span]:
    """Those that begin while a graph runs. Both are of one thread, and the graphs do not overlap."""
    waiting = iter(graphs)
    graph = next(waiting, None)
    for span in sorted(spans):
        while graph is not None and graph.end <= span.begin:
            graph = next(waiting, None)
        if graph is not None and graph.begin <= span.begin:
            yield span


def _us(spans: Iterable[_Span]) -> float:
    return sum(span.end - span.begin for span in spans)


def _busy(spans: Iterable[_Span]) -> float:
    """For how long at least one of them lasts."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans):
        total += max(0.0, span.end - max(span.begin, until))
        until = max(until, span.end)
    return total
