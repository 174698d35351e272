"""Which matmuls multiply what an all-gather gathers, and what has to be moved so that they can do it themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weft.analysis.dependencies import dependencies
from weft.analysis.pairs import pairs
from weft.ir.args import Ref
from weft.ir.program import Group, Op, Program
from weft.ir.specs import TensorSpec
from weft.passes.factors import Matmul, matmul_of, rows_and_depth, scaled_like, tensor
from weft.passes.holders import CAT, SPLITS, cut_of, holders, others, uses


@dataclass(frozen=True)
class Gathering:
    """An all-gather and the matmuls of what it gathers.

    - `sent`: the value that is gathered; `left`: how the fused op sees it, and `dim` the dimension along which
    - `whole`: the value that holds what is gathered; `whole_used`: whether anybody but the matmuls uses it
    - `hoisted`: what the matmuls need that is made behind the wait, in order
    - `dropped`: what nobody needs any more, besides the matmuls
    """

    start: str
    wait: str
    sent: str
    left: TensorSpec
    dim: int
    matmuls: tuple[Matmul, ...]
    whole: str
    whole_used: bool = True
    hoisted: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def gathering(program: Program, start: str) -> Gathering | str:
    """The all-gather that `start` begins, with the matmuls of what it gathers; or why there are none."""
    op = program[start]
    (wait,), sent = pairs(program).waits[start], op.args[0]
    assert isinstance(sent, Ref)
    found = _in_rows(program, op, wait) or _joined(program, op)
    if isinstance(found, str):
        return found
    left, dim, whole, matmuls = found
    ranks = _group(op).size
    first = scaled_like(program, matmuls[0], (*left[:dim], left[dim] * ranks, *left[dim + 1 :]))
    if isinstance(first, str):
        return first
    alike = [one for one in matmuls[1:] if one.scale == first.scale]
    spec = TensorSpec(left, tensor(program, sent.name).dtype)
    return _settled(program, Gathering(start, wait, sent.name, spec, dim, (first, *alike), whole))


_Found = tuple[tuple[int, ...], int, str, list[Matmul]]  # the shape of a shard, the dimension, the whole, its matmuls


def _in_rows(program: Program, start: Op, wait: str) -> _Found | str | None:
    """Matmuls of what arrives as it is: a shard is some of the rows. None if there are no such matmuls."""
    matmuls = _multiplied(program, holders(program, start.name))
    if not matmuls:
        return None
    size, ranks = rows_and_depth(program, matmuls[0]), _group(start).size
    if size is None:
        return "its sizes are symbols"
    rows, depth = size
    if rows % ranks:
        return f"the {rows} rows of %{matmuls[0].left} do not come from {ranks} ranks, so many from each"
    alike = [one for one in matmuls if rows_and_depth(program, one) == size]
    return (rows // ranks, depth), 0, wait, alike


def _joined(program: Program, start: Op) -> _Found | str:
    """Matmuls of what arrives once it has been joined along another dimension than the first."""
    arrived, ranks = holders(program, start.name), _group(start).size
    for cat in _cats(program, arrived):
        cut, along = cut_of(program, cat), cat.argument(1, "dim")
        if cut is None or cut.base not in arrived or (cut.dim, cut.parts) != (0, ranks) or not isinstance(along, int):
            continue
        first, *rest = (size for size in tensor(program, cut.base).shape if isinstance(size, int))
        left = (first // ranks, *rest)
        dim, held = along % len(left), holders(program, cat.name)
        matmuls = _multiplied(program, held)
        sizes = [rows_and_depth(program, one) for one in matmuls]
        fitting = [one for one, size in zip(matmuls, sizes, strict=True) if size is not None and size[1] == left[-1]]
        if not fitting:
            return _why_none(program, held)
        if dim == len(left) - 1:
            return f"%{fitting[0].name} contracts the dimension that is gathered"
        other = next((user for user in others(program, arrived) if not _leads_to(program, user, cat)), None)
        if other is not None:
            return f"%{other.name} uses what arrives, not joined along dimension {dim}"
        return left, dim, cat.name, fitting
    return _why_none(program, arrived)


def _cats(program: Program, values: Sequence[str]) -> Iterator[Op]:
    """The concatenations of parts of these values."""
    users = uses(program).users
    for user in others(program, values):
        parts = users[user.name] if user.target in SPLITS else (user,)
        yield from (cat for part in parts[:1] for cat in users[part.name] if cat.target == CAT)


def _leads_to(program: Program, op: Op, cat: Op) -> bool:
    """Whether an op takes parts that are used by nothing else than the concatenation."""
    users = uses(program).users
    parts = users[op.name] if op.target in SPLITS else (op,)
    return all(user.name == cat.name for part in parts for user in users[part.name])


def _multiplied(program: Program, values: Sequence[str]) -> list[Matmul]:
    """The matmuls whose left factor is one of these values and whose right one is none, in order."""
    found = {}
    for name in values:
        for user in uses(program).users[name]:
            matmul = matmul_of(user)
            if isinstance(matmul, Matmul) and matmul.left == name and matmul.right not in values:
                found[user.name] = matmul
    return [found[name] for name in sorted(found, key=program.index.__getitem__)]


def _why_none(program: Program, values: Sequence[str]) -> str:
    """Why no matmul has one of these values as its left factor: the nearest that there is to one, or that none is."""
    for user in others(program, values):
        for op in (user, *(uses(program).users[user.name] if user.traits.is_view else ())):
            matmul = matmul_of(op)
            if isinstance(matmul, str):
                return matmul
            if matmul is not None:
                return f"%{op.name} contracts the dimension that is gathered"
    return "no matmul multiplies what it gathers"


# Where it goes, and what is left


def _settled(program: Program, found: Gathering) -> Gathering | str:
    """The same with those matmuls that can be where the wait is, what has to go there first, and what is left over."""
    own = _own(program, found)
    matmuls: list[Matmul] = []
    hoisted: set[int] = set()
    reason = ""
    for matmul in found.matmuls:
        needed = _needed(program, matmul, found, own)
        why = needed if isinstance(needed, str) else _overtaken(program, hoisted | needed, program.index[found.wait])
        if isinstance(needed, str) or why is not None:
            reason = reason or f"%{matmul.name} cannot be where %{found.wait} is: {why}"
        else:
            matmuls.append(matmul)
            hoisted |= needed
    if not matmuls:
        return reason
    replaced = {one.name for one in matmuls}
    used = found.whole not in _left_over(program, own, replaced)
    gone = _left_over(program, own, replaced | {found.whole})
    gone -= {found.whole} if used else set()
    return replace(
        found,
        matmuls=tuple(matmuls),
        whole_used=used,
        hoisted=tuple(program.ops[place].name for place in sorted(hoisted)),
        dropped=tuple(sorted(gone, key=program.index.__getitem__)),
    )


def _own(program: Program, found: Gathering) -> frozenset[str]:
    """The values that hold what is gathered, as it arrives or joined, and what lies between."""
    own = {*holders(program, found.start), *holders(program, found.whole)}
    if found.whole != found.wait:
        parts = [ref.name for ref in program[found.whole].refs()]
        own |= {*parts, *(ref.name for part in parts for ref in program[part].refs())}
    return frozenset(own)


def _needed(program: Program, matmul: Matmul, gather: Gathering, own: frozenset[str]) -> set[int] | str:
    """The positions behind the wait of what a matmul needs besides what is gathered, or why they cannot be moved."""
    before, index = dependencies(program).before, program.index
    wait, group = index[gather.wait], _group(program[gather.start])
    found: set[int] = set()
    todo = [index[matmul.name]]
    while todo:
        place = todo.pop()
        op = program.ops[place]
        given = [ref.name for ref in op.refs() if op.name != matmul.name or ref.name != matmul.left]
        if any(name in own for name in given):
            return f"%{op.name} is given what is gathered, and the matmul needs it besides"
        if op.name != matmul.name:
            moves = op.comm is not None and op.comm.group != group and not op.traits.mutates
            if (op.has_effect and not moves) or op.traits.matmul:
                return f"it needs %{op.name} ({op.target}), which stays where it is"
            found.add(place)
        todo += [one for one in before[place] if one > wait and one not in found and program.ops[one].name not in own]
    return found


def _overtaken(program: Program, hoisted: set[int], wait: int) -> str | None:
    """Which collective would be overtaken by another one of its group if these ops went before the wait."""
    last = {_group(op): place for place in sorted(hoisted) if (op := program.ops[place]).is_start}
    for place in range(wait + 1, max(last.values(), default=wait)):
        op = program.ops[place]
        if op.is_start and place not in hoisted and place < last.get(_group(op), wait):
            return f"%{program.ops[last[_group(op)]].name} would overtake %{op.name}"
    return None


def _left_over(program: Program, own: frozenset[str], gone: set[str]) -> set[str]:
    """Of the values that hold what is gathered, those that are used by nothing but what goes, and by one another."""
    known, found = uses(program), set[str]()
    for name in sorted(own, key=program.index.__getitem__, reverse=True):
        if name not in known.returned and all(user.name in found or user.name in gone for user in known.users[name]):
            found.add(name)
    return found


def _group(op: Op) -> Group:
    assert op.comm is not None, "a start communicates"
    return op.comm.group
