"""Values that come to lie otherwise in memory than they did, and who takes them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from weft.analysis.kernels import ELEMENTWISE
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec, row_major
from weft.passes.holders import uses

_VIEWS = frozenset("aten.view.default aten._unsafe_view.default aten.detach.default aten.alias.default".split())


def spread_views(program: Program, name: str, step: int) -> list[tuple[Op, TensorSpec]] | None:
    """The views of a matrix, with how they lie if each row of it begins `step` elements after the one before.

    None if somebody would not take it so. Ops that work element by element do, and what they make lies as it did: they
    lay out rows one after the other whether those of their arguments are apart or not.
    """
    known, found, todo = uses(program), list[tuple[Op, TensorSpec]](), [name]
    matrix = program[name].out[0]
    while todo:
        value = todo.pop()
        if value in known.returned:
            return None
        for user in known.users[value]:
            if user.target not in _VIEWS:
                if user.target not in ELEMENTWISE or user.traits.mutates:
                    return None
                continue
            spec = _spread(user.out[0], matrix, step)
            if spec is None:
                return None
            found.append((user, spec))
            todo.append(user.name)
    return found


def _spread(view: object, matrix: object, step: int) -> TensorSpec | None:
    """A view of a matrix whose rows are so far apart; None if it has dimensions that reach over the end of a row."""
    if not isinstance(view, TensorSpec) or not isinstance(matrix, TensorSpec) or len(matrix.shape) != 2:
        return None
    sizes = [size for size in view.shape if isinstance(size, int)]
    if len(sizes) != len(view.shape) or view.strides is not None:
        return None
    inner = _inner(sizes, matrix.shape[1])
    if inner is None:
        return None
    outer = row_major(tuple(sizes[:inner]))
    strides = (*(one * step for one in outer), *row_major(tuple(sizes[inner:])))
    return replace(view, strides=strides)


def _inner(sizes: Sequence[int], columns: object) -> int | None:
    """The dimension from which on there are the elements of one row."""
    return next((place for place in reversed(range(len(sizes) + 1)) if prod(sizes[place:]) == columns), None)
