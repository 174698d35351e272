"""A lower bound on the step, for any legal order, bucketing and cutting of a Program. docs/bounds.md has the proofs."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.analysis.dependencies import Kind, dependencies
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import companions
from weft.cost.model import CostModel, HardwareModel
from weft.cost.prices import Prices, prices
from weft.errors import WeftWarning
from weft.ir.program import Program
from weft.sim.cuts import cuts
from weft.sim.floors import Floors

# How much faster the pieces of an op may be than the whole. Surfaces that were measured are not quite additive: among
# matmuls in two halves the presets have some that are 0.7 % faster.
_CUT_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Bound:
    """`us`, the best of several bounds, and `name`, which one: "critical path", "compute", "group dp", "link nic",
    "contention". `all` has every one of them."""

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
        parts = _Parts.of(program, cost, known)
    heads, tails = parts.heads(), parts.tails()
    paths = (end + tail for (_, end), tail in zip(heads, tails, strict=True))
    found = {"critical path": max(paths, default=0.0)}
    busiest = 0.0
    for name, loads in parts.loads.items():
        jobs = [Job(heads[place][0], us, tails[place]) for place, us in loads.items()]
        found[name] = one_machine(jobs)
        if name != "compute":
            busiest = max(busiest, sum(loads.values()))
    found["contention"] = sum(parts.loads["compute"].values()) + busiest * (1 - 1 / known.slowdown)
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


@dataclass(frozen=True)
class _Parts:
    """The program as the bounds see it: how long each op is at least, and which edges a cut softens.

    `pieces[i]` is the least that any piece of op i takes. `loads` says for each resource, which can do only one thing
    at a time, how long each op keeps it busy. An edge is hard, (op, False), if the later op cannot begin
    before the earlier one has ended, and soft, (op, True), if both may be cut so that their pieces overlap.
    """

    us: tuple[float, ...]
    pieces: tuple[float, ...]
    before: tuple[tuple[tuple[int, bool], ...], ...]
    loads: Mapping[str, Mapping[int, float]]

    @staticmethod
    def of(program: Program, cost: CostModel, known: Prices) -> _Parts:
        floors = Floors(cost, _bytes_by_group(program))
        together = cuts(program)
        us, pieces = _least_compute(program, cost, known, together), [0.0] * len(program)
        loads: dict[str, dict[int, float]] = {"compute": {place: time for place, time in enumerate(us) if time > 0}}
        for place, op in enumerate(program.ops):
            if op.comm is None:
                continue
            load = floors.load_us(op.comm, total_bytes(op))
            pieces[place] = floors.least_us(op.comm)
            us[place] = max(load, pieces[place])
            loads.setdefault(f"group {op.comm.group.name}", {})[place] = load
            for link, busy in known.links[place].items():
                loads.setdefault(f"link {link}", {})[place] = busy
        return _Parts(tuple(us), tuple(pieces), tuple(_edges(program, together)), loads)

    def heads(self) -> list[tuple[float, float]]:
        """For each op, the earliest time at which its first piece can begin, and at which its last can end."""
        found: list[tuple[float, float]] = []
        for place, edges in enumerate(self.before):
            begin = end = 0.0
            for other, soft in edges:
                first, last = found[other]
                begin = max(begin, first + self.pieces[other] if soft else last)
                end = max(end, last + self.pieces[place])
            found.append((begin, max(end, begin + self.us[place])))
        return found

    def tails(self) -> list[float]:
        """For each op, how long the step goes on at least after its last piece has ended."""
        found = [0.0] * len(self.us)
        for place in reversed(range(len(self.us))):
            for other, soft in self.before[place]:
                rest = (self.pieces[place] if soft else self.us[place]) + found[place]
                found[other] = max(found[other], rest)
        return found


def _bytes_by_group(program: Program) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in program.starts:
        assert op.comm is not None, "a start communicates"
        found[op.comm.group.name] = found.get(op.comm.group.name, 0) + total_bytes(op)
    return found


def _least_compute(program: Program, cost: CostModel, known: Prices, together: list[frozenset[int]]) -> list[float]:
    """For each op the least that it adds to the compute stream, in any bucket and any pieces.

    A bucket may join the kernels that prepare its members or go on with their results, and save launches but no bytes.
    """
    us = list(known.us)
    for place in companions(program):
        us[place] = max(0.0, us[place] - cost.launch_us) if isinstance(cost, HardwareModel) else 0.0
    return [time * (1 - _CUT_GAIN) if found else time for time, found in zip(us, together, strict=True)]


def _edges(program: Program, together: list[frozenset[int]]) -> Iterator[tuple[tuple[int, bool], ...]]:
    """What each op must wait for. A collective that is copied into a bucket no longer reads its input until the wait,
    so that kind of edge does not count."""
    known = dependencies(program)
    flying = {(earlier, later) for earlier, later, kind in known.order if kind is Kind.IN_FLIGHT}
    for place, earlier in enumerate(known.before):
        needed = [other for other in earlier if (other, place) not in flying]
        yield tuple((other, bool(together[other] & together[place])) for other in needed)
