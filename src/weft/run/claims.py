"""What ranks compare before they use a graph: which graph it is, and which collectives it launches in which order.

None of it names a rank, a group or a size. Groups have other members on other ranks, and a rank that sees other lengths
compiles other sizes, and yet must launch the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec


@dataclass(frozen=True)
class Launches:
    """The collectives of a graph.

    - `key`: the same for every compilation of one step: a name, and a hash of what the graph communicated as it was
    - `lines`: what is launched, in order; a number stands for a collective of the graph as it was
    - `ranks`: everybody whom this rank's graph talks to, and itself
    """

    key: str
    lines: tuple[str, ...]
    ranks: tuple[int, ...]


def launches(before: Program, after: Program, name: str) -> Launches:
    """What a graph launches that was `before` and is `after`; `name` tells graphs apart that communicate alike."""
    digest = sha256("\n".join([name, *launch_lines(before, before)]).encode()).hexdigest()[:16]
    ranks = sorted({rank for group in before.groups for rank in group.ranks})
    return Launches(f"{name} {digest}", launch_lines(before, after), tuple(ranks))


def launch_lines(before: Program, after: Program) -> tuple[str, ...]:
    """The lines alone."""
    groups = {group.name: number for number, group in enumerate(before.groups)}
    numbers = {op.name: number for number, op in enumerate(before.communicating)}
    return tuple(_line(op, groups, numbers) for op in after.communicating)


def _line(op: Op, groups: Mapping[str, int], numbers: Mapping[str, int]) -> str:
    comm = op.collective
    assert comm is not None, "it communicates"
    members = [str(numbers.get(name, name)) for name in (op.sources or (op.name,))]
    several = f" as {len(op.out)}" if op.is_start and len(op.out) > 1 else ""
    group = f"group {groups[comm.group.name]} of {comm.group.size}"
    reduced = f" {comm.reduce_op}" if comm.reduce_op else ""
    return f"{op.target}{reduced} {_dtype(op)} over {group}: {', '.join(members)}{several}"


def _dtype(op: Op) -> str:
    return "+".join(sorted({spec.dtype for spec in op.out if isinstance(spec, TensorSpec)}))
