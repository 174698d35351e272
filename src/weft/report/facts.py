"""What there is to show of a timeline: its collectives with all that is known of them, and what holds the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.analysis.pairs import pairs
from weft.analysis.traffic import inside_bytes, total_bytes
from weft.ir.notebook import shown
from weft.ir.printer import print_spec
from weft.ir.program import Group, Op
from weft.sim.inside import inside
from weft.sim.intervals import Interval
from weft.sim.reasons import Cause
from weft.sim.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Shown:
    """A collective as people look at it; one inside a matmul is under way as long as that works.

    `launched` is when it was handed to its group, `flight` when it was under way, `waits` are the ops that wait for it,
    `waited` is for how long the first of them holds the stream, and the causes add up to `exposed_us`.
    """

    position: int
    op: Op
    kind: str
    group: Group
    total_bytes: int
    launched: float
    flight: Interval
    waits: tuple[str, ...]
    waited: Interval | None
    exposed_us: float
    causes: tuple[Cause, ...]

    @property
    def reason(self) -> str:
        """Why it is exposed, in a few words; "" if it is not."""
        return "; ".join(f"{cause.us:,.1f} us: {cause.message}" for cause in self.causes)


@dataclass(frozen=True, slots=True)
class Hold:
    """The compute stream does nothing but wait: for the collective `start`, at the op `wait`.

    `wait` is empty at the end of the step, for what is still in flight there; `start` where nobody knows what is
    waited for.
    """

    during: Interval
    wait: str
    start: str


def collectives(timeline: Timeline) -> tuple[Shown, ...]:
    """The collectives that are started and waited for, in the order in which they are launched."""
    why = {exposure.start: exposure.causes for exposure in timeline.exposures}
    return tuple(
        _shown(timeline, position, flight, why.get(timeline.program.ops[position].name, ()))
        for position, flight in timeline.flights.items()
    )


def within_matmuls(timeline: Timeline) -> tuple[Shown, ...]:
    """The collectives that are carried out inside matmuls, in order; exposed is what such a matmul waits for them."""
    program, found = timeline.program, []
    held = {one.start: one for one in inside(timeline)}
    for position, op in enumerate(program.ops):
        if op.inside is not None:
            flight = Interval(timeline.begins[position], timeline.ends[position])
            one = _shown(timeline, position, flight, held[op.name].causes if op.name in held else ())
            found.append(replace(one, exposed_us=held[op.name].us if op.name in held else 0.0))
    return tuple(found)


def _shown(timeline: Timeline, position: int, flight: Interval, causes: tuple[Cause, ...]) -> Shown:
    op = timeline.program.ops[position]
    assert op.collective is not None, "only collectives are shown"
    waits = pairs(timeline.program).waits[op.name] if op.is_start else ()
    return Shown(
        position=position,
        op=op,
        kind=op.collective.kind,
        group=op.collective.group,
        total_bytes=total_bytes(op) if op.is_start else inside_bytes(timeline.program, op),
        launched=timeline.begins[position],
        flight=flight,
        waits=waits,
        waited=_during(timeline, waits[0]) if waits else None,
        exposed_us=timeline.exposed.get(op.name, 0.0),
        causes=causes,
    )


def computations(timeline: Timeline) -> Iterator[tuple[Op, Interval]]:
    """The ops for which the compute stream works, in order; what takes no time is left out."""
    for op, begin, end in zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True):
        if end > begin and not op.is_wait:
            yield op, Interval(begin, end)


def holds(timeline: Timeline) -> Iterator[Hold]:
    """All stretches of time in which the compute stream waits, in order; together they are the exposed time."""
    start_of = pairs(timeline.program).start
    for op, begin, end in zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True):
        if end > begin and op.is_wait:
            yield Hold(Interval(begin, end), op.name, start_of.get(op.name, ""))
    done = timeline.ends[-1] if timeline.ends else 0.0
    for position in sorted(timeline.flights, key=lambda place: (timeline.flights[place].end, place)):
        if (landed := timeline.flights[position].end) > done:
            yield Hold(Interval(done, landed), "", timeline.program.ops[position].name)
            done = landed


def _during(timeline: Timeline, name: str) -> Interval:
    position = timeline.program.index[name]
    return Interval(timeline.begins[position], timeline.ends[position])


def shape(op: Op) -> str:
    """What an op makes: dtypes and shapes."""
    return shown(", ".join(print_spec(spec) for spec in op.out))
