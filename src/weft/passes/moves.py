"""Carrying out plans that only move ops. Each step says: these ops, directly before or after that one.

All places are places of the original order, so steps do not disturb each other: whatever stands "before %x" comes
between the ops that were around there, even if %x itself moves away. What several steps bring to one place stands in
the order of the steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count

from weft.analysis.orders import known_as, note_order
from weft.analysis.reordering import reordering
from weft.errors import PlanError
from weft.ir.editor import Editor
from weft.ir.program import Program
from weft.passes.base import Plan, Step, check_fits

END = ""  # as an anchor: the end of the program


def before(ops: tuple[str, ...], anchor: str) -> Step:
    """The step that puts `ops` directly before `anchor`."""
    return Step("move", ops, {"before": anchor})


def after(ops: tuple[str, ...], anchor: str) -> Step:
    """The step that puts `ops` directly after `anchor`."""
    return Step("move", ops, {"after": anchor})


def apply_moves(program: Program, plan: Plan) -> Program:
    """The program with the plan's moves carried out."""
    check_fits(plan, program)
    if not plan.steps:
        return program.stamped(plan.pass_text)
    place: dict[str, tuple[int, int, int]] = {op.name: (position, 1, 0) for position, op in enumerate(program.ops)}
    numbers = count()
    for step in plan.steps:
        where = _where(step, program)
        for name in step.ops:
            if name not in place:
                raise PlanError(f"the plan moves %{name}, which this program does not have")
            place[name] = (*where, next(numbers))
    names = sorted(program.index, key=place.__getitem__)
    known = known_as(program, [program[name] for name in names])
    if known is not None and reordering(known) is not None:  # so every value is defined before its use
        return known.stamped(plan.pass_text)
    editor = Editor(program)
    editor.reorder(names)
    made = editor.finish(plan.pass_text)
    note_order(program, made, [program.index[name] for name in names])
    return made


def moves_to(program: Program, order: Sequence[int]) -> list[Step]:
    """The fewest moves that bring the ops into this order of their positions: what can stay, stays."""
    stays = _longest_rise(order)
    steps: list[Step] = []
    anchor, run = -1, list[str]()
    for position in (*order, len(program)):
        if position not in stays and position < len(program):
            run.append(program.ops[position].name)
            continue
        if run:
            there = after(tuple(run), program.ops[anchor].name) if anchor >= 0 else None
            steps.append(there or before(tuple(run), program.ops[0].name))
        anchor, run = position, []
    return steps


def _longest_rise(numbers: Sequence[int]) -> set[int]:
    """The longest part of these distinct numbers that rises."""
    tops: list[int] = []  # of the rises of each length so far, the least last number
    before: dict[int, int] = {}
    for number in numbers:
        length = bisect_left(tops, number)
        if length:
            before[number] = tops[length - 1]
        tops[length : length + 1] = [number]
    found: set[int] = set()
    number = tops[-1] if tops else -1
    while number >= 0:
        found.add(number)
        number = before.get(number, -1)
    return found


def _where(step: Step, program: Program) -> tuple[int, int]:
    """An op stands at (its position, 1); what comes before it at 0 and what comes after it at 2."""
    match step.verb, list(step.detail.items()):
        case "move", [("before", "")]:
            return len(program), 0
        case "move", [("before", str(anchor))] if anchor in program:
            return program.index[anchor], 0
        case "move", [("after", str(anchor))] if anchor in program:
            return program.index[anchor], 2
    raise PlanError(f"not a move, or one to a place that this program does not have: {step}")
