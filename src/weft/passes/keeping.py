"""What a schedule must keep to, checked on the finished order: limits, and what was told to stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from weft.analysis.pairs import pairs
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import companions, windows
from weft.ir.program import Program
from weft.passes.fitting_in import Limits
from weft.sim.contract import contract
from weft.sim.timeline import Timeline


@dataclass(frozen=True)
class Keeping:
    """- `original`: the program as it was
    - `pinned`: starts that stay where they are among the ops that are no collectives and do not belong to one; so do
      their waits
    - `most`: how many compute kernels a gather may be launched ahead of its use
    """

    original: Program
    limits: Limits
    pinned: Collection[str] = ()
    most: int | None = None

    def allows(self, timeline: Timeline) -> bool:
        """Whether the program in another order is within the limits, and all that has to stay has stayed."""
        limits, program = self.limits, timeline.program
        if limits.memory is not None and timeline.peak_bytes > limits.memory:
            return False
        if limits.in_flight is not None and not _few_in_flight(program, limits.in_flight):
            return False
        if limits.keep_order and list(_chains(program)) != list(_chains(self.original)):
            return False
        return self._stayed(program) and (self.most is None or not self._too_early(timeline, self.most))

    def order(self) -> Iterator[tuple[int, int]]:
        """Pairs of positions of the original that have to stay in this order, besides all dependencies."""
        if self.limits.keep_order:
            for _, starts in _chains(self.original):
                yield from pairwise(self.original.index[start] for start in starts)
        staying = [self.original.index[name] for name in self._others]
        for pinned in self._pinned_places():
            yield from ((min(pinned, other), max(pinned, other)) for other in staying)

    @property
    def _others(self) -> list[str]:
        """The ops that are no collectives and do not belong to one."""
        moving, ops = companions(self.original), self.original.ops
        return [op.name for place, op in enumerate(ops) if place not in moving and not op.is_start and not op.is_wait]

    def _pinned_places(self) -> list[int]:
        """The positions of what is pinned."""
        waits, index = pairs(self.original).waits, self.original.index
        return sorted(index[name] for start in self.pinned for name in (start, *waits[start]))

    def _stayed(self, program: Program) -> bool:
        places = self._pinned_places()
        others = self._others if places else ()
        was, now = self.original.index, program.index
        names = [self.original.ops[place].name for place in places]
        return all((was[name] < was[other]) == (now[name] < now[other]) for name in names for other in others)

    def _too_early(self, timeline: Timeline, most: int) -> bool:
        """Whether a gather that could be launched later is too far ahead of its use."""
        program, priced = timeline.program, timeline.prices
        moving, known = companions(program), windows(program)
        busy = (int(us > 0 and place not in moving) for place, us in enumerate(priced.us))
        kernels = [0, *accumulate(busy)]
        for piece in contract(program, priced, self.pinned).pieces:
            if piece.grows and piece.name in known and piece.name not in self.pinned:
                here, one = kernels[known[piece.name].position], known[piece.name]
                if kernels[one.used] - here > most and kernels[one.due] > here:
                    return True
        return False


def _chains(program: Program) -> Iterator[tuple[str, list[str]]]:
    """The starts of each group, in their order."""
    found: dict[str, list[str]] = {}
    for op in program.communicating:
        assert op.collective is not None, "it communicates"
        found.setdefault(op.collective.group.name, []).append(op.name)
    yield from sorted(found.items())


def _few_in_flight(program: Program, most: int) -> bool:
    """Whether there are never more bytes in flight, but for one collective alone."""
    landed = {waits[0]: start for start, waits in pairs(program).waits.items() if waits}
    flying: dict[str, int] = {}
    for op in program.ops:
        if op.is_start:
            flying[op.name] = total_bytes(op)
            if len(flying) > 1 and sum(flying.values()) > most:
                return False
        flying.pop(landed.get(op.name, ""), None)
    return True
