"""Which collectives of tensor parallelism stand next to a matmul, and how many of them Weft and torch can pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import weft
from bench.pipeline_torch import Pipelined, torch_pipeline
from bench.rows import aligned
from weft import pipeline
from weft.analysis.kernels import ELEMENTWISE, only_moves
from weft.analysis.users import users
from weft.cost import Machine
from weft.ir import Op, Program
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.passes.micro_pipeline import MicroPipeline

BEFORE, BEHIND, MADE, ALONE = (
    "all-gather → matmul",
    "matmul → reduce-scatter",
    "matmul → all-gather",
    "no matmul next to it",
)
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Pattern:
    """Collectives that stand alike, in one direction: how many there are, and how many of them each can pipeline.

    `in_chunks` is Weft's portable lowering and `fused` its other one; `torch` is None where torch's pass failed.
    """

    place: str
    direction: str
    collectives: int
    in_chunks: int
    fused: int
    torch: int | None


@dataclass(frozen=True)
class Patterns:
    """What there is in a step, in the order of `place` and `direction`; `reason` is what torch's pass raised, if so."""

    rows: tuple[Pattern, ...]
    reason: str = ""

    def count(self, what: Callable[[Pattern], int | None], direction: str) -> int:
        """The sum of something over the collectives of a direction that stand next to a matmul."""
        return sum(what(row) or 0 for row in self.rows if row.direction == direction and row.place != ALONE)


def patterns(program: Program, forward: Program, group: str, machine: Machine) -> Patterns:
    """What there is in a captured step over the group of this name, and who can pipeline it.

    torch's pass does not tell directions apart: what it fuses in the program `forward`, which is the forward alone,
    counts as forward, and what it fuses in the step beyond that as backward. Everything of Weft's is carried out, all
    at once, and verified.
    """
    starts = [op for op in program.starts if op.comm is not None and op.comm.group.name == group]
    first = _first_backward(program)
    places = {op.name: place_of(program, op) for op in starts}
    directions = {op.name: DIRECTIONS[program.index[op.name] >= first] for op in starts}
    chunked, fused = _in_chunks(program, machine), _fused(program, places)
    torchs, reason = _by_torch(torch_pipeline(program, group=group), torch_pipeline(forward, group=group))
    rows = []
    for place in (BEFORE, BEHIND, MADE, ALONE):
        for direction in DIRECTIONS:
            names = {name for name in places if (places[name], directions[name]) == (place, direction)}
            torch = None if reason else torchs.get((place, direction), 0)
            if names or torch:
                counts = (len(names), len(names & chunked), len(names & fused), torch)
                rows.append(Pattern(place, direction, *counts))
    return Patterns(tuple(rows), reason)


def _first_backward(program: Program) -> int:
    """Where the backward begins in a program that came from a graph."""
    backward = (node.name for node in program.source.graph.nodes if node.meta.get("autograd_backward"))
    return min((program.index[name] for name in backward if name in program), default=len(program))


# Who stands where: found by following values, without asking the pass


def place_of(program: Program, start: Op) -> str:
    """Where a collective stands: behind a gather only what moves elements may come before the matmul; what is sent may
    also be a sum of matmuls."""
    assert start.comm is not None, "a start communicates"
    known = users(program)
    behind = _reaches(known[start.name], lambda op: known[op.name], only_moves)
    given = partial(_given, program)
    before = _reaches(given(start), given, lambda op: only_moves(op) or op.target in ELEMENTWISE)
    if start.comm.kind == "all_gather":
        return BEFORE if behind else MADE if before else ALONE
    return BEHIND if start.comm.kind == "reduce_scatter" and before else ALONE


def _given(program: Program, op: Op) -> Sequence[Op]:
    return [program[ref.name] for ref in op.refs()]


def _reaches(ops: Iterable[Op], follow: Callable[[Op], Iterable[Op]], through: Callable[[Op], bool]) -> bool:
    """Whether one comes to a matmul from some ops, through none but such ops, and no other collective."""
    todo, seen = list(ops), set[str]()
    while todo:
        op = todo.pop()
        if op.traits.matmul:
            return True
        if op.name not in seen and not op.is_start and through(op):
            seen.add(op.name)
            todo += follow(op)
    return False


# Who can do what


def _in_chunks(program: Program, machine: Machine) -> set[str]:
    """Which collectives Weft cuts if it cuts all that it can: those that several starts stand for afterwards."""
    always = MicroPipeline(lowering="portable", always=True)
    made = pipeline.run(program, [always], cost=machine).program
    counts = Counter(name for op in made.starts for name in op.sources)
    return {name for name, count in counts.items() if count > 1}


def _fused(program: Program, names: Iterable[str]) -> set[str]:
    """Which of these collectives Weft can do inside matmuls, if each matmul has one inside it."""
    matches: dict[str, Match] = {}
    for name in names:
        found = find_fused(program, name)
        taken = {matmul for match in matches.values() for matmul in match.matmuls}
        if isinstance(found, Match) and taken.isdisjoint(found.matmuls):
            matches[name] = found
    made = apply_fused(program, matches.values(), "")
    weft.verify(program, made)
    return set(matches)


def _by_torch(step: Pipelined, forward: Pipelined) -> tuple[Mapping[tuple[str, str], int], str]:
    """How many torch fuses where, or why none."""
    found = {
        (BEFORE, "forward"): forward.fused_gathers,
        (BEFORE, "backward"): step.fused_gathers - forward.fused_gathers,
        (BEHIND, "forward"): forward.fused_scatters,
        (BEHIND, "backward"): step.fused_scatters - forward.fused_scatters,
    }
    return found, step.reason or forward.reason


def patterns_table(found: Patterns) -> list[str]:
    """The lines of a table and what it comes to."""
    cells = [("", "collectives", "Weft, in chunks", "Weft, fused", "torch, fused")]
    for row in found.rows:
        torch = "failed" if row.torch is None else f"{row.torch}"
        name = f"{row.place}, {row.direction}"
        cells.append((name, f"{row.collectives}", f"{row.in_chunks}", f"{row.fused}", torch))
    said = [
        _said(found, "Weft cuts", lambda row: row.in_chunks),
        _said(found, "Weft fuses", lambda row: row.fused),
        f"torch: {found.reason}" if found.reason else _said(found, "torch fuses", lambda row: row.torch),
    ]
    return [*aligned(cells), "", *said]


def _said(found: Patterns, who: str, what: Callable[[Pattern], int | None]) -> str:
    forward, backward = (
        f"{found.count(what, direction)} of {found.count(lambda row: row.collectives, direction)}"
        for direction in DIRECTIONS
    )
    return f"{who} {forward} collectives next to a matmul in the forward and {backward} in the backward"
