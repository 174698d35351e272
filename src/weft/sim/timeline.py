"""`Timeline`: what a simulation found, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weft.analysis.memory import Memory, memory
from weft.analysis.pairs import pairs
from weft.cost.model import CostModel
from weft.cost.prices import Prices
from weft.ir.notebook import grid, listing
from weft.ir.program import Program
from weft.sim.bounds import Bound, lower_bound
from weft.sim.intervals import Interval
from weft.sim.reasons import Exposure, reasons
from weft.sim.summary import figures

_ROUNDING = 1e-12  # of the step: what is held for less is arithmetic


@dataclass(frozen=True)
class Timeline:
    """When everything happens, in microseconds from the beginning of the step.

    - `begins`, `ends`: for each position, when the compute stream comes to that op and when it leaves it. For a
      start both are the moment of its launch; for a wait they are the time for which it holds the stream.
    - `flights`: for the position of each start, when its collective is under way
    - `step_us`: when the compute stream is done and every collective has landed
    """

    program: Program
    cost: CostModel = field(repr=False)
    prices: Prices = field(repr=False)
    begins: tuple[float, ...] = field(repr=False)
    ends: tuple[float, ...] = field(repr=False)
    flights: Mapping[int, Interval] = field(repr=False)
    step_us: float

    @cached_property
    def compute_us(self) -> float:
        """The time for which the compute stream works; `exposed_us` is the rest of the step."""
        spans = zip(self.program.ops, self.begins, self.ends, strict=True)
        return sum(end - begin for op, begin, end in spans if not op.is_wait)

    @property
    def exposed_us(self) -> float:
        """The time in which the compute stream does nothing but wait for communication."""
        return sum(self.exposed.values())

    @cached_property
    def comm_us(self) -> float:
        """The time that all collectives are under way, added up."""
        return sum(flight.us for flight in self.flights.values())

    @cached_property
    def exposed(self) -> Mapping[str, float]:
        """For each start that holds the compute stream, for how long; in program order.

        What is still in flight when the compute stream is done holds up the end of the step.
        """
        held: dict[str, float] = {op.name: 0.0 for op in self.program.starts}
        index = self.program.index
        for wait, start in pairs(self.program).start.items():
            held[start] += self.ends[index[wait]] - self.begins[index[wait]]
        done = self.ends[-1] if self.ends else 0.0
        for position in sorted(self.flights, key=lambda place: (self.flights[place].end, place)):
            if self.flights[position].end > done:
                held[self.program.ops[position].name] += self.flights[position].end - done
                done = self.flights[position].end
        return {name: us for name, us in held.items() if us > _ROUNDING * self.step_us}

    @cached_property
    def exposures(self) -> tuple[Exposure, ...]:
        """The exposed collectives with the reasons for it, the longest first."""
        return reasons(self.program, self.prices, self.begins, self.ends, self.flights, self.exposed)

    @property
    def memory(self) -> Memory:
        """The bytes that live at each op, and what they are."""
        return memory(self.program)

    @cached_property
    def memory_at(self) -> tuple[tuple[float, int], ...]:
        """Memory over time: (from when, bytes) wherever it changes, each until the next.

        Ops that take no time, such as waits, have a moment of their own: several entries may have one time.
        """
        found: list[tuple[float, int]] = []
        for begin, live in zip(self.begins, self.memory.bytes_at, strict=True):
            if not found or found[-1][1] != live:
                found.append((begin, live))
        return tuple(found)

    @property
    def peak_bytes(self) -> int:
        """The most memory that lives at any op."""
        return self.memory.peak_bytes

    @cached_property
    def bound(self) -> Bound:
        """The best lower bound on the step, and what gives it; docs/bounds.md proves it."""
        return lower_bound(self.program, self.cost, priced=self.prices)

    @property
    def bound_us(self) -> float:
        """No legal order, bucketing or splitting of this program makes the step shorter than this."""
        return self.bound.us

    def _repr_html_(self) -> str:
        """Its figures, and what is exposed most, for a notebook."""
        rows = [(name, figure.text) for name, figure in figures(self).items()]
        exposed = listing([str(exposure) for exposure in self.exposures], most=5) if self.exposures else ""
        return grid(("", "timeline"), rows) + exposed
