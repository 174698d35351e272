"""The arguments of an op: references to values, and literals.

A Python tuple stands for a list, which is what nearly every sequence in a graph is; `Tuple` stands for a tuple.
Everything is immutable, so Programs can share arguments freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.ir.dims import Expr


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of the op called `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype as an argument: `bf16`."""

    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device as an argument: `@cuda:0`."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """One of torch's named constants: `torch.strided`, `torch.channels_last`."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """An operator as an argument, as higher-order ops take them: `&aten.mm.default`."""

    target: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that only the graph it came from can give back. `key` finds it there; `text` is for people."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Tuple:
    """A tuple, where the difference from a list matters."""

    items: tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice; its parts may be references."""

    start: Arg
    stop: Arg
    step: Arg


@dataclass(frozen=True, slots=True)
class Dict:
    """A dictionary with string keys, in its order."""

    items: tuple[tuple[str, Arg], ...]


Literal: TypeAlias = bool | int | float | complex | str | Expr | Dtype | Device | Const | Function | Opaque | None
Arg: TypeAlias = "Ref | Literal | tuple[Arg, ...] | Tuple | Slice | Dict"


# A tuple, and no union: `tuple | Tuple` in a call makes a new type each time, and every op that is made asks.
_CONTAINERS = (tuple, Tuple, Slice, Dict)
_PLAIN = frozenset({bool, int, float, str, type(None)})  # the types of nearly all literals


def refs(arg: Arg) -> tuple[Ref, ...]:
    """The references in an argument, left to right, with repetition."""
    if isinstance(arg, Ref):
        return (arg,)
    return tuple(map(Ref, names_in(parts(arg)))) if isinstance(arg, _CONTAINERS) else ()


def names_in(args: Iterable[Arg]) -> list[str]:
    """What the references in several arguments refer to, left to right, with repetition."""
    found: list[str] = []
    for arg in args:
        if type(arg) is Ref:
            found.append(arg.name)
        elif type(arg) not in _PLAIN and isinstance(arg, _CONTAINERS):
            found += names_in(parts(arg))
    return found


def parts(arg: Arg) -> tuple[Arg, ...]:
    """What a container argument holds; nothing for a leaf."""
    if isinstance(arg, tuple):
        return arg
    if isinstance(arg, Tuple):
        return arg.items
    if isinstance(arg, Slice):
        return (arg.start, arg.stop, arg.step)
    if isinstance(arg, Dict):
        return tuple(value for _, value in arg.items)
    return ()


def map_leaves(arg: Arg, change: Callable[[Arg], Arg]) -> Arg:
    """The same argument with every leaf put through `change`."""
    if isinstance(arg, tuple):
        return tuple(map_leaves(item, change) for item in arg)
    if isinstance(arg, Tuple):
        return Tuple(tuple(map_leaves(item, change) for item in arg.items))
    if isinstance(arg, Slice):
        return Slice(map_leaves(arg.start, change), map_leaves(arg.stop, change), map_leaves(arg.step, change))
    if isinstance(arg, Dict):
        return Dict(tuple((key, map_leaves(value, change)) for key, value in arg.items))
    return change(arg)


def rename(arg: Arg, names: Mapping[str, str]) -> Arg:
    """The same argument with references renamed; names not in the mapping stay."""
    if not any(ref.name in names for ref in refs(arg)):
        return arg
    return map_leaves(arg, lambda leaf: Ref(names.get(leaf.name, leaf.name)) if isinstance(leaf, Ref) else leaf)
