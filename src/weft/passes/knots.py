"""A *knot*: a collective that can be cut, with its neighbourhood.

That is the matmuls that make what it sends, the matmuls that use what it brings, and the ops between, which work row by
row.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.axes import Axis, Rows, rows_of
from weft.analysis.kernels import ELEMENTWISE, only_moves
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages, uses
from weft.analysis.users import users
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.passes.region import ANEW
from weft.passes.results import not_just_waited, returned

Axes = Mapping[str, Axis]

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_ENOUGH = 8  # rows: so many chunks are tried
_FAR = 16  # ops between a matmul and what is sent: more is no neighbourhood


@dataclass(frozen=True)
class Knot:
    """A collective, `start` with its waits, that can be cut into parts of `size` rows.

    - `own`: where the rows are in its results; `sent`: in what it is given
    - `head`: the ops that make what is sent, from matmuls on; `tail`: those that use the result, up to matmuls
    """

    start: Op
    size: int
    sent: Axis
    own: Axes
    head: Axes
    tail: Axes

    @property
    def is_alone(self) -> bool:
        return not self.head and not self.tail


def refusal(program: Program, start: Op) -> str | None:
    """Why a collective cannot be cut whatever is around it; None if it can."""
    comm = start.comm
    assert comm is not None, "a start communicates"
    if comm.kind not in KINDS or start.target != f"{comm.kind}.start" or not isinstance(start.args[0], Ref):
        return "it is of a kind or in a form that is not cut"
    if comm.group.size < 2:
        return "it is a group of one"
    if len(pairs(program).waits[start.name]) > 1 and is_written(program, start):
        return "it is waited for more than once, and its result is written to in place"
    if (why := not_just_waited(program, start)) is not None:
        return why
    specs = [program[start.args[0].name].out[0], *start.out]
    if not all(isinstance(size, int) for spec in specs for size in spec.shape):
        return "its sizes are dynamic, and so would be those of the chunks"
    return None


def is_written(program: Program, start: Op) -> bool:
    """Whether somebody writes to the memory of a collective's result."""
    known, using = storages(program), uses(program)
    own = known.of_value(start.name)
    using_it = (program.ops[place] for storage in own for place in using[storage])
    return any(not own.isdisjoint(known.of_args(op.argument(key) for key in op.traits.mutates)) for op in using_it)


def knot(program: Program, start: Op, size: int | None = None, sent: Axis | None = None) -> Knot | str:
    """A collective with its neighbourhood, cut where most is multiplied, or as it is said. A reason if there is no such
    place."""
    places = _places(program, start) if size is None or sent is None else [(size, sent)]
    found = [_knot(program, start, rows, where) for rows, where in places]
    known = [one for one in found if one is not None]
    if not known:
        return "there is nothing to cut it along"
    best = max(known, key=lambda one: _products(program, one))
    if best.is_alone:
        return _why_alone(program, start)
    return best


def _places(program: Program, start: Op) -> Iterator[tuple[int, Axis]]:
    """Along which rows a collective can be cut: how many there are, and where they are in what is sent. These are the
    rows of a rank's own part."""
    assert start.comm is not None, "a start communicates"
    sent, made = program[start.given[0]].out[0], start.out[0]
    part = made if start.comm.kind == "reduce_scatter" else sent
    for dim, size in enumerate(part.shape):
        if not isinstance(size, int) or size < 2 or (dim == 0 and start.comm.kind == "all_to_all"):
            continue
        outer = start.comm.group.size if dim == 0 and start.comm.kind == "reduce_scatter" else 1
        yield size, Axis(dim, outer)


def _knot(program: Program, start: Op, size: int, sent: Axis) -> Knot | None:
    rows, name = rows_of(program, size), start.given[0]
    own = with_waits(program, rows, start, name, sent)
    if own is None:
        return None
    tail = _following(program, rows, {wait: own[wait] for wait in pairs(program).waits[start.name]})
    return Knot(start, size, sent, own, _leading(program, rows, name, sent), tail)


def with_waits(program: Program, rows: Rows, start: Op, name: str, sent: Axis) -> Axes | None:
    """A start and its waits, with where the rows are in their results; None if it mixes them."""
    made = rows.result(start, name, sent)
    if made is None:
        return None
    return {start.name: made, **dict.fromkeys(pairs(program).waits[start.name], made)}


def _leading(program: Program, rows: Rows, name: str, sent: Axis) -> Axes:
    """The ops that make a value from matmuls on, through what only moves or combines elements; none if there is no
    matmul near by."""
    found = {name: sent}
    products: list[str] = []
    todo = [(name, 0)]
    while todo:
        name, far = todo.pop()
        op = program[name]
        if op.is_start or op.is_wait or op.is_input or far > _FAR or op.traits.mutates:
            continue
        given = rows.given(op, found[name])
        if given is None:
            continue
        if op.traits.matmul:
            products.append(name)
        elif only_moves(op) or op.target in ELEMENTWISE:
            todo += [(other, far + 1) for other in given if other not in found]
            found.update({other: axis for other, axis in given.items() if other not in found})
    head = _behind(program, rows, products, found)
    return head if writes_its_own(program, head) else {}


def _behind(program: Program, rows: Rows, products: Sequence[str], found: Axes) -> Axes:
    """Of ops with their axes, these and all that are made from them."""
    kept: dict[str, Axis] = {}
    for name in sorted(found, key=program.index.__getitem__):
        given = rows.given(program[name], found[name]) or {}
        if name in products or any(other in kept and kept[other] == axis for other, axis in given.items()):
            kept[name] = found[name]
    return kept


def _following(program: Program, rows: Rows, waits: Axes) -> Axes:
    """The matmuls that use what was waited for, and what works row by row on the way there."""
    found, index = dict(waits), program.index
    todo = sorted({(index[op.name], 0) for name in waits for op in users(program)[name]})
    products: list[str] = []
    while todo:
        place, far = heapq.heappop(todo)
        op = program.ops[place]
        if op.name in found or far > _FAR or op.is_start or op.is_wait:
            continue
        name = next(name for name in op.given if name in found)
        made = rows.result(op, name, found[name])
        if made is None or any(found.get(one, axis) != axis for one, axis in (rows.given(op, made) or {}).items()):
            continue
        found[op.name] = made
        if op.traits.matmul:
            products.append(op.name)
        else:
            for user in users(program)[op.name]:
                heapq.heappush(todo, (index[user.name], far + 1))
    kept = set[str]().union(*(towards(program, name, found) for name in products))
    tail = {name: axis for name, axis in found.items() if name in kept and name not in waits}
    return tail if writes_its_own(program, {**waits, **tail}) else {}


def _products(program: Program, one: Knot) -> tuple[int, bool, int]:
    """How much is multiplied around a knot while chunks of it are under way: the bytes of the matmuls' results; of
    equals, the first dimension that has rows enough."""
    until = _needed_whole(program, one)
    names = {*one.head, *(name for name in one.tail if program.index[name] < until)}
    products = (program[name] for name in names if program[name].traits.matmul)
    return sum(op.out[0].nbytes for op in products), one.size >= _ENOUGH, -one.sent.dim


def _needed_whole(program: Program, one: Knot) -> int:
    """The position of the first op that needs all of the result: what comes later, as the gradients of weights do, has
    nothing to wait for."""
    index, first = program.index, len(program)
    todo, seen = list(pairs(program).waits[one.start.name]), set[str]()
    while todo:
        for op in users(program)[todo.pop()]:
            if op.name in seen or (op.name in one.tail and op.traits.matmul):
                continue
            seen.add(op.name)
            if op.name in one.tail or only_moves(op):
                todo.append(op.name)
            else:
                first = min(first, index[op.name])
    return first


def _why_alone(program: Program, start: Op) -> str:
    """Why no matmul around a collective can be cut with it."""
    todo, seen = [start.name], set[str]()
    while todo:
        for op in users(program)[todo.pop()]:
            if op.traits.matmul:
                return f"the rows of what it brings are what %{op.name} sums over, so it needs them all"
            if op.name not in seen and (only_moves(op) or op.is_wait) and not op.is_start:
                seen.add(op.name)
                todo.append(op.name)
    return "no matmul that could be cut with it makes what it sends or uses what it brings"


def towards(program: Program, name: str, flow: Axes) -> dict[str, Axis]:
    """Of the ops that rows get to, those that a value is made from."""
    found: dict[str, Axis] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one not in found:
            found[one] = flow[one]
            todo += [name for name in program[one].given if name in flow]
    return found


def writes_its_own(program: Program, axes: Axes) -> bool:
    """Whether what is written to is made in here, seen by nobody else as it was before, and later seen only through the
    op that writes."""
    for op in map(program.__getitem__, axes):
        if not op.traits.mutates:
            continue
        name, dtypes = op.given[0], {spec.dtype for other in op.given for spec in program[other].out}
        seen = [user for user in users(program)[name] if user.name not in axes]
        own = name in axes and not program[name].traits.is_view and not _seen_later(program, op, name)
        if op.target not in ANEW or len(dtypes) > 1 or seen or not own:
            return False
    return True


def _seen_later(program: Program, op: Op, name: str) -> bool:
    """Whether what an op writes to is later used, or returned, by the name of a value that was there before."""
    known, index = storages(program), program.index
    own, place = known.of_value(name), index[op.name]
    later = {name for one in own for at in uses(program)[one] if at > place for name in program.ops[at].given}
    later |= returned(program)
    return any(index[one] < place and not own.isdisjoint(known.of_value(one)) for one in later)
