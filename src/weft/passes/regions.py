"""Where a step can be cut into chunks: knots, and chains of those.

Where all that lies between one knot and the next works row by row, the two may be cut as one, so that a chunk goes
through both before the others are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.analysis.axes import Axis, Rows, rows_of
from weft.ir.program import Op, Program
from weft.passes.knots import Axes, Knot, knot, refusal, towards, with_waits, writes_its_own
from weft.passes.region import Region


@dataclass(frozen=True)
class Chain:
    """Knots one after the other, and for each but the last the ops between it and the next."""

    program: Program = field(repr=False)
    knots: tuple[Knot, ...]
    links: tuple[Axes, ...]

    def axes(self, first: int, last: int) -> Axes:
        """The ops of the knots from number `first` up to `last`, without it, and of all between them."""
        found: dict[str, Axis] = dict(self.knots[first].head)
        for number in range(first, last):
            found.update(self.knots[number].own)
            found.update(self.knots[number].tail)
            if number + 1 < last:
                found.update(self.links[number])
        if first and not self.knots[first].head.keys().isdisjoint(self.knots[first - 1].tail):
            found = {name: axis for name, axis in found.items() if name not in self.knots[first - 1].tail}
        return {name: found[name] for name in sorted(found, key=self.program.index.__getitem__)}

    @property
    def names(self) -> Axes:
        """The ops of all that it may be divided into, as keys: also those that are cut only if it begins with the knot
        that they lead to."""
        found: dict[str, Axis] = {**self.axes(0, len(self.knots))}
        for one in self.knots:
            found.update(one.head)
        return {name: found[name] for name in sorted(found, key=self.program.index.__getitem__)}

    def region(self, first: int, last: int, chunks: int) -> Region:
        return Region(self.program, self.knots[first].size, self.axes(first, last), chunks)


def chains(program: Program, starts: Sequence[Op]) -> tuple[list[Chain], dict[str, str]]:
    """The collectives in chains, in program order, and why the others are in none."""
    found: list[Chain] = []
    refused: dict[str, str] = {}
    knots: list[Knot] = []
    links: list[Axes] = []
    for start in starts:
        why = refusal(program, start)
        linked = _linked(program, knots[-1], start) if knots and why is None else None
        one = linked[0] if linked is not None else (why or knot(program, start))
        if linked is None and knots:
            found.append(Chain(program, tuple(knots), tuple(links)))
            knots, links = [], []
        if isinstance(one, str):
            refused[start.name] = one
        elif linked is not None:
            knots, links = [*knots, one], [*links, linked[1]]
        else:
            knots = [one]
    if knots:
        found.append(Chain(program, tuple(knots), tuple(links)))
    return found, refused


def _linked(program: Program, before: Knot, start: Op) -> tuple[Knot, Axes] | None:
    """The next knot in the rows of the one before, and the ops between; None if there is no way in those rows."""
    rows = rows_of(program, before.size)
    sent = start.given[0]
    flow = _flow(program, rows, before, program.index[start.name])
    if sent not in flow:
        return None
    between = towards(program, sent, flow)
    if not writes_its_own(program, {**before.own, **between}):
        return None
    found = knot(program, start, before.size, flow[sent])
    if isinstance(found, str):
        own = with_waits(program, rows, start, sent, flow[sent])
        if own is None:
            return None
        found = Knot(start, before.size, flow[sent], own, {}, {})
    return found, {name: axis for name, axis in between.items() if name not in before.own}


def _flow(program: Program, rows: Rows, before: Knot, until: int) -> dict[str, Axis]:
    """Where the rows of a knot get to before the op at `until`, in whatever can be cut along them."""
    found = dict(before.own)
    for op in program.ops[program.index[before.start.name] + 1 : until]:
        if op.is_start or op.name in found:
            continue
        name = next((name for name in op.given if name in found), None)
        made = rows.result(op, name, found[name]) if name is not None else None
        if made is None:
            continue
        given = rows.given(op, made) or {}
        if all(given.get(name) == found[name] for name in op.given if name in found):
            found[op.name] = made
    return found


def region_of(program: Program, names: Sequence[str], start: str, size: int, at: Axis, chunks: int) -> Region | None:
    """The region of these ops, cut along so many rows, which are in that dimension of what the collective `start` is
    given. None if those rows do not get to all of them, or cannot be cut into so many chunks."""
    if start not in names or not program[start].refs() or size % chunks:
        return None
    rows, sent = rows_of(program, size), program[start].given[0]
    shape = program[sent].out[0].shape
    whole = shape[at.dim] if 0 <= at.dim < len(shape) else None
    if not isinstance(whole, int) or whole % (size * at.inner):
        return None
    known: dict[str, Axis] = {sent: replace(at, outer=whole // (size * at.inner))}
    inside = set(names)
    while True:
        before = len(known)
        for op in (op for op in program.ops if op.name in inside):
            for ref in op.refs():
                if ref.name in known and op.name not in known and (made := rows.result(op, ref.name, known[ref.name])):
                    known[op.name] = made
        for op in reversed([op for op in program.ops if op.name in inside and op.name in known]):
            given = rows.given(op, known[op.name]) or {}
            known.update({name: axis for name, axis in given.items() if name in inside and name not in known})
        if len(known) == before:
            break
    axes = {op.name: known[op.name] for op in program.ops if op.name in inside and op.name in known}
    return Region(program, size, axes, chunks) if len(axes) == len(inside) and _agrees(rows, axes) else None


def _agrees(rows: Rows, axes: Axes) -> bool:
    """Whether every op takes what the others make."""
    for name in axes:
        given = rows.given(rows.program[name], axes[name])
        if given is None or any(other in axes and axes[other] != axis for other, axis in given.items()):
            return False
    return writes_its_own(rows.program, axes)
