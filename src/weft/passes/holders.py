"""Who uses a value, which values have the same elements, and what was cut from what: asked around collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.pairs import pairs
from weft.analysis.storages import storages
from weft.analysis.terms import terms
from weft.analysis.users import users
from weft.ir.args import Ref, refs
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.passes.factors import tensor
from weft.passes.results import not_just_waited, returned

SPLITS = ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default")
CAT = "aten.cat.default"


@dataclass(frozen=True)
class Uses:
    """Of a Program: who uses each value, what is returned, and the term of each value."""

    users: Mapping[str, Sequence[Op]]
    returned: frozenset[str]
    term: Mapping[str, int]


def uses(program: Program) -> Uses:
    """Who uses what in a Program."""
    return program.fact(_uses)


def _uses(program: Program) -> Uses:
    return Uses(users(program), returned(program), terms(program).of)


def holders(program: Program, name: str) -> tuple[str, ...]:
    """A value and all that is made of it by views, copies, waits and slices that cut nothing away, in order."""
    known = uses(program)
    found, todo = {name}, [name]
    while todo:
        for user in known.users[todo.pop()]:
            if user.name not in found and known.term.get(user.name, -1) == known.term[name]:
                found.add(user.name)
                todo.append(user.name)
    return tuple(sorted(found, key=program.index.__getitem__))


def others(program: Program, values: Sequence[str]) -> Iterator[Op]:
    """The users of these values that are none of them."""
    for name in values:
        yield from (user for user in uses(program).users[name] if user.name not in values)


def maker(program: Program, name: str, way: list[str]) -> Op:
    """The op that makes the elements of a value; the values between, which only move them, are added to `way`."""
    term = uses(program).term
    op = program[name]
    while op.args and isinstance(before := op.args[0], Ref) and term.get(before.name) == term.get(op.name, -1):
        way.append(op.name)
        op = program[before.name]
    return op


def unfit(program: Program, start: Op) -> str | None:
    """Why a collective cannot be inside anything, whatever stands next to it; None if it may be."""
    comm = start.comm
    if comm is None or comm.kind not in ("all_gather", "reduce_scatter"):
        return f"{comm.kind if comm else start.target} is neither an all-gather nor a reduce-scatter"
    if start.target != f"{comm.kind}.start" or start.kwargs:
        return f"{start.target} writes to memory that is given to it"
    if not start.args or not isinstance(start.args[0], Ref) or not isinstance(start.out[0], TensorSpec):
        return "it is several collectives"
    if comm.group.size < 2:
        return "its group has one rank"
    if comm.kind == "reduce_scatter" and comm.reduce_op not in ("sum", "avg"):
        return f"a fused op reduces by sum or avg, not by {comm.reduce_op}"
    if (why := not_just_waited(program, start)) is not None:
        return why
    if len(pairs(program).waits[start.name]) > 1:
        return "it is waited for more than once"
    if not all(isinstance(size, int) for size in start.out[0].shape):
        return "its sizes are symbols"
    writer = next(writers(program, (start.name,), 0, len(program)), None)
    return f"%{writer.name} writes to its result" if writer is not None else None


def writers(program: Program, values: Sequence[str], first: int, last: int) -> Iterator[Op]:
    """The ops from one position to before another that write to the memory of any of these values."""
    places = storages(program).of_values(values)
    for position, written in program.fact(_writes):
        if first <= position < last and not places.isdisjoint(written):
            yield program.ops[position]


def _writes(program: Program) -> list[tuple[int, frozenset[int]]]:
    """The positions of the ops that write, and the storages that they write to."""
    known = storages(program)
    return [
        (position, known.of_args(op.argument(key) for key in op.traits.mutates))
        for position, op in enumerate(program.ops)
        if op.traits.mutates
    ]


@dataclass(frozen=True)
class Cut:
    """What a concatenation joins: all equal parts of the value `base` along `dim`, in order."""

    base: str
    dim: int
    parts: int


def cut_of(program: Program, cat: Op) -> Cut | None:
    """What a concatenation joins, if it is that."""
    listed = cat.args[0]
    if not isinstance(listed, tuple) or not all(isinstance(item, Ref) for item in listed):
        return None
    found = [_piece(program, program[ref.name]) for ref in refs(listed)]
    pieces = [piece for piece in found if piece is not None]
    if not pieces or len(pieces) != len(found):
        return None
    base, dim, size, _ = pieces[0]
    whole = tensor(program, base).shape[dim]
    expected = [(base, dim, size, number * size) for number in range(len(pieces))]
    return Cut(base, dim, len(pieces)) if pieces == expected and whole == size * len(pieces) else None


def _piece(program: Program, op: Op) -> tuple[str, int, int, int] | None:
    """Of an op that takes a part of a value along a dimension: the value, the dimension, the size, where it begins."""
    match op.target, op.args:
        case "getitem", (Ref(name), int(number)) if program[name].target in SPLITS:
            split = program[name]
            dim = split.argument(2) or split.argument("dim") or 0
            if isinstance(split.args[0], Ref) and isinstance(dim, int):
                sizes = [spec.shape[dim] for spec in split.out if isinstance(spec, TensorSpec)]
                return _counted(split.args[0].name, dim % len(tensor(program, op.name).shape), sizes[: number + 1])
        case "aten.slice.Tensor", (Ref(name), int(dim), int(begin), *_):
            size = tensor(program, op.name).shape[dim]
            if begin >= 0 and isinstance(size, int):
                return name, dim % len(tensor(program, name).shape), size, begin
    return None


def _counted(base: str, dim: int, sizes: Sequence[object]) -> tuple[str, int, int, int] | None:
    known = [size for size in sizes if isinstance(size, int)]
    return (base, dim, known[-1], sum(known[:-1])) if known and len(known) == len(sizes) else None
