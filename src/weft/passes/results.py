"""Who is given the result of a collective, besides its waits."""

from __future__ import annotations

from weft.analysis.pairs import pairs
from weft.analysis.users import users
from weft.ir.args import refs
from weft.ir.program import Op, Program


def returned(program: Program) -> frozenset[str]:
    """The values that a program returns."""
    return program.fact(_returned)


def _returned(program: Program) -> frozenset[str]:
    return frozenset(ref.name for output in program.outputs for ref in refs(output))


def not_just_waited(program: Program, start: Op) -> str | None:
    """Why the result of a start is not for waits alone: nobody waits, or a view or the caller is given it in flight;
    None if it is."""
    if not pairs(program).waits[start.name]:
        return "nobody waits for it"
    if start.name in returned(program) or any(not user.is_wait for user in users(program)[start.name]):
        return "something else than a wait uses its result in flight"
    return None
