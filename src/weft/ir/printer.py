"""From Program to text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from weft.ir.args import Arg, Const, Device, Dict, Dtype, Function, Literal, Opaque, Ref, Slice, Tuple, parts
from weft.ir.dims import Dim, Expr, symbols
from weft.ir.specs import ScalarSpec, Spec
from weft.ir.targets import traits_of
from weft.ir.traits import Traits

if TYPE_CHECKING:
    from weft.ir.program import Collective, Op, Program

VERSION = 1

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)


def print_program(program: Program) -> str:
    """The program as text, ending in a newline."""
    header = [f"weft {VERSION}"]
    header += [f"history {json.dumps(stamp)}" for stamp in program.history]
    header += [f"rank {program.rank}"] if program.rank is not None else []
    header += [f"group {_name(group.name)} = {print_ranks(group.ranks)}" for group in program.groups]
    header += [f"symbol {name} = {value}" for name, value in _symbol_hints(program)]
    results = ", ".join(_arg(output) for output in program.outputs)
    lines = [*header, "", *map(print_op, program.ops), f"return {results}".rstrip()]
    return "\n".join(lines) + "\n"


def print_op(op: Op) -> str:
    """One op as one line, without a newline."""
    args = [_arg(arg) for arg in op.args] + [f"{_name(key)}={_arg(arg)}" for key, arg in op.kwargs.items()]
    target = op.target if _DOTTED.fullmatch(op.target) else json.dumps(op.target)
    line = f"{print_value(op.name)}: {_specs(op.out)} = {target}({', '.join(args)})"
    if op.collective is not None:
        line += _collective(op.collective)
    if op.traits != traits_of(op.target):
        line += f" {{{_traits(op.traits)}}}"
    if op.sources:
        line += " from " + ", ".join(map(print_value, op.sources))
    if op.origin:
        line += f"  # {_origin(op.origin)}"
    return line


def print_value(name: str) -> str:
    """A reference to a value: `%name`, quoted where the name is not a plain one."""
    return "%" + (name if _IDENTIFIER.fullmatch(name) else json.dumps(name))


def print_spec(spec: Spec) -> str:
    """A value's dtype and shape: `bf16[4096,512]`; strides follow a semicolon where they are not row-major."""
    if isinstance(spec, ScalarSpec):
        return spec.dtype if spec.value is None else f"{spec.dtype}({spec.value})"
    shape = ",".join(map(str, spec.shape))
    if spec.strides is not None:
        shape += ";" + ",".join(map(str, spec.strides))
    return f"{spec.dtype}[{shape}]" + (f"@{spec.device}" if spec.device else "")


def counted(number: int, noun: str) -> str:
    """`1 op`, `2 ops`: for remarks."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _specs(out: tuple[Spec, ...]) -> str:
    return print_spec(out[0]) if len(out) == 1 else f"({', '.join(map(print_spec, out))})"


def _collective(comm: Collective) -> str:
    return (f" {comm.reduce_op}" if comm.reduce_op else "") + f" over {_name(comm.group.name)}"


def _traits(traits: Traits) -> str:
    words = [f"{name}({', '.join(map(_key, keys))})" for name, keys in _argument_lists(traits) if keys]
    words += [flag for flag in ("copies", "random", "matmul", "communicates", "barrier") if getattr(traits, flag)]
    return ", ".join(words) or "pure"


def _argument_lists(traits: Traits) -> Iterable[tuple[str, tuple[int | str, ...]]]:
    return (("views", traits.views), ("mutates", traits.mutates))


def _key(key: int | str) -> str:
    return str(key) if isinstance(key, int) else _name(key)


def _origin(origin: str) -> str:
    plain = origin.isprintable() and origin == origin.strip() and not origin.startswith('"')
    return origin if plain else json.dumps(origin)


def _name(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def print_ranks(ranks: tuple[int, ...]) -> str:
    """Runs of equal distance are shortened: `0..7`, `0..56 by 8`."""
    words: list[str] = []
    rest = ranks
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        length = 1
        while length < len(rest) and step > 0 and rest[length] == rest[length - 1] + step:
            length += 1
        if length > 2:
            words.append(f"{rest[0]}..{rest[length - 1]}" + (f" by {step}" if step > 1 else ""))
        else:
            length = 1
            words.append(str(rest[0]))
        rest = rest[length:]
    return ", ".join(words)


def _arg(arg: Arg) -> str:
    match arg:
        case Ref(name):
            return print_value(name)
        case tuple():
            return f"[{', '.join(map(_arg, arg))}]"
        case Tuple(items):
            return f"({', '.join(map(_arg, items))}{',' if len(items) == 1 else ''})"
        case Slice(start, stop, step):
            return f"slice({_arg(start)}, {_arg(stop)}, {_arg(step)})"
        case Dict(items):
            return "{" + ", ".join(f"{json.dumps(key)}: {_arg(value)}" for key, value in items) + "}"
    return _literal(arg)


def _literal(arg: Literal) -> str:
    match arg:
        case str():
            return json.dumps(arg)
        case complex():
            return f"complex({arg.real}, {arg.imag})"
        case Dtype(name) | Const(name):
            return name
        case Device(name):
            return f"@{name}"
        case Function(target):
            return f"&{target}"
        case Opaque(key, text):
            return f"opaque({json.dumps(key)}, {json.dumps(text)})"
    return str(arg)


def _symbol_hints(program: Program) -> list[tuple[str, int]]:
    """Every symbol with its hint, in order of first appearance."""
    found: dict[str, int] = {}
    outputs = (dim for output in program.outputs for dim in _dims_in(output))
    for dim in chain(chain.from_iterable(map(_dims, program.ops)), outputs):
        if isinstance(dim, Expr):
            for known in symbols(dim):
                found.setdefault(known.name, known.hint)
    return list(found.items())


def _dims(op: Op) -> Iterable[Dim]:
    for spec in op.out:
        yield from spec.shape
        if isinstance(spec, ScalarSpec):
            if spec.value is not None:
                yield spec.value
        elif spec.strides is not None:
            yield from spec.strides
    for arg in (*op.args, *op.kwargs.values()):
        yield from _dims_in(arg)


def _dims_in(arg: Arg) -> Iterable[Dim]:
    if isinstance(arg, Expr):
        yield arg
    else:
        for part in parts(arg):
            yield from _dims_in(part)
