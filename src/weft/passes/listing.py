"""The list scheduler: compute in another order, so that communication has something to hide behind.

It goes through the step as the machine would, and whenever the compute stream is free it takes, of the ops that are
ready, the one that a rule scores highest. An op is not taken long before its turn, so that memory does not run away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.cost.prices import Prices
from weft.ir.program import Program

Rule = Callable[[Program, Prices], Sequence[float]]  # a score for each op; the highest goes first


def longest_tail(program: Program, priced: Prices) -> Sequence[float]:
    """An op scores by how long the step goes on after it at the very least, communication included."""
    after = dependencies(program).after()
    tails = [0.0] * len(program)
    for place in reversed(range(len(program))):
        behind = max((tails[other] for other in after[place]), default=0.0)
        tails[place] = behind + priced.us[place] + priced.comm_us[place]
    return tails


def listed(
    program: Program, priced: Prices, rule: Rule, reach_us: float, kept: Iterable[tuple[int, int]] = ()
) -> list[int]:
    """The positions of all ops in a new order, which keeps every dependency, and the order of each pair in `kept`.

    No op is taken more than `reach_us` of compute before the first that is still to come. Collectives that need no
    compute, such as gathers of parameters, are taken to be there when they are needed.
    """
    return _Lister(program, priced, rule(program, priced), reach_us, kept).run()


class _Lister:
    def __init__(
        self,
        program: Program,
        priced: Prices,
        scores: Sequence[float],
        reach_us: float,
        kept: Iterable[tuple[int, int]],
    ) -> None:
        self._program, self._priced, self._reach = program, priced, reach_us
        self._scores = [float("inf") if op.is_input else one for op, one in zip(program.ops, scores, strict=True)]
        known = dependencies(program)
        self._after = known.after()
        self._missing = [len(before) for before in known.before]
        for earlier, later in kept:
            self._after[earlier].append(later)
            self._missing[later] += 1
        self._turn = [0.0, *accumulate(priced.us)]  # of each op: how much compute came before it in the original
        self._given = _without_compute(program, known.before)
        self._start_of = {program.index[wait]: program.index[start] for wait, start in pairs(program).start.items()}
        self._now = 0.0
        self._free: dict[str, float] = {}  # when the stream of each group is free
        self._lands: dict[int, float] = {}
        self._done = [False] * len(program)
        self._first = 0  # the first op that is still to come
        self._ready: list[tuple[float, int]] = []  # those that may be taken, the highest score first
        self._early: list[tuple[float, int]] = []  # those whose turn has not come
        self._flying: list[tuple[float, int]] = []  # waits whose collective has not landed

    def run(self) -> list[int]:
        found: list[int] = []
        for place, missing in enumerate(self._missing):
            if missing == 0:
                self._offer(place)
        while len(found) < len(self._program):
            place = self._take()
            found.append(place)
            self._perform(place)
        return found

    def _offer(self, place: int) -> None:
        """All that an op needs is there."""
        lands = self._lands.get(self._start_of.get(place, -1), 0.0)
        if lands > self._now:
            heapq.heappush(self._flying, (lands, place))
        else:
            heapq.heappush(self._early, (self._turn[place], place))

    def _take(self) -> int:
        """The op with the highest score whose turn has come; if there is none, the next that lands."""
        while True:
            while self._flying and self._flying[0][0] <= self._now:
                _, place = heapq.heappop(self._flying)
                heapq.heappush(self._early, (self._turn[place], place))
            while self._early and self._early[0][0] <= self._turn[self._first] + self._reach:
                _, place = heapq.heappop(self._early)
                heapq.heappush(self._ready, (-self._scores[place], place))
            if self._ready:
                return heapq.heappop(self._ready)[1]
            self._now = self._flying[0][0]

    def _perform(self, place: int) -> None:
        op = self._program.ops[place]
        self._now += self._priced.us[place]
        if op.comm is not None and place not in self._given:
            group = op.comm.group.name
            self._lands[place] = max(self._now, self._free.get(group, 0.0)) + self._priced.comm_us[place]
            self._free[group] = self._lands[place]
        self._done[place] = True
        while self._first < len(self._done) and self._done[self._first]:
            self._first += 1
        for other in self._after[place]:
            self._missing[other] -= 1
            if self._missing[other] == 0:
                self._offer(other)


def _without_compute(program: Program, before: Sequence[Sequence[int]]) -> set[int]:
    """The starts that need nothing but what is given and ops that prepare it: views and copies."""
    given: set[int] = set()
    for place, op in enumerate(program.ops):
        free = op.is_start or op.is_input or op.target == "get_attr" or op.traits.is_view or op.traits.copies
        if free and all(other in given for other in before[place]):
            given.add(place)
    return {place for place in given if program.ops[place].is_start}
