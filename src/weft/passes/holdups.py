"""What holds a collective back that is exposed: what it needs, a barrier, a limit of the schedule, or nothing.

`Timeline.exposures` says that a collective started late or was waited for early. Here is why: its window says how far
it could have moved, and the limits say what would have been broken on the way.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.analysis.windows import Window, windows
from weft.errors import WeftWarning
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.fitting_in import Limits
from weft.passes.pinning import pinned
from weft.passes.schedule import SchedulePass
from weft.sim.contract import contract
from weft.sim.intervals import Interval
from weft.sim.reasons import Cause, Exposure
from weft.sim.sketch import Piece, Sketch
from weft.sim.timeline import Timeline
from weft.sim.units import size_text, time_text

_OWN = ("started late", "waited early", "dependency", "end of step")  # the kinds that are looked into
_ROUNDING = 1e-9  # of a time: below it a difference is arithmetic and not a cause
_WORTH_A_WORD = 1e-3  # of an exposure: a cause of less is left out
_NAMED = 3  # tensors that a message names


@dataclass(frozen=True)
class Knobs:
    """What a schedule was asked for: its options, the peak of the program that it was given, the limit of the run."""

    options: SchedulePass
    peak: int
    memory_limit: int | None = None

    @cached_property
    def limits(self) -> Limits:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeftWarning)  # whoever set the limit has been told
            return self.options.limits(self.peak, self.memory_limit)

    def pinned(self, program: Program) -> frozenset[str]:
        """The starts that stay where they are."""
        return pinned(program, self.options.pin)


def held_up(timeline: Timeline, knobs: Knobs, most: int | None) -> tuple[Exposure, ...]:
    """The exposed collectives, or the first so many, the longest first, each with causes that say what holds it back.

    Besides the kinds of `Cause`, these are "memory limit", "in-flight limit", "prefetch limit", "order kept",
    "pinned", "barrier" and "too little compute". "started late" and "waited early" mean that nothing did.
    """
    known = _Holdups(timeline, knobs)
    return tuple(map(known.looked_into, timeline.exposures[:most]))


@dataclass(frozen=True)
class _Holdups:
    timeline: Timeline
    knobs: Knobs

    def looked_into(self, one: Exposure) -> Exposure:
        """The exposure with what holds it up, instead of that it started late or was waited for early."""
        window = windows(self.timeline.program).get(one.start)
        if window is None:
            return one
        found = [cause for cause in one.causes if cause.kind not in _OWN]
        left = sum(cause.us for cause in one.causes if cause.kind in _OWN)
        for find in (self._late, self._early, self._needed):
            for cause in find(window, left):
                if cause.us > _WORTH_A_WORD * one.us:
                    found.append(cause)
                    left -= cause.us
        return Exposure(one.start, one.us, tuple(sorted(found, key=lambda cause: -cause.us)))

    # It was launched later than it could have been

    def _late(self, window: Window, left: float) -> Iterator[Cause]:
        """Why it was not launched as much earlier as would have hidden it."""
        begins, ends = self.timeline.begins, self.timeline.ends
        since = ends[window.ready] if window.ready >= 0 else 0.0
        us = min(left, max(0.0, begins[window.position] - since - self._us(window.prelude)))
        where = max(window.ready, bisect_right(ends, begins[window.position] - us + _ROUNDING * self._step_us) - 1)
        held = self._limit(window, range(where + 1, window.position), self._piece(window).makes, where)
        if held is not None:
            yield replace(held, us=us)
            return
        for cause in self._queue(window, Interval(begins[window.position] - us, begins[window.position])):
            yield cause
            us -= cause.us
        name = self._need(window)
        when = f"after %{name}" if name else "at the beginning of the step"
        yield Cause("started late", us, name, f"nothing keeps it from starting earlier, {when}")

    def _queue(self, window: Window, earlier: Interval) -> Iterator[Cause]:
        """Those of its group that were under way in a time: launched then, it would have had to wait for them."""
        program, group = self.timeline.program, self._piece(window).group
        for place, flight in self.timeline.flights.items():
            comm = program.ops[place].comm
            if place < window.position and comm is not None and comm.group.name == group:
                name, us = self._name(place), flight.overlap(earlier)
                if us > 0:
                    message = f"group {group} was busy with %{name} when it could have started"
                    yield Cause("group busy", us, name, message)

    def _limit(self, window: Window, places: range, nbytes: int, where: int) -> Cause | None:
        """The limit that keeps a collective from being in flight at these places, if one does."""
        if window.start.name in self.knobs.pinned(self.timeline.program):
            return Cause("pinned", 0.0, "", "it is pinned to its place")
        for find in (self._memory(places, nbytes), self._in_flight(window, places)):
            for cause in find:
                return cause
        if where < window.position:
            for cause in (*self._prefetch(window, where), *self._order(window, places)):
                return cause
        return None

    def _memory(self, places: range, nbytes: int) -> Iterator[Cause]:
        limit, known = self.knobs.limits.memory, self.timeline.memory
        if limit is None or not places or nbytes <= 0:
            return
        place = max(places, key=lambda place: known.bytes_at[place])
        if known.bytes_at[place] + nbytes > limit:
            name, live = self._name(place), known.live_at(place)
            most = ", ".join(f"%{maker} ({size_text(size)})" for maker, size in live[:_NAMED])
            message = (
                f"memory limit: it would take {size_text(nbytes)} more, and at %{name} there are "
                f"{size_text(known.bytes_at[place])} of {size_text(limit)} in use, most by {most}"
            )
            yield Cause("memory limit", 0.0, live[0][0] if live else "", message)

    def _in_flight(self, window: Window, places: range) -> Iterator[Cause]:
        limit = self.knobs.limits.in_flight
        if limit is None or not places:
            return
        place = max(places, key=lambda place: self._flying[place])
        total = self._flying[place] + self._piece(window).nbytes
        if total > limit and self._flying[place]:
            names = self._in_flight_at(place)
            message = (
                f"in-flight limit: with it there would be {size_text(total)} in flight, and {size_text(limit)} may be; "
                f"there is {', '.join(f'%{name}' for name in names[:_NAMED])}"
            )
            yield Cause("in-flight limit", 0.0, names[0], message)

    def _prefetch(self, window: Window, where: int) -> Iterator[Cause]:
        most = self.knobs.options.max_compute_pre_fetch
        if most is None or not self._piece(window).grows:
            return
        ahead = self._kernels[window.used] - self._kernels[where + 1]
        if ahead > most:
            user = f"%{self._name(window.used)}" if window.used < len(self._kernels) - 1 else "the end of the step"
            message = f"prefetch limit: it would start {counted(ahead, 'kernel')} ahead of {user}, more than {most}"
            yield Cause("prefetch limit", 0.0, "", message)

    def _order(self, window: Window, places: range) -> Iterator[Cause]:
        group = self._piece(window).group
        for place in reversed(places) if self.knobs.limits.keep_order else ():
            op = self.timeline.program.ops[place]
            if op.comm is not None and op.comm.group.name == group:
                message = f"the collectives of group {group} keep their order, and %{op.name} comes before it"
                yield Cause("order kept", 0.0, op.name, message)

    # It was waited for earlier than it had to be

    def _early(self, window: Window, left: float) -> Iterator[Cause]:
        """Why it was not waited for later."""
        program, begins, ends = self.timeline.program, self.timeline.begins, self.timeline.ends
        wait = max(program.index[name] for name in pairs(program).waits[window.start.name])
        used = window.used < len(program)
        until = begins[window.used] if used else ends[-1]
        behind = self._us(place for place in window.family if place > wait)
        us = min(left, max(0.0, until - ends[wait] - behind))
        where = min(window.used, bisect_left(ends, ends[wait] + us - _ROUNDING * self._step_us) + 1)
        held = self._limit(window, range(wait + 1, where), self._piece(window).frees, window.position)
        if held is not None:
            yield replace(held, us=us)
            return
        name = self._name(window.used) if used else ""
        who = f"%{name} is the first to use it" if used else "nothing uses it before the end of the step"
        yield Cause("waited early", us, name, f"nothing keeps it from being waited for later: {who}")

    # It had no choice

    def _needed(self, window: Window, left: float) -> Iterator[Cause]:
        """What is before it and behind it, and that there is too little in between."""
        yield replace(self._between(window), us=left)

    def _between(self, window: Window) -> Cause:
        program = self.timeline.program
        for place in (window.ready, window.used):
            if 0 <= place < len(program) and program.ops[place].traits.barrier:
                name = self._name(place)
                return Cause("barrier", 0.0, name, f"%{name} is a barrier, and nothing moves across it")
        between = self._clock[window.used] - self._clock[window.ready + 1]
        between -= self._us(place for place in (*window.prelude, *window.family) if window.ready < place < window.used)
        between = max(0.0, between)
        need = self._need(window)
        after = f"after %{need}, which it needs," if need else "from the beginning of the step"
        takes = f"it takes {time_text(self._piece(window).us)}, and {after} there"
        shared = ", which others hide behind, too" if between >= self._piece(window).us else ""
        if window.used >= len(program):
            message = f"{takes} are {time_text(between)} of compute to the end of the step{shared}"
            return Cause("end of step", 0.0, need, message)
        user = self._name(window.used)
        if between <= _ROUNDING * self._step_us:
            message = f"%{user} needs it, and {after} there is nothing to do until then"
            return Cause("dependency", 0.0, need or user, message)
        message = f"{takes} are {time_text(between)} of compute until %{user} needs it{shared}"
        return Cause("too little compute", 0.0, need or user, message)

    def _need(self, window: Window) -> str:
        """The op after which it can be launched; "" if it needs nothing but inputs."""
        moving = {window.position, *window.prelude}
        before = dependencies(self.timeline.program).before
        needed = {other for place in moving for other in before[place]} - moving
        made = [place for place in needed if not self.timeline.program.ops[place].is_input]
        return self._name(max(made)) if made else ""

    # What is known of the program

    def _piece(self, window: Window) -> Piece:
        return self._pieces[window.start.name]

    def _name(self, place: int) -> str:
        return self.timeline.program.ops[place].name

    def _us(self, places: Sequence[int] | Iterator[int]) -> float:
        return sum(self.timeline.prices.us[place] for place in places)

    def _in_flight_at(self, place: int) -> list[str]:
        """The collectives that are in flight there, the largest first."""
        found = [name for name, (first, last) in self._flights.items() if first <= place < last]
        return sorted(found, key=lambda name: -self._pieces[name].nbytes)

    @cached_property
    def _sketch(self) -> Sketch:
        return contract(self.timeline.program, self.timeline.prices)

    @cached_property
    def _pieces(self) -> Mapping[str, Piece]:
        return {piece.name: piece for piece in self._sketch.pieces}

    @cached_property
    def _flights(self) -> Mapping[str, tuple[int, int]]:
        """For each start, its position and that of its last wait."""
        program = self.timeline.program
        found = pairs(program).waits.items()
        return {
            start: (program.index[start], max((program.index[wait] for wait in waits), default=len(program)))
            for start, waits in found
        }

    @cached_property
    def _flying(self) -> list[int]:
        """For each position, the bytes of the collectives that are launched and not yet waited for."""
        change = [0] * (len(self.timeline.program) + 1)
        for name, (first, last) in self._flights.items():
            change[first] += self._pieces[name].nbytes
            change[last] -= self._pieces[name].nbytes
        return list(accumulate(change[:-1]))

    @cached_property
    def _kernels(self) -> list[int]:
        """For each position, how many kernels are before it."""
        return [0, *accumulate(int(us > 0) for us in self.timeline.prices.us)]

    @cached_property
    def _clock(self) -> list[float]:
        """For each position, the compute before it."""
        return [0.0, *accumulate(self.timeline.prices.us)]

    @property
    def _step_us(self) -> float:
        return self.timeline.step_us
