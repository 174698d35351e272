"""How a Program is contracted to a Sketch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add, sub

from weft.analysis.dependencies import dependencies
from weft.analysis.memory import kept, memory
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages, uses
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window, windows
from weft.cost.prices import Prices
from weft.ir.program import Op, Program
from weft.sim.sketch import Hold, Piece, Sketch
from weft.sim.streams import link_shares


def contract(program: Program, priced: Prices, pinned: Collection[str] = ()) -> Sketch:
    """The sketch of a Program with these prices. Starts that are `pinned` stay where they are, as do their waits."""
    return program.fact(_SketchWith(priced, frozenset(pinned)))


@dataclass(frozen=True, eq=False)
class _SketchWith:
    """The analysis that contracts a Program with these very prices: several passes do, one after the other."""

    priced: Prices
    pinned: frozenset[str]

    def __call__(self, program: Program) -> Sketch:
        return _Contraction(program, self.priced, self.pinned).sketch()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SketchWith) and other.priced is self.priced and other.pinned == self.pinned

    def __hash__(self) -> int:
        return hash((id(self.priced), self.pinned))


class _Contraction:
    """Which ops come along with a collective, which storages they touch, and what lies between the slots."""

    def __init__(self, program: Program, priced: Prices, pinned: Collection[str]) -> None:
        self._program, self._priced = program, priced
        self._known, self._kept = storages(program), kept(program)
        self._windows = [_window(program, op, op.name in pinned) for op in program.starts]
        self._launched: dict[int, int] = {}  # for each op that comes along with a launch, the number of the piece
        self._waited: dict[int, int] = {}
        for number, one in enumerate(self._windows):
            self._launched.update(dict.fromkeys(one.launched, number))
            self._waited.update(dict.fromkeys(one.waited, number))
        self._floating = self._floating_storages()
        self._last = dict[int, int]()  # for each storage that floats, the last op that stays and uses it
        self._users: dict[int, tuple[set[int], set[int]]] = {storage: (set(), set()) for storage in self._floating}
        self._find_users()
        self._settled = list(map(self._find_settled, self._windows))
        self._slots = self._slot_positions()

    def sketch(self) -> Sketch:
        holds = tuple(self._holds())
        pieces = tuple(map(self._piece, self._windows, self._settled, *self._changes(holds)))
        numbers = tuple(range(len(pieces)))
        us, peaks, slowdown = self._us(), self._peaks(), self._priced.slowdown
        return Sketch(self._program, self._slots, us, peaks, pieces, holds, numbers, slowdown)

    def _moves(self, position: int) -> bool:
        return position in self._launched or position in self._waited

    def _floating_storages(self) -> frozenset[int]:
        """The storages that an op that moves makes or uses."""
        moving = [self._program.ops[place] for place in (*self._launched, *self._waited)]
        return self._known.of_values([name for op in moving for name in (op.name, *op.given)])

    def _find_users(self) -> None:
        used = uses(self._program)
        for storage, (launch, wait) in self._users.items():
            last = -1
            for place in used[storage]:
                if place in self._launched:
                    launch.add(self._launched[place])
                elif place in self._waited:
                    wait.add(self._waited[place])
                elif place > last:
                    last = place
            if last >= 0:
                self._last[storage] = last
        for number, one in enumerate(self._windows):  # what is sent and received is the collective's until its wait
            for storage in self._known.of_values((one.start.name, *one.start.given)):
                self._users[storage][1].add(number)

    def _slot_positions(self) -> tuple[int, ...]:
        """Where pieces may go, and where storages that float begin or end among the ops that stay."""
        found = {len(self._program) - 1, *self._last.values(), *self._settled}
        for one in self._windows:
            found |= {one.ready, one.due - 1, one.used - 1}
        makers = {self._known.maker[storage] for storage in self._floating}
        found.update([maker - 1 for maker in makers if not self._moves(maker)])
        return tuple(sorted(found))

    def _find_settled(self, one: Window) -> int:
        """The position behind which all can stand that comes along with a wait: a copy into a buffer comes behind
        those who read that; where these move themselves, it stays behind its own place."""
        before, own = dependencies(self._program).before, {*one.launched, *one.waited}
        held = [(other, place) for place in one.waited for other in before[place] if other not in own]
        return max([one.settled, *(place if self._moves(other) else other for other, place in held)])

    def _slot(self, position: int) -> int:
        """The first slot that is not before a position."""
        return bisect_left(self._slots, position)

    def _holds(self) -> Iterator[Hold]:
        """The storages that float, in order."""
        program, known, end = self._program, self._known, 2 * len(self._slots) - 1
        given = {program.index[op.name] for op in (*program.inputs, *program.attributes)}
        for storage in sorted(self._floating):
            maker, (launch, wait) = known.maker[storage], self._users[storage]
            until = 2 * self._slot(self._last[storage]) if storage in self._last else 0
            yield Hold(
                nbytes=known.nbytes[storage],
                born=0 if maker in given else 2 * self._slot(maker),
                made=self._launched.get(maker, self._waited.get(maker, -1)),
                at_wait=maker in self._waited,
                until=end if storage in self._kept else until,
                launch=tuple(sorted(launch)),
                wait=tuple(sorted(wait)),
            )

    def _changes(self, holds: tuple[Hold, ...]) -> tuple[list[int], list[int]]:
        """For each piece, the bytes that its launch makes, and those that its wait frees."""
        makes, frees = [0] * len(self._windows), [0] * len(self._windows)
        for hold in holds:
            maker = -1 if hold.at_wait else hold.made
            if maker >= 0:
                makes[maker] += hold.nbytes
            if hold.until < 2 * len(self._slots) - 1:
                for number in hold.wait:
                    if number != maker:
                        frees[number] += hold.nbytes
        return makes, frees

    def _piece(self, one: Window, settled: int, makes: int, frees: int) -> Piece:
        us, comm = self._priced.comm_us[one.position], one.start.comm
        assert comm is not None, "a start communicates"
        return Piece(
            name=one.start.name,
            comm=comm,
            us=us,
            shares=link_shares(self._priced.links[one.position], us),
            nbytes=total_bytes(one.start),
            ready=self._slot(one.ready),
            due=self._slot(one.due - 1),
            settled=self._slot(settled),
            used=self._slot(one.used - 1),
            before_us=sum([self._priced.us[place] for place in one.launched]),
            behind_us=sum([self._priced.us[place] for place in one.waited]),
            makes=makes,
            frees=frees,
        )

    def _us(self) -> tuple[float, ...]:
        """The compute of the ops that stay, before each slot."""
        stays = list(self._priced.us)
        for place in (*self._launched, *self._waited):
            stays[place] = 0.0
        clock = list(accumulate(stays, initial=0.0))
        return tuple(clock[end + 1] - clock[begin + 1] for begin, end in pairwise((-1, *self._slots)))

    def _peaks(self) -> tuple[int, ...]:
        """For each half-slot, the most that lives there of the storages that do not float."""
        found, floating, never = memory(self._program), self._floating, len(self._program)
        born, dead = [0] * (never + 1), [0] * (never + 1)
        lives = zip(self._known.nbytes, found.births, found.deaths, strict=True)
        for storage, (nbytes, birth, death) in enumerate(lives):
            if nbytes and storage not in floating:
                born[birth] += nbytes
                dead[never if storage in self._kept else death] += nbytes
        after = list(accumulate(map(sub, born, dead)))
        during = list(map(add, after, dead))
        peaks: list[int] = []
        for begin, end in pairwise((-1, *self._slots)):
            peaks += [max(during[begin + 1 : end + 1], default=0), after[end] if end >= 0 else 0]
        return tuple(peaks)


def _window(program: Program, op: Op, pinned: bool) -> Window:
    """The window of a start. One that nobody waits for, or somebody once more after its use, stays where it is."""
    found = windows(program).get(op.name)
    if found is not None and not pinned and found.settled < found.used:
        return found
    position = program.index[op.name]
    waits = [program.index[wait] for wait in pairs(program).waits[op.name]]
    waited = waits[0] if waits else len(program) - 1
    return Window(op, position, position, position + 1, waited, waited + 1, (), (), (), waited + 1)
