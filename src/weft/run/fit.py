"""From measured times to the parts of a Machine, and how well each part predicts what it was not fitted on.

Errors are mean absolute relative ones, each point predicted from all others (leave one out). For a curve that means
from neighbours twice as far apart as in the file, so it is more of an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean
from typing import TypeAlias

from weft.cost.curves import Curve
from weft.cost.fitting import middle, monotone
from weft.cost.matmul import Surface, flop_us
from weft.cost.topology import Level
from weft.run.probes import Beside, Key, Moved, Product, Transfer

Times: TypeAlias = Mapping[Key, float]  # microseconds

# A collective that leaves compute standing could as well be waited for; a file needs a number.
_MOST_HELD = 0.95


@dataclass(frozen=True)
class Fit:
    """How well one part of the machine fits: how many points it is made of, and the error; NaN if they are too few."""

    what: str
    points: int
    error: float


@dataclass(frozen=True)
class Memory:
    """What moving bytes takes: a launch, and then a rate. `peak_gb_per_s` is the best that any kernel reached."""

    launch_us: float
    gb_per_s: float
    peak_gb_per_s: float
    fit: Fit


def memory(times: Times) -> Memory:
    """The launch by the quickest of the kernels that move nothing, the rate by those that move much."""
    moved = {key: us for key, us in times.items() if isinstance(key, Moved)}
    launch = min(us for key, us in moved.items() if key.is_launch)
    rates = {key: key.nbytes / max(us - launch, us / 10) / 1e3 for key, us in moved.items() if not key.is_launch}

    def error(key: Moved) -> float:
        others = middle(rate for other, rate in rates.items() if other != key)
        return (launch + key.nbytes / others / 1e3) / moved[key] - 1

    fit = Fit("memory", len(rates), _mean(map(error, rates)))
    return Memory(launch, middle(rates.values()), max(rates.values()), fit)


def curve(times: Times, kind: str, ranks: int, nodes: int) -> tuple[Curve, Fit]:
    """The times of one kind of collective in one group, made monotone."""
    found = sorted(
        (float(key.nbytes), us)
        for key, us in times.items()
        if isinstance(key, Transfer) and key[:3] == (kind, ranks, nodes)
    )

    def through(points: Sequence[tuple[float, float]]) -> Curve:
        sizes, us = zip(*points, strict=True)
        return Curve(kind, ranks, nodes, sizes, tuple(monotone(us)))

    inner = range(1, len(found) - 1)
    error = _mean(through(found[:at] + found[at + 1 :]).at(found[at][0], "") / found[at][1] - 1 for at in inner)
    where = f"{kind}, {ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
    return through(found), Fit(where, len(found), error)


def surface(times: Times, dtype: str) -> tuple[Surface, Fit]:
    """The rates of matmuls of one dtype. Times are raised where a smaller matmul took longer."""
    found = {(key.side, key.k): us for key, us in times.items() if isinstance(key, Product) and key.dtype == dtype}
    sides, depths = sorted({side for side, _ in found}), sorted({k for _, k in found})

    def through(rows: Sequence[int]) -> Surface:
        rates: list[tuple[float, ...]] = []
        before = [0.0] * len(depths)
        for side in rows:
            for at, k in enumerate(depths):
                before[at] = max(found[side, k], before[at], before[at - 1] if at else 0.0)
            rates.append(tuple(flop_us(side**2, k, 1.0) / us for k, us in zip(depths, before, strict=True)))
        return Surface(dtype, None, tuple(float(side**2) for side in rows), tuple(map(float, depths)), tuple(rates))

    def error(at: int, k: int) -> float:
        side = sides[at]
        return through(sides[:at] + sides[at + 1 :]).us(1, side, side, k) / found[side, k] - 1

    inner = [(at, k) for at in range(1, len(sides) - 1) for k in depths]
    return through(sides), Fit(f"{dtype} matmuls", len(found), _mean(error(*one) for one in inner))


def links(curves: Iterable[Curve], ranks_per_node: int | None) -> tuple[tuple[Level, ...], float]:
    """The levels of links, and what starting any collective takes: for groups and kinds that have no curve.

    As the analytic model sees them: latencies from the smallest all-gather and all-reduce, whose rings take one round
    and two, the bandwidth from what the largest all-gather takes longer than the smallest.
    """
    gathers = {one.nodes: one for one in curves if one.kind == "all_gather"}
    reduces = {one.nodes: one for one in curves if one.kind == "all_reduce"}
    inner = gathers[1]
    hops = inner.ranks - 1
    latency = max(0.0, reduces[1].us[0] - inner.us[0]) / hops
    latency = min(latency, inner.us[0] / hops)
    start = inner.us[0] - hops * latency
    levels = [Level("node" if ranks_per_node else "all", ranks_per_node, _gb_per_s(inner, 1), latency, 1.0)]
    for nodes, outer in gathers.items():
        if nodes > 1:
            left = outer.us[0] - start - (outer.ranks - nodes) * latency
            width = outer.ranks // nodes
            levels.append(Level("network", None, _gb_per_s(outer, width), max(0.0, left / (nodes - 1)), 1.0))
    return tuple(levels), start


def slowdown(times: Times) -> float:
    """By how much compute is slower while a collective is in flight, such that a simulation holds it up for as long.

    A collective that takes `alone`, and holds matmuls up for `held`, lets them do alone - held of work meanwhile. What
    its start does before it returns is part of it: that holds them up too.
    """
    kinds = {key.kind for key in times if isinstance(key, Beside)}
    shares = []
    for kind in sorted(kinds):
        alone = times[Beside(kind, matmuls=False, flight=True)]
        held = times[Beside(kind, matmuls=True, flight=True)] - times[Beside(kind, matmuls=True, flight=False)]
        shares.append(held / alone)
    share = min(max(mean(shares), 0.0), _MOST_HELD)
    return 1 / (1 - share)


def _gb_per_s(gather: Curve, width: int) -> float:
    """What one rank's link carries: all that is not its own, spread over the links of a node's members."""
    carried = (gather.bytes[-1] - gather.bytes[0]) * (gather.ranks - 1) / gather.ranks / width
    return carried / max(gather.us[-1] - gather.us[0], gather.us[-1] / 100) / 1e3


def _mean(errors: Iterable[float]) -> float:
    sizes = [abs(error) for error in errors]
    return mean(sizes) if sizes else nan
