"""Ops as messages show them: on one line each, never too long for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.program import Op, Program
from weft.ir.text import print_op

_AROUND = 2  # lines shown before and after the op at fault
_LONGEST = 160  # characters of a line that are shown


def short(op: Op) -> str:
    """The op as text, cut off where it is very long."""
    return cut(print_op(op))


def cut(text: str) -> str:
    """As much of one line as is worth showing."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def named(names: Iterable[str]) -> str:
    """Some ops in a sentence."""
    return ", ".join(f"%{name}" for name in names)


def excerpt(program: Program, name: str) -> str:
    """The ops around one of them, which is marked."""
    at = program.index[name]
    first = max(0, at - _AROUND)
    shown = enumerate(program.ops[first : at + _AROUND + 1], start=first)
    return "\n".join(f"  {'>' if position == at else ' '} {position:>5} | {short(op)}" for position, op in shown)
