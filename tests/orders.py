"""Other orders of a program that compute the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from weft.analysis import dependencies
from weft.ir import Program


def reordered(program: Program, random: Random) -> Program:
    """The same ops in an order that keeps every dependency and is otherwise as it comes."""
    known = dependencies(program)
    after = known.after()
    missing = [len(before) for before in known.before]
    ready = [position for position, count in enumerate(missing) if not count]
    ops = []
    while ready:
        position = ready.pop(random.randrange(len(ready)))
        ops.append(program.ops[position])
        for other in after[position]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return replace(program, ops=tuple(ops))
