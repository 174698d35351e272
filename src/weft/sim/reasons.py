"""Why a collective is exposed: what the compute stream was waiting for, while it waited."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.cost.prices import Prices
from weft.ir.program import Program
from weft.sim.intervals import Interval

_ROUNDING = 1e-9  # of a time: below it a difference is arithmetic and not a cause


@dataclass(frozen=True, slots=True)
class Cause:
    """One part of an exposure.

    `kind` is "group busy", "link shared", "started late", "waited early", "dependency" or "end of step"; `op` is the
    op that is to blame, if one is.
    """

    kind: str
    us: float
    op: str
    message: str


@dataclass(frozen=True, slots=True)
class Exposure:
    """A collective that held the compute stream, for how long, and why: the causes add up to `us`, longest first."""

    start: str
    us: float
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        why = "; ".join(f"{cause.us:.1f} us: {cause.message}" for cause in self.causes)
        return f"%{self.start} is exposed for {self.us:.1f} us: {why}"


def reasons(
    program: Program,
    priced: Prices,
    begins: tuple[float, ...],
    ends: tuple[float, ...],
    flights: Mapping[int, Interval],
    exposed: Mapping[str, float],
) -> tuple[Exposure, ...]:
    """The exposed collectives of a simulated program with their causes, the longest first."""
    known = _Known(program, priced, begins, ends, flights)
    found = [Exposure(start, us, known.causes(start, us)) for start, us in exposed.items()]
    return tuple(sorted(found, key=lambda exposure: -exposure.us))


@dataclass(frozen=True)
class _Known:
    program: Program
    priced: Prices
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    flights: Mapping[int, Interval]

    @cached_property
    def _after(self) -> list[list[int]]:
        return dependencies(self.program).after()

    @cached_property
    def _queues(self) -> Mapping[str, list[int]]:
        """For each group, its starts in order."""
        found: dict[str, list[int]] = {}
        for position in sorted(self.flights):
            found.setdefault(self._group(position), []).append(position)
        return found

    def causes(self, start: str, us: float) -> tuple[Cause, ...]:
        """What makes up an exposure: each cause explains as much as it can of what those before it left."""
        left, found = us, []
        position = self.program.index[start]
        for cause in self._candidates(position, us):
            part = min(left, cause.us)
            if part > _ROUNDING * us:
                found.append(Cause(cause.kind, part, cause.op, cause.message))
                left -= part
        return tuple(sorted(found, key=lambda cause: -cause.us))

    def _candidates(self, position: int, us: float) -> Iterator[Cause]:
        flight, stop = self.flights[position], self._held_until(position)
        held = Interval(stop - us, stop)
        yield from self._busy(position, Interval(self.begins[position], flight.begin), held)
        yield from self._shared(position, flight)
        yield self._late(position)
        yield self._early(position, stop)
        yield self._dependency(position)

    def _held_until(self, position: int) -> float:
        waits = pairs(self.program).waits[self.program.ops[position].name]
        return max([self.ends[self.program.index[wait]] for wait in waits] or [self.flights[position].end])

    def _busy(self, position: int, queued: Interval, held: Interval) -> Iterator[Cause]:
        """Other collectives of its group that were under way while it stood in the queue and the stream was held."""
        group = self._group(position)
        queue = self._queues[group]
        for other in reversed(queue[: bisect_left(queue, position)]):
            if self.flights[other].end <= queued.begin:
                return  # those before it ended even earlier
            name = self.program.ops[other].name
            us = min(self.flights[other].overlap(queued), self.flights[other].overlap(held))
            yield Cause("group busy", us, name, f"group {group} was busy with %{name}")

    def _shared(self, position: int, flight: Interval) -> Iterator[Cause]:
        """What it lost to collectives of other groups that crossed the same links."""
        lost = flight.us - self.priced.comm_us[position]
        if lost <= _ROUNDING * flight.us:
            return
        links = set(self.priced.links[position])
        rivals = [
            (flight.overlap(theirs), other)
            for other, theirs in self.flights.items()
            if other != position and links & set(self.priced.links[other])
        ]
        _, rival = max(rivals, key=lambda found: (found[0], -found[1]))
        name, link = self.program.ops[rival].name, min(links & set(self.priced.links[rival]))
        yield Cause("link shared", lost, name, f"it shared {link} with %{name}")

    def _late(self, position: int) -> Cause:
        """It could have been launched before: its inputs were there."""
        needs = [other for other in dependencies(self.program).before[position] if not self.program.ops[other].is_input]
        ready = max(needs, key=lambda other: (self.ends[other], other), default=None)
        if ready is None:
            return Cause("started late", self.begins[position], "", "it could have started with the step")
        name = self.program.ops[ready].name
        early = self.begins[position] - self.ends[ready]
        return Cause("started late", early, name, f"it could have started earlier, after %{name}")

    def _early(self, position: int, stop: float) -> Cause:
        """It could have been waited for later: nobody used its result at once."""
        user = self._first_user(position)
        until = self.begins[user] if user is not None else self.ends[-1]
        name = self.program.ops[user].name if user is not None else ""
        who = f"%{name} is the first to use it" if name else "nothing uses it before the end of the step"
        return Cause("waited early", max(0.0, until - stop), name, f"it was waited for early: {who}")

    def _dependency(self, position: int) -> Cause:
        """Neither: there was too little to do between what it needs and what needs it."""
        user = self._first_user(position)
        if user is None:
            return Cause("end of step", float("inf"), "", "the step ends with it, and little else was left to do")
        name = self.program.ops[user].name
        return Cause("dependency", float("inf"), name, f"%{name} needs it, and there was too little to do until then")

    def _first_user(self, position: int) -> int | None:
        """The first op that reads what a collective brought, through waits and views."""
        found: set[int] = set()
        todo = [position]
        seen = set(todo)
        while todo:
            for other in self._after[todo.pop()]:
                op = self.program.ops[other]
                if other in seen:
                    continue
                seen.add(other)
                if op.is_wait or op.traits.is_view:
                    todo.append(other)
                else:
                    found.add(other)
        return min(found, default=None)

    def _group(self, position: int) -> str:
        comm = self.program.ops[position].comm
        assert comm is not None, "only starts fly"
        return comm.group.name
