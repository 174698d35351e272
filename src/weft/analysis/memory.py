"""How much device memory a Program needs at each op, and what lies there at the worst moment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from weft.analysis.pairs import pairs
from weft.analysis.reordering import reordering
from weft.analysis.storages import storages, uses
from weft.ir.args import refs
from weft.ir.program import Program


@dataclass(frozen=True)
class Memory:
    """Memory by storage: a view holds its base, an in-place result its input, a collective what it sends.

    - `bytes_at`: for each position, the bytes that live while that op runs
    - `births`, `deaths`: for each storage, the first and the last position at which it lives
    """

    bytes_at: tuple[int, ...]
    births: tuple[int, ...]
    deaths: tuple[int, ...]
    program: Program

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes_at, default=0)

    def live_at(self, position: int) -> list[tuple[str, int]]:
        """What lives while the op at `position` runs: (the op that made it, bytes), largest first."""
        known = storages(self.program)
        found = [
            (self.program.ops[known.maker[storage]].name, known.nbytes[storage])
            for storage, (birth, death) in enumerate(zip(self.births, self.deaths, strict=True))
            if birth <= position <= death and known.nbytes[storage]
        ]
        return sorted(found, key=lambda entry: -entry[1])


def memory(program: Program) -> Memory:
    """The memory of a Program in its present order.

    Inputs live throughout, unless they are donated (`input(donated=True)`): those die after their last use, like
    everything else that is not an output.
    """
    return program.fact(_memory)


def _memory(program: Program) -> Memory:
    known = storages(program)
    given = {program.index[op.name] for op in (*program.inputs, *program.attributes)}
    births = [0 if maker in given else maker for maker in known.maker]
    deaths = [
        max(positions) if positions else maker for positions, maker in zip(uses(program), known.maker, strict=True)
    ]
    end = len(program) - 1
    for start, waits in pairs(program).waits.items():
        # What a collective sends and receives is its own until it has been waited for.
        until = program.index[waits[-1]] if waits else end
        for storage in known.of_args((*program[start].args, *program[start].kwargs.values())):
            deaths[storage] = max(deaths[storage], until)
        if not waits:
            for storage in known.of_value(start):
                deaths[storage] = end
    for storage in kept(program):
        deaths[storage] = end
    change = [0] * (len(program) + 1)
    for size, birth, death in zip(known.nbytes, births, deaths, strict=True):
        change[birth] += size
        change[death + 1] -= size
    return Memory(tuple(accumulate(change[:-1])), tuple(births), tuple(deaths), program)


def kept(program: Program) -> frozenset[int]:
    """The storages that outlive the step: outputs, and inputs that were not given away."""
    return program.fact(_kept)


def _kept(program: Program) -> frozenset[int]:
    if (how := reordering(program)) is not None:
        return kept(how.original)
    names = {ref.name for output in program.outputs for ref in refs(output)}
    names |= {op.name for op in program.inputs if not op.kwargs.get("donated")}
    names |= {op.name for op in program.attributes}
    known = storages(program)
    return frozenset(storage for name in names for storage in known.of_value(name))
