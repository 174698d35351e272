"""Orders: the same Program in another one, with its facts; and one in which all comes behind what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import is_

from weft.analysis.dependencies import dependencies, ill_defined
from weft.analysis.reordering import Reordering, unknown
from weft.ir.program import Op, Program


def reordered(program: Program, order: Sequence[int]) -> Program:
    """The Program with its ops in another order of their positions."""
    made = replace(program, ops=tuple([program.ops[place] for place in order]))
    note_order(program, made, order)
    return made


def depth_first(roots: Iterable[int], needs: Sequence[Sequence[int]]) -> Iterator[int]:
    """Each of the roots in turn, behind all that it needs and that has not been there yet."""
    begun: set[int] = set()
    for root in roots:
        path = [(root, iter(needs[root]))] if root not in begun else []
        begun.add(root)
        while path:
            number, rest = path[-1]
            missing = next((one for one in rest if one not in begun), None)
            if missing is None:
                path.pop()
                yield number
            else:
                begun.add(missing)
                path.append((missing, iter(needs[missing])))


def note_order(program: Program, made: Program, order: Sequence[int]) -> None:
    """Tell of a Program that it has the ops of `program` in this order.

    If it keeps every dependency, and all is as it should be with names and definitions, its storages, pairs,
    dependencies and prices follow from those of `program`, and are not found out anew.
    """
    if made.ops is program.ops:
        return
    how = Reordering.of(program, order)
    if program.fact(_is_plain) and _keeps_dependencies(how):
        first: Reordering | None = how.from_the_first()
        made.know(unknown, first)


def note_likely(program: Program, made: Program) -> None:
    """Tell that `program` is likely to be brought into the order of `made`, of which much is known by then."""
    likely: Program | None = made
    program.know(_likely, likely)


def known_as(program: Program, ops: Sequence[Op]) -> Program | None:
    """The Program that `note_likely` told of, if it has these very ops in this order."""
    made = program.fact(_likely)
    same = made is not None and len(made) == len(ops) and all(map(is_, made.ops, ops))
    return made if same else None


def _likely(program: Program) -> Program | None:
    return None


def _keeps_dependencies(how: Reordering) -> bool:
    place = how.place
    for position, earlier in zip(place, dependencies(how.original).before, strict=True):
        for other in earlier:
            if place[other] > position:
                return False
    return True


def _is_plain(program: Program) -> bool:
    """Whether every name is one op, which stands before all that use it, and no attribute is fetched twice: the first
    op to fetch one is said to make it."""
    index = program.index
    fetched = [op.argument(0) for op in program.attributes]
    if len(index) != len(program) or len(set(fetched)) != len(fetched):
        return False
    return not ill_defined(program)
