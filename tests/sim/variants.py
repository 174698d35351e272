"""Programs made from others in the ways that a lower bound has to allow for: collectives merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from weft.ir import Op, Program, Ref
from weft.ir.args import refs, rename
from weft.ir.targets import traits_of


def merges(program: Program) -> Iterator[Program]:
    """Each program in which two collectives of one kind and group are one coalesced collective, where that is legal.

    The program must not write in place: the order is found by data alone.
    """
    plain = [op for op in program.starts if op.args and isinstance(op.args[0], Ref)]
    for one, other in combinations(plain, 2):
        if one.comm == other.comm and one.target == other.target and one.args[1:] == other.args[1:]:
            merged = _sorted(_merged(program, one, other), program)
            if merged is not None:
                yield merged


def _merged(program: Program, one: Op, other: Op) -> list[Op]:
    bucket = replace(one, name="bucket", args=((one.args[0], other.args[0]), *one.args[1:]), out=(*one.out, *other.out))
    parts = {
        member.name: Op(f"part_{index}", "getitem", (Ref("bucket"), index), {}, member.out, traits_of("getitem"))
        for index, member in enumerate((one, other))
    }
    found = []
    for op in program.ops:
        if op.name == one.name:
            found += [bucket, *parts.values()]
        elif op.name != other.name:
            found.append(_renamed(op, {name: part.name for name, part in parts.items()}))
    return found


def _renamed(op: Op, names: dict[str, str]) -> Op:
    kwargs = {key: rename(arg, names) for key, arg in op.kwargs.items()}
    return replace(op, args=tuple(rename(arg, names) for arg in op.args), kwargs=kwargs)


def _sorted(ops: list[Op], program: Program) -> Program | None:
    """The ops with everything before its users, or None if that is impossible: one member needs the other."""
    left, done, order = list(ops), set[str](), list[Op]()
    while left:
        ready = [op for op in left if all(ref.name in done for ref in op.refs())]
        if not ready:
            return None
        order.append(ready[0])
        done.add(ready[0].name)
        left.remove(ready[0])
    outputs = [ref.name for output in program.outputs for ref in refs(output)]
    return Program(tuple(order), tuple(Ref(name) for name in outputs if name in done))
