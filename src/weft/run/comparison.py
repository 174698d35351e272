"""Predicted against measured: a step in figures, and the ops and collectives where the two differ most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from weft.cost import Profile
from weft.errors import visible
from weft.ir.text import counted
from weft.sim.units import time_text

_SHOWN = 10  # differences that are worth a line each
_WORTH = 0.05  # of the step: below this a prediction is as good as can be asked for

COLLECTIVE, OP, FUSED, LAUNCHING = "collective", "op", "fused", "launching"
_REMEDIES = {
    COLLECTIVE: 'recalibrate with `weft calibrate`, or plan with these times: collective_estimator="profile"',
    OP: 'recalibrate with `weft calibrate`, or plan with these times: compute_estimator="profile"',
    FUSED: "recalibrate with `weft calibrate`: kernels that were fused have no times of their own in a profile",
    LAUNCHING: "Weft counts a start as free; fewer and larger collectives, as `bucket` makes them, start more quickly",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What all ops that are alike were predicted to take, and what they took.

    `times` is how often they run in a step. `predicted_us` and `measured_us` are of one of them, and `origin` is where
    the user's code made the first. `kind` is COLLECTIVE, OP, FUSED or LAUNCHING.
    """

    kind: str
    what: str
    times: float
    predicted_us: float
    measured_us: float
    origin: str = ""

    @property
    def us(self) -> float:
        """How much longer a step takes than predicted because of them."""
        return self.times * (self.measured_us - self.predicted_us)


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the step, in microseconds; None where nobody predicted it, or it could not be measured."""

    name: str
    predicted_us: float | None
    measured_us: float | None


@dataclass(frozen=True)
class Comparison:
    """What `weft.profile` found. As text, it is a table.

    - `steps`: how many were measured; `graphs` says which graphs ran in each
    - `rows`: step, compute, communication, exposed, launching, elsewhere
    - `differences`: the one that costs most first
    - `remarks`: a line on each thing that could not be compared
    - `profile`: what was measured, for `weft.Estimates(profile=...)`
    """

    steps: int
    graphs: tuple[str, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]
    profile: Profile = field(repr=False)

    @property
    def verdict(self) -> str:
        """Where the error is, in a sentence."""
        step = next(row.measured_us for row in self.rows if row.name == "step")
        if not self.differences or step is None:
            return "nothing that Weft predicted was found in the trace"
        worst = self.differences[0]
        said = f"{worst.what}: predicted {time_text(worst.predicted_us)}, measured {time_text(worst.measured_us)}"
        often = f"{said}, {_times(worst.times)} a step"
        if abs(worst.us) < _WORTH * step:
            return f"no difference is more than {_WORTH:.0%} of the step; the largest is {often}"
        return f"the largest error is in {often}; {_REMEDIES[worst.kind]}"

    def __str__(self) -> str:
        return "\n".join(visible(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"predicted against measured, {counted(self.steps, 'step')}: {', '.join(self.graphs)}"
        yield from _aligned([("", "predicted", "measured", "difference"), *map(_row, self.rows)], "<>>>")
        yield ""
        if self.differences:
            yield "where they differ most, by what it costs a step:"
            heads = ("difference", "times", "predicted", "measured", "what", "where")
            yield from _aligned([heads, *map(_line, self.differences[:_SHOWN])], ">>>><<")
            if (more := len(self.differences) - _SHOWN) > 0:
                yield f"and {more:,} more"
            yield ""
        yield self.verdict
        yield from self.remarks


def sorted_by_cost(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """The one that costs a step most first, whether it took longer than predicted or less long."""
    return tuple(sorted(found, key=lambda one: (-abs(one.us), one.what)))


def _row(row: Row) -> tuple[str, ...]:
    both = (row.predicted_us, row.measured_us)
    texts = ["—" if us is None else time_text(us) for us in both]
    apart = "" if both[0] is None or both[1] is None else _signed(both[1] - both[0])
    return (row.name, *texts, apart)


def _line(one: Difference) -> tuple[str, ...]:
    times = (time_text(one.predicted_us), time_text(one.measured_us))
    return (_signed(one.us), f"{one.times:g}", *times, one.what, one.origin)


def _signed(us: float) -> str:
    return f"{'−' if us < 0 else '+'}{time_text(abs(us))}"


def _times(number: float) -> str:
    return {1.0: "once", 2.0: "twice"}.get(number, f"{number:g} times")


def _aligned(rows: Sequence[tuple[str, ...]], sides: str) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)]
        yield "  ".join(cells).rstrip()
