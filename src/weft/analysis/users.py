"""Who uses each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.program import Op, Program


def users(program: Program) -> Mapping[str, Sequence[Op]]:
    """For each value the ops that are given it, each once, in program order."""
    return program.fact(_users)


def _users(program: Program) -> Mapping[str, Sequence[Op]]:
    found: dict[str, list[Op]] = {op.name: [] for op in program.ops}
    for op in program.ops:
        for name in op.given:
            known = found[name]
            if not known or known[-1] is not op:  # it may be given a value twice
                known.append(op)
    return found
