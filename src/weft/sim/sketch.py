"""A Program contracted to what matters to a schedule: its collectives, and how much time and memory lies between them.

All other ops keep their order, as `analysis.windows` has it. A *slot* is a gap behind one of them in which something
may be launched or waited for; the ops between two slots are one number. So a schedule of thousands of ops is two small
numbers for each collective, in which slot it is launched and in which it is waited for, and to run it takes
milliseconds.

Memory is counted to the safe side: what is made and what dies in one slot is taken to be there at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

from weft.ir.program import Collective, Program
from weft.sim.streams import Flight, Streams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A collective as a schedule sees it. Places are numbers of slots.

    - `ready`, `due`: the first and the last slot in which it may be launched
    - `settled`, `used`: the first and the last in which it may be waited for, not before its launch
    - `us`: how long it takes alone; `before_us`, `behind_us`: the compute that comes along with its start and its wait
    - `makes`: the bytes that come to life with its launch; `frees`: those that its wait lets go
    """

    name: str
    comm: Collective
    us: float
    shares: Mapping[str, float]
    nbytes: int
    ready: int
    due: int
    settled: int
    used: int
    before_us: float
    behind_us: float
    makes: int
    frees: int

    @property
    def group(self) -> str:
        return self.comm.group.name

    @property
    def fixed(self) -> bool:
        """Whether there is no choice."""
        return self.ready == self.due and self.settled == self.used

    @property
    def grows(self) -> bool:
        """Whether memory wants it late: it makes more than it frees, as a gather does. All others it wants early."""
        return self.makes > self.frees


@dataclass(frozen=True, slots=True)
class Hold:
    """A storage whose life depends on where collectives stand: from the first of `born` to the last of `until`.

    Both are half-slots, 2i for the ops before slot i and 2i+1 for the slot itself; `made` is the piece that makes it,
    -1 if an op that stays does, and `launch` and `wait` are the pieces that need it until then. Those that `copied` it
    do so before they are launched, and make no more by it than their result has.
    """

    nbytes: int
    born: int
    made: int
    at_wait: bool
    until: int
    launch: tuple[int, ...]
    wait: tuple[int, ...]
    copied: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where each piece is launched and waited for, and `order`, in which pieces of one slot are launched."""

    launch: tuple[int, ...]
    wait: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A placement that was run.

    - `slots`: when the compute stream comes to each slot
    - `begins`, `lands`: when each piece is under way; `held`: for how long the compute stream waits for it
    """

    slots: tuple[float, ...]
    begins: tuple[float, ...]
    lands: tuple[float, ...]
    held: tuple[float, ...]
    step_us: float


@dataclass(frozen=True)
class Sketch:
    """- `slots`: the positions behind which the slots are
    - `us`: the compute before each slot; `peaks`: the memory of what stays, for each half-slot
    - `bucket`: for each collective of the program, which `holds` name by its number, the number of its piece
    """

    program: Program
    slots: tuple[int, ...]
    us: tuple[float, ...]
    peaks: tuple[int, ...]
    pieces: tuple[Piece, ...]
    holds: tuple[Hold, ...]
    bucket: tuple[int, ...]
    slowdown: float

    @cached_property
    def _facts(self) -> dict[object, Any]:
        return {}

    def fact(self, analysis: Callable[[Sketch], T]) -> T:
        """`analysis(self)`, computed once for analyses that are equal: a Sketch never changes."""
        if analysis not in self._facts:
            self._facts[analysis] = analysis(self)
        found: T = self._facts[analysis]
        return found

    def run(self, placement: Placement) -> Run:
        """Run a placement as `simulate` would run the program that it stands for."""
        launched, waited = self._by_slot(placement)
        streams = Streams(self.slowdown)
        slots, held = [], [0.0] * len(self.pieces)
        for slot, us in enumerate(self.us):
            if us:  # there is nothing but views between many slots
                streams.compute(us)
            slots.append(streams.now)
            if slot in launched:
                for number in launched[slot]:
                    piece = self.pieces[number]
                    if piece.before_us:
                        streams.compute(piece.before_us)
                    streams.launch(Flight(number, piece.group, piece.us, piece.shares, streams.now))
            if slot in waited:
                for number in waited[slot]:
                    now = streams.now
                    streams.wait(number)
                    held[number] = streams.now - now
                    if self.pieces[number].behind_us:
                        streams.compute(self.pieces[number].behind_us)
        last = max(streams.now, streams.drain())
        flights = [streams.landed[number] for number in range(len(self.pieces))]
        begins, lands = tuple(one.begin for one in flights), tuple(one.end for one in flights)
        return Run(tuple(slots), begins, lands, tuple(held), last)

    def memory(self, placement: Placement) -> list[int]:
        """The bytes that live in each half-slot."""
        change = [0] * (len(self.peaks) + 1)
        launch, wait = ([where[number] for number in self.bucket] for where in (placement.launch, placement.wait))
        for hold in self.holds:
            born, until = hold.born, hold.until
            if hold.made >= 0:
                born = 2 * (wait if hold.at_wait else launch)[hold.made] + 1
            for piece in hold.launch:
                until = max(until, 2 * launch[piece] + 1)
            for piece in hold.wait:
                until = max(until, 2 * wait[piece] + 1)
            for piece in hold.copied:
                until = max(until, 2 * launch[piece])
            change[born] += hold.nbytes
            change[until + 1] -= hold.nbytes
        return [fixed + more for fixed, more in zip(self.peaks, accumulate(change[:-1]), strict=True)]

    def _by_slot(self, placement: Placement) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
        launched: dict[int, list[int]] = {}
        waited: dict[int, list[int]] = {}
        for number in placement.order:
            launched.setdefault(placement.launch[number], []).append(number)
            waited.setdefault(placement.wait[number], []).append(number)
        return launched, waited
