"""Which ops might be cut into pieces together, so that the pieces overlap: a collective and its neighbours."""

from __future__ import annotations

from weft.analysis.dependencies import turned
from weft.analysis.kernels import only_moves
from weft.ir.program import Op, Program


def cuts(program: Program) -> list[frozenset[int]]:
    """For each op, the collectives (by position) with which it might be cut.

    A collective can be cut with the ops next to it, before and after, where only data is moved in between; an
    all-to-all also with all that works on its result and on given values alone, as experts do.
    """
    before, after = _data(program)
    given = _given(program, before)
    found: list[set[int]] = [set() for _ in program.ops]
    for position, op in enumerate(program.ops):
        if op.comm is None:
            continue
        found[position].add(position)
        members = {*_reached(position, after, program.ops), *_reached(position, before, program.ops)}
        if op.comm.kind == "all_to_all":
            members |= _fed(position, before, after, given, program.ops)
        for member in members:
            found[member].add(position)
    return [frozenset(one) for one in found]


def _data(program: Program) -> tuple[list[list[int]], list[list[int]]]:
    """For each op, those whose results it uses, and those that use its result."""
    before = [sorted({program.index[name] for name in op.given if name in program.index}) for op in program.ops]
    return before, turned(before)


def _given(program: Program, before: list[list[int]]) -> list[bool]:
    """Whether an op's result is there without computing: inputs, and what is only moved or communicated."""
    found: list[bool] = []
    for position, op in enumerate(program.ops):
        plain = op.target in ("input", "get_attr") or op.is_start or only_moves(op)
        found.append(plain and all(found[other] for other in before[position]))
    return found


def _reached(start: int, neighbours: list[list[int]], ops: tuple[Op, ...]) -> set[int]:
    """What is next to an op in one direction, and the ops that only move data on the way there."""
    found, todo = {start}, [start]
    while todo:
        place = todo.pop()
        if place != start and not only_moves(ops[place]):
            continue
        fresh = [other for other in neighbours[place] if other not in found and not ops[other].is_input]
        found.update(fresh)
        todo += fresh
    return found


def _fed(
    start: int, before: list[list[int]], after: list[list[int]], given: list[bool], ops: tuple[Op, ...]
) -> set[int]:
    """The ops that work on a collective's result and on given values alone, up to the next collective."""
    found: set[int] = {start}
    todo = sorted(after[start])
    while todo:
        place = todo.pop(0)
        if place in found or not all(other in found or given[other] for other in before[place]):
            continue
        found.add(place)
        if not ops[place].is_start:
            todo += after[place]
    return found
