"""`hoist_starts`: each start moves to just after its last input."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.dependencies import Kind, dependencies
from weft.analysis.storages import storages
from weft.analysis.windows import inputs_end
from weft.ir.program import Group, Op, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.moves import after, apply_moves
from weft.passes.options import pass_text

_REASONS = {
    Kind.MUTATION: "which uses the same memory",
    Kind.IN_FLIGHT: "until which another collective uses the same memory",
    Kind.BARRIER: "a barrier",
    Kind.RANDOM: "which draws random numbers before it",
}


@dataclass(frozen=True)
class HoistStarts:
    """Move starts up to their last input, so that communication begins as early as it can.

    The collectives of a group keep their order, so a start does not overtake an earlier one of its group.
    `group`: only collectives of this group; all if not given.
    """

    name: ClassVar[str] = "hoist_starts"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    group: str | None = None

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each start that can move, a remark for each start."""
        hoists = list(_hoists(program, context.group(self.group) if self.group is not None else None))
        # Those that need not move keep their place among those that come to the same one.
        reached = {hoist.goal for hoist in hoists if hoist.passed}
        steps = tuple(after((one.op.name,), program.ops[one.goal].name) for one in hoists if one.goal in reached)
        return Plan(pass_text(self), fingerprint(program), steps, tuple(self._remark(program, one) for one in hoists))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)

    def _remark(self, program: Program, hoist: _Hoist) -> Remark:
        if not hoist.passed:
            return Remark(self.name, hoist.op.name, "refused", f"stays where it is, after {hoist.why}")
        longer = _allocated(hoist.op, program)
        cost = f"; its {longer} bytes live that much longer" if longer else ""
        message = f"moved up past {counted(hoist.passed, 'op')}, to after {hoist.why}{cost}"
        return Remark(self.name, hoist.op.name, "done", message)


@dataclass(frozen=True)
class _Hoist:
    """A start, the position that it can go after, how many ops it overtakes on its way, and what stops it there."""

    op: Op
    goal: int
    passed: int
    why: str


def _hoists(program: Program, chosen: Group | None) -> Iterator[_Hoist]:
    earliest = inputs_end(program)
    reasons = _Reasons(program)
    goal: dict[int, int] = {}  # for each start, by its position
    positions: list[int] = []
    goals: list[int] = []
    previous: dict[Group, str] = {}
    for op in program.communicating:
        if op.inside is not None:  # it stays where it is, and none of its group overtakes it
            goal[program.index[op.name]], previous[op.inside.group] = program.index[op.name], op.name
            continue
        if op.comm is None or (chosen is not None and op.comm.group != chosen):
            continue
        position, group = program.index[op.name], op.comm.group
        stops = [(earliest, "the inputs of the program")]
        for earlier in dependencies(program).before[position]:
            stops.append((goal.get(earlier, earlier), reasons(earlier, op)))
        if rival := previous.get(group):
            why = f"%{rival}, the collective before it in group {group.name}"
            stops.append((goal[program.index[rival]], why))
        place, why = max(reversed(stops), key=lambda stop: stop[0])
        # It overtakes what lies between, except the starts that themselves go as far.
        as_far = bisect_right(goals, place) - bisect_right(positions, place)
        yield _Hoist(op, place, position - place - 1 - as_far if place >= 0 else 0, why)
        goal[position], previous[group] = place, op.name
        positions.append(position)
        insort(goals, place)


class _Reasons:
    """Why a start must stay after an op."""

    def __init__(self, program: Program) -> None:
        self._program = program
        order = dependencies(program).order
        self._kinds = {(one, other): kind for one, other, kind in order if program.ops[other].is_start}

    def __call__(self, earlier: int, start: Op) -> str:
        name = self._program.ops[earlier].name
        kind = self._kinds.get((earlier, self._program.index[start.name]))
        return f"%{name}, {_REASONS[kind]}" if kind is not None else f"its last input %{name}"


def _allocated(op: Op, program: Program) -> int:
    """The bytes of the results that do not lie in memory that was there before."""
    known = storages(program)
    made = [storage for storage in known.of_value(op.name) if program.ops[known.maker[storage]] is op]
    return sum(known.nbytes[storage] for storage in made)
