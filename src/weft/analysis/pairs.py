"""Which wait belongs to which start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.analysis.reordering import reordering
from weft.ir.args import Ref, refs
from weft.ir.program import Op, Program


@dataclass(frozen=True)
class Pairs:
    """`waits` of each start in program order (none if nobody waits), and the `start` of each wait.

    A wait of something that no start made is in `strays`. A coalesced start has one wait for each of its results.
    """

    waits: Mapping[str, tuple[str, ...]]
    start: Mapping[str, str]
    strays: tuple[str, ...]

    def reordered(self, program: Program) -> Pairs:
        """The pairs of the reordered Program: the same ones, in its order."""
        place = program.index.__getitem__
        waits = {name: tuple(sorted(self.waits[name], key=place)) for name in sorted(self.waits, key=place)}
        start = {name: self.start[name] for name in sorted(self.start, key=place)}
        return Pairs(waits, start, tuple(sorted(self.strays, key=place)))


def pairs(program: Program) -> Pairs:
    """The starts and waits of a Program, matched through the views and `getitem`s between them."""
    return program.fact(_pairs)


def _pairs(program: Program) -> Pairs:
    if (how := reordering(program)) is not None:
        return pairs(how.original).reordered(program)
    start_of: dict[str, str] = {}  # for every value that is a start's unwaited result, or a view of one
    waits: dict[str, list[str]] = {}
    start: dict[str, str] = {}
    strays: list[str] = []
    others = start_of.keys().isdisjoint
    for op in program.ops:
        if op.comm is None and (not op.traits.views or (others(op.given) and not op.is_wait)):
            continue  # most ops have no part in this
        if op.comm is not None:
            start_of[op.name] = op.name
            waits[op.name] = []
        elif op.is_wait:
            source = _started(op, start_of)
            if source is None:
                strays.append(op.name)
            else:
                start[op.name] = source
                waits[source].append(op.name)
        elif op.traits.is_view and (source := _started(op, start_of)) is not None:
            start_of[op.name] = source
    return Pairs({name: tuple(found) for name, found in waits.items()}, start, tuple(strays))


def _started(op: Op, start_of: Mapping[str, str]) -> str | None:
    """The start whose result an op looks at."""
    for key in op.traits.views:
        arg = op.argument(key)
        for ref in refs(arg) if not isinstance(arg, Ref) else (arg,):
            if ref.name in start_of:
                return start_of[ref.name]
    return None
