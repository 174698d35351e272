"""A lower bound on the step, for any legal order, bucketing and cutting of a Program. docs/bounds.md has the proofs."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft.cost.model import CostModel
from weft.cost.prices import Prices, prices
from weft.errors import WeftWarning
from weft.ir.program import Program
from weft.sim.between import Between
from weft.sim.contention import contended_us
from weft.sim.parts import Parts
from weft.sim.segments import segments_us

_ROUNDING = 1e-9  # what sums are wrong by at most: a bound is often all that a step takes, and must not be more


@dataclass(frozen=True, slots=True)
class Bound:
    """`us`, the best of several bounds, and `name`, which one: "critical path", "compute", "group dp", "link nic",
    "contention", "segments". `all` has every one of them."""

    us: float
    name: str
    all: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """What keeps a resource busy for `us`, not before `head`; the step goes on for `tail` after it."""

    head: float
    us: float
    tail: float


def lower_bound(program: Program, cost: CostModel, *, priced: Prices | None = None) -> Bound:
    """The step is no shorter than this, in whatever order, buckets and pieces the program is run."""
    known = priced if priced is not None else prices(program, cost)
    with warnings.catch_warnings():
        # The largest conceivable bucket is beyond what anybody measured, and beyond what anybody would make.
        warnings.simplefilter("ignore", WeftWarning)
        parts = Parts.of(program, cost, known)
    between = Between.of(parts)
    heads, tails = parts.heads(between.heads()), parts.tails(between.tails())
    paths = (end + tail for (_, end), tail in zip(heads, tails, strict=True))
    found = {"critical path": max(paths, default=0.0)}
    for name, loads in parts.loads.items():
        found[name] = one_machine(Job(heads[place][0], us, tails[place]) for place, us in loads.items())
    found["contention"] = contended_us(between, known.slowdown) * (1 - _ROUNDING)
    found["segments"] = segments_us(between, known.slowdown) * (1 - _ROUNDING)
    best = max(found, key=lambda name: found[name])
    return Bound(found[best], best, found)


def one_machine(jobs: Iterable[Job]) -> float:
    """The shortest time in which one machine can do all jobs, if it may interrupt them at will.

    Of the jobs that are there, the one with the longest tail goes first; that is optimal (Jackson's rule).
    """
    coming = sorted(jobs, key=lambda job: job.head)
    waiting: list[tuple[float, float]] = []  # (-tail, what is left of it)
    now = best = 0.0
    place = 0
    while place < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[place].head)
        while place < len(coming) and coming[place].head <= now:
            heapq.heappush(waiting, (-coming[place].tail, coming[place].us))
            place += 1
        tail, left = heapq.heappop(waiting)
        until = coming[place].head if place < len(coming) else float("inf")
        if now + left > until:
            heapq.heappush(waiting, (tail, left - (until - now)))
            now = until
        else:
            now += left
            best = max(best, now - tail)
    return best
