"""The list scheduler: compute in another order, so that communication has something to hide behind.

It goes through the step as the machine would, and whenever the compute stream is free it takes, of the ops that are
ready, the one that a rule scores highest. An op is not taken long before its turn, so that memory does not run away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.cost.prices import Prices
from weft.ir.program import Program

_PATIENCE = 0.1  # of its own time: for how long an op is put off at most

Rule = Callable[[Program, Prices], Sequence[float]]  # a score for each op; the highest goes first


def longest_tail(program: Program, priced: Prices) -> Sequence[float]:
    """An op scores by how long the step goes on after it at the very least, communication included."""
    return program.fact(_TailsWith(priced, in_turn=False))


def in_turn(program: Program, priced: Prices) -> Sequence[float]:
    """The same, if each group keeps the order of its collectives: of two like chunks, the first goes first."""
    return program.fact(_TailsWith(priced, in_turn=True))


@dataclass(frozen=True, eq=False)
class _TailsWith:
    """The analysis that scores ops by these very prices: it is asked once for each of several reaches."""

    priced: Prices
    in_turn: bool

    def __call__(self, program: Program) -> Sequence[float]:
        return _tails(program, self.priced, self.in_turn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TailsWith) and other.priced is self.priced and other.in_turn is self.in_turn

    def __hash__(self) -> int:
        return hash((id(self.priced), self.in_turn))


def _tails(program: Program, priced: Prices, in_turn: bool) -> Sequence[float]:
    after = dependencies(program).after()
    tails = [0.0] * len(program)
    queued: dict[str, float] = {}  # of each group, how long it goes on from its next collective on
    for place in reversed(range(len(program))):
        behind = max([tails[other] for other in after[place]], default=0.0)
        comm = program.ops[place].comm
        if comm is not None and in_turn:
            behind = max(behind, queued.get(comm.group.name, 0.0))
            queued[comm.group.name] = behind + priced.comm_us[place]
        tails[place] = behind + priced.us[place] + priced.comm_us[place]
    return tails


def listed(
    program: Program,
    priced: Prices,
    rule: Rule,
    reach_us: float,
    kept: Iterable[tuple[int, int]] = (),
    patient: bool = False,
    feeding: bool = False,
) -> list[int]:
    """The positions of all ops in a new order, which keeps every dependency, and the order of each pair in `kept`.

    No op is taken more than `reach_us` of compute before the first that is still to come. Collectives that need no
    compute, such as gathers of parameters, are taken to be there as soon as they can be. If it is `patient`, an op is
    put off for something more urgent that lands soon. If it is `feeding`, whatever launches something soonest goes
    first where a group would else have nothing to send.
    """
    return _Lister(program, priced, rule(program, priced), reach_us, kept, patient, feeding).run()


class _Lister:
    def __init__(
        self,
        program: Program,
        priced: Prices,
        scores: Sequence[float],
        reach_us: float,
        kept: Iterable[tuple[int, int]],
        patient: bool,
        feeding: bool,
    ) -> None:
        self._program, self._priced, self._scores = program, priced, scores
        self._reach, self._patient = reach_us, patient
        known = dependencies(program)
        self._after: list[Sequence[int]] = [*known.after()]
        self._missing = [len(before) for before in known.before]
        for earlier, later in kept:
            self._after[earlier] = [*self._after[earlier], later]
            self._missing[later] += 1
        self._turn = [0.0, *accumulate(priced.us)]  # of each op: how much compute came before it in the original
        self._given = program.fact(_without_compute)
        self._start_of = {program.index[wait]: program.index[start] for wait, start in pairs(program).start.items()}
        self._now = 0.0
        self._free: dict[str, float] = {}  # when the stream of each group is free
        self._ahead: dict[str, float] = {}  # the same, if it did nothing but what needs no compute
        self._lands: dict[int, float] = {}
        self._done = [False] * len(program)
        self._first = 0  # the first op that is still to come
        self._ready: list[tuple[float, int]] = []  # those that may be taken, the highest score first
        self._early: list[tuple[float, int]] = []  # those whose turn has not come
        self._flying: list[tuple[float, int]] = []  # waits whose collective has not landed
        self._leads = _leads(program, priced, self._after, self._given) if feeding else {}
        self._feeders: list[tuple[float, int]] = []  # those that lead to a launch, the soonest first

    def run(self) -> list[int]:
        found = [place for place, op in enumerate(self._program.ops) if op.is_input]
        for place in [place for place, missing in enumerate(self._missing) if missing == 0]:
            if self._program.ops[place].is_input:
                self._perform(place)
            else:
                self._offer(place)
        while len(found) < len(self._program):
            place = self._take()
            found.append(place)
            self._perform(place)
        return found

    def _offer(self, place: int) -> None:
        """All that an op needs is there."""
        start = self._start_of.get(place)
        lands = self._lands.get(start, 0.0) if start is not None else 0.0
        if lands > self._now:
            heapq.heappush(self._flying, (lands, place))
        elif self._turn[place] <= self._turn[self._first] + self._reach:
            self._admit(place)
        else:
            heapq.heappush(self._early, (self._turn[place], place))

    def _admit(self, place: int) -> None:
        """The turn of an op has come."""
        heapq.heappush(self._ready, (-self._scores[place], place))
        if place in self._leads:
            heapq.heappush(self._feeders, (self._leads[place][0], place))

    def _take(self) -> int:
        """The op with the highest score whose turn has come; if there is none, the next that lands."""
        flying, early, ready, done = self._flying, self._early, self._ready, self._done
        last_turn = self._turn[self._first] + self._reach
        while True:
            while flying and flying[0][0] <= self._now:
                _, place = heapq.heappop(flying)
                heapq.heappush(early, (self._turn[place], place))
            while early and early[0][0] <= last_turn:
                self._admit(heapq.heappop(early)[1])
            while ready and done[ready[0][1]]:
                heapq.heappop(ready)
            if ready and not (self._patient and self._is_worth_waiting(ready[0][1])):
                return self._feeder(ready[0][1]) if self._feeders else ready[0][1]
            self._now = flying[0][0]

    def _feeder(self, place: int) -> int:
        """The op that launches something soonest, if a group has nothing to send before this one is done; or it."""
        while self._feeders and self._done[self._feeders[0][1]]:
            heapq.heappop(self._feeders)
        if not self._feeders:
            return place
        lead, other = self._feeders[0]
        _, group = self._leads[other]
        dry = self._free.get(group, 0.0) <= self._now + self._priced.us[place]
        return other if dry and lead < self._leads.get(place, (float("inf"), ""))[0] else place

    def _is_worth_waiting(self, place: int) -> bool:
        """Whether something more urgent than this op lands so soon that it may be put off."""
        if not self._flying:
            return False
        lands, wait = self._flying[0]
        return lands <= self._now + _PATIENCE * self._priced.us[place] and self._scores[wait] > self._scores[place]

    def _perform(self, place: int) -> None:
        op = self._program.ops[place]
        self._now += self._priced.us[place]
        if op.comm is not None:
            # What needs no compute may have been launched long ago, and holds up nothing but others of its kind.
            free, ready = (self._ahead, 0.0) if place in self._given else (self._free, self._now)
            group = op.comm.group.name
            self._lands[place] = free[group] = max(ready, free.get(group, 0.0)) + self._priced.comm_us[place]
        done, missing = self._done, self._missing
        done[place] = True
        while self._first < len(done) and done[self._first]:
            self._first += 1
        for other in self._after[place]:
            missing[other] -= 1
            if missing[other] == 0:
                self._offer(other)


def _leads(
    program: Program, priced: Prices, after: Sequence[Sequence[int]], given: set[int]
) -> dict[int, tuple[float, str]]:
    """For each op that leads to a collective: how much there is to compute until then, and the group of that."""
    found: dict[int, tuple[float, str]] = {}
    for place in reversed(range(len(program))):
        comm = program.ops[place].comm
        if comm is not None and place not in given:
            found[place] = 0.0, comm.group.name
            continue
        soonest = min([found[other] for other in after[place] if other in found], default=None)
        if soonest is not None and not program.ops[place].is_input:
            found[place] = soonest[0] + priced.us[place], soonest[1]
    return found


def _without_compute(program: Program) -> set[int]:
    """The starts that need nothing but what is given and ops that prepare it: views and copies."""
    given: set[int] = set()
    for place, (op, before) in enumerate(zip(program.ops, dependencies(program).before, strict=True)):
        free = op.traits.is_view or op.is_input or op.is_start or op.target == "get_attr" or op.traits.copies
        if free and given.issuperset(before):
            given.add(place)
    return {place for place in given if program.ops[place].is_start}
