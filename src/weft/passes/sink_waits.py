"""`sink_waits`: each wait, with the views behind it, moves to just before its first reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.dependencies import Dependencies, Kind, dependencies
from weft.analysis.pairs import pairs
from weft.ir.program import Op, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.moves import END, apply_moves, before
from weft.passes.options import pass_text

_REASONS = {
    Kind.MUTATION: "which writes the same memory",
    Kind.IN_FLIGHT: "which touches memory that the collective uses",
    Kind.BARRIER: "which is, or stands behind, a barrier",
    Kind.RANDOM: "which must keep its place among random ops",
}


@dataclass(frozen=True)
class SinkWaits:
    """Move waits down to their first reader, so that what lies between runs while the collective does.

    `group`: only collectives of this group; all if not given.
    """

    name: ClassVar[str] = "sink_waits"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    group: str | None = None

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each wait that can move, a remark for each wait."""
        chosen = context.group(self.group) if self.group is not None else None
        known = dependencies(program)
        later, into = known.after(), _into(known)
        steps: list[Step] = []
        remarks: list[Remark] = []
        for wait, start in pairs(program).start.items():
            comm = program[start].comm
            if chosen is not None and comm is not None and comm.group != chosen:
                continue
            chain, stop = _chain(program, later, program.index[wait])
            anchor = program.ops[stop].name if stop < len(program) else END
            passed = stop - chain[0] - len(chain)
            why = _why(program, into.get(stop, []), chain, stop)
            if passed:
                steps.append(before(tuple(program.ops[position].name for position in chain), anchor))
                views = f" with {counted(len(chain) - 1, 'view')}" if len(chain) > 1 else ""
                message = f"moved{views} down past {counted(passed, 'op')}, to {why}"
                remarks.append(Remark(self.name, wait, "done", message))
            else:
                remarks.append(Remark(self.name, wait, "refused", f"stays where it is, at {why}"))
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)


def _chain(program: Program, later: list[list[int]], wait: int) -> tuple[list[int], int]:
    """The wait and the views that can travel with it, and the position of the first op that cannot come later."""
    behind, todo, stop = {wait}, [wait], len(program)
    while todo:
        for position in later[todo.pop()]:
            if _travels(program.ops[position]):
                if position not in behind:
                    behind.add(position)
                    todo.append(position)
            else:
                stop = min(stop, position)
    return sorted(position for position in behind if position < stop), stop


def _travels(op: Op) -> bool:
    return op.traits.is_view and not op.is_wait


def _into(known: Dependencies) -> dict[int, list[tuple[int, Kind]]]:
    """For each position, the edges that are not data: where from, and of which kind."""
    found: dict[int, list[tuple[int, Kind]]] = {}
    for earlier, later, kind in known.order:
        found.setdefault(later, []).append((earlier, kind))
    return found


def _why(program: Program, edges: list[tuple[int, Kind]], chain: list[int], stop: int) -> str:
    """What stands at the place that a wait came to."""
    if stop == len(program):
        return "the end: only the caller reads it"
    op = program.ops[stop]
    used = {ref.name for ref in op.refs()}
    if any(program.ops[position].name in used for position in chain):
        return f"its first reader %{op.name}"
    kinds = {kind for earlier, kind in edges if earlier in chain}
    return f"%{op.name}, {_REASONS[min(kinds, key=list(_REASONS).index)]}"
