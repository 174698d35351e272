"""`sink_waits`: each wait, with the views behind it, moves to just before its first reader."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
        goal: dict[int, int] = {}  # for each op that goes with a wait: the position that it goes before
        sinks: list[_Sink] = []
        for wait, start in reversed(list(pairs(program).start.items())):
            comm = program[start].comm
            if chosen is not None and comm is not None and comm.group != chosen:
                continue
            sinks.append(_sink(program, later, program.index[wait], goal))
            goal.update({position: max(sinks[-1].stop, goal.get(position, 0)) for position in sinks[-1].chain})
        passed = dict(_passed(sinks, goal))
        # A view of two waits goes with the one that goes farther.
        sinks = [replace(one, chain=tuple(at for at in one.chain if goal[at] == one.stop)) for one in reversed(sinks)]
        # Those that need not move keep their place among those that come to the same one.
        reached = {sink.stop for sink in sinks if passed[sink.chain[0]]}
        moving = [sink for sink in sinks if sink.stop in reached]
        for position, views in _views_passed(moving):
            passed[position] += views
        steps = tuple(_step(program, sink) for sink in moving)
        remarks = tuple(
            self._remark(program, sink, passed[sink.chain[0]], into.get(sink.blocker, [])) for sink in sinks
        )
        return Plan(pass_text(self), fingerprint(program), steps, remarks)

    def apply(self, program: Program, plan: Plan) -> Program:
        """Move what the plan says."""
        return apply_moves(program, plan)

    def _remark(self, program: Program, sink: _Sink, passed: int, edges: list[tuple[int, Kind]]) -> Remark:
        wait, views, why = program.ops[sink.chain[0]].name, len(sink.chain) - 1, _why(program, sink, edges)
        if not passed:
            return Remark(self.name, wait, "refused", f"stays where it is, at {why}")
        along = f" with {counted(views, 'view')}" if views else ""
        return Remark(self.name, wait, "done", f"moved{along} down past {counted(passed, 'op')}, to {why}")


@dataclass(frozen=True)
class _Sink:
    """A wait and the views that go with it, the position that they can go before, and the op that stops them there."""

    chain: tuple[int, ...]
    stop: int
    blocker: int


def _sink(program: Program, later: list[list[int]], wait: int, goal: Mapping[int, int]) -> _Sink:
    """How far a wait can go, where `goal` says how far the waits behind it go."""
    behind, todo, stop, blocker = {wait}, [wait], len(program), len(program)
    while todo:
        for position in later[todo.pop()]:
            if not _travels(program.ops[position]):
                # Of two that stop it at the same place, the one that stands there is the reason.
                stop, blocker = min((stop, -blocker), (goal.get(position, position), -position))
                blocker = -blocker
            elif position not in behind:
                behind.add(position)
                todo.append(position)
    return _Sink(tuple(sorted(position for position in behind if position < stop)), stop, blocker)


def _travels(op: Op) -> bool:
    return op.traits.is_view and not op.is_wait


def _passed(sinks: list[_Sink], goal: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """For each wait, from the last to the first: how many ops it overtakes.

    Those are the ones between it and its place, without those that themselves go as far or farther.
    """
    members = sorted(goal)
    positions: list[int] = []
    goals: list[int] = []
    for sink in sinks:
        wait, stop = sink.chain[0], sink.stop
        while members and members[-1] > wait:
            insort(positions, members[-1])
            insort(goals, goal[members.pop()])
        as_far = len(goals) - bisect_left(goals, stop)
        from_behind = len(positions) - bisect_left(positions, stop)
        yield wait, stop - wait - 1 - (as_far - from_behind)


def _views_passed(sinks: list[_Sink]) -> Iterator[tuple[int, int]]:
    """For each wait: how many views it overtakes that go as far as it does, since they go with a wait before it."""
    together: dict[int, list[_Sink]] = {}
    for sink in sinks:
        together.setdefault(sink.stop, []).append(sink)
    for members in together.values():
        owner = {view: sink.chain[0] for sink in members for view in sink.chain[1:]}
        views, owners = sorted(owner), sorted(owner.values())
        for sink in members:
            wait = sink.chain[0]
            # Those whose wait is before this one, without those that are before it themselves.
            yield wait, bisect_left(owners, wait) - bisect_left(views, wait)


def _step(program: Program, sink: _Sink) -> Step:
    names = tuple(program.ops[position].name for position in sink.chain)
    return before(names, program.ops[sink.stop].name if sink.stop < len(program) else END)


def _into(known: Dependencies) -> dict[int, list[tuple[int, Kind]]]:
    """For each position, the edges that are not data: where from, and of which kind."""
    found: dict[int, list[tuple[int, Kind]]] = {}
    for earlier, later, kind in known.order:
        found.setdefault(later, []).append((earlier, kind))
    return found


def _why(program: Program, sink: _Sink, edges: list[tuple[int, Kind]]) -> str:
    """What stands at the place that a wait came to."""
    if sink.stop == len(program):
        return "the end: only the caller reads it"
    op = program.ops[sink.blocker]
    used = {*op.given}
    if any(program.ops[position].name in used for position in sink.chain):
        return f"its first reader %{op.name}"
    kinds = {kind for earlier, kind in edges if earlier in sink.chain}
    return f"%{op.name}, {_REASONS[min(kinds, key=list(_REASONS).index)]}"
