"""What ranks compare before they use a graph: which graph it is, and which collectives it launches in which order.

None of it names a rank, a group or a size. Groups have other members on other ranks, and a rank that sees other lengths
compiles other sizes, and yet must launch the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from weft.analysis.traffic import total_bytes
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

FEWER = " in fewer bytes"  # ends the line of what is sent once for several, or as their sum
_PART = "part "  # begins the line before those of each graph, where a claim is about several


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
    key = _key(name, [*launch_lines(before, before), *_needs(before)])
    ranks = sorted({rank for group in before.groups for rank in group.ranks})
    return Launches(key, launch_lines(before, after), tuple(ranks))


def joined(parts: Sequence[Launches]) -> Launches:
    """What a graph and the regions inside of it launch, as one claim: the regions come first, the graph is the last."""
    if len(parts) == 1:
        return parts[0]
    name = parts[-1].key.rpartition(" ")[0]
    lines = [line for number, part in enumerate(parts) for line in (f"{_PART}{number}", *part.lines)]
    ranks = sorted({rank for part in parts for rank in part.ranks})
    return Launches(_key(name, [part.key for part in parts]), tuple(lines), tuple(ranks))


def apart(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """The lines of each of the parts that were joined."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_PART)]
    if not starts:
        return [tuple(lines)]
    return [tuple(lines[start + 1 : end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def launch_lines(before: Program, after: Program) -> tuple[str, ...]:
    """The lines alone."""
    groups = {group.name: number for number, group in enumerate(before.groups)}
    numbers = {op.name: number for number, op in enumerate(before.communicating)}
    return tuple(_line(op, groups, numbers, before) for op in after.communicating)


def _key(name: str, told: Sequence[str]) -> str:
    text = "\n".join([name, *told])
    return f"{name} {sha256(text.encode()).hexdigest()[:16]}"


def _needs(program: Program) -> Iterator[str]:
    """For each collective, those whose results it uses, through whatever lies between.

    Graphs that launch the same, one after the other here and side by side there, cannot follow each other. Only data
    counts, as it does not depend on sizes.
    """
    numbers = {op.name: number for number, op in enumerate(program.communicating)}
    reached: dict[str, int] = {}  # a bit for each collective
    for op in program.ops:
        needed = 0
        for ref in op.refs():
            needed |= reached[ref.name]
        if op.name in numbers:
            yield f"needs {needed:x}"
            needed |= 1 << numbers[op.name]
        reached[op.name] = needed


def _line(op: Op, groups: Mapping[str, int], numbers: Mapping[str, int], before: Program) -> str:
    comm = op.collective
    assert comm is not None, "it communicates"
    names = op.sources or (op.name,)
    members = [str(numbers.get(name, name)) for name in names]
    several = f" as {len(op.out)}" if op.is_start and len(op.out) > 1 else ""
    several += FEWER if op.is_start and _sends_less(op, [before[name] for name in names if name in numbers]) else ""
    group = f"group {groups[comm.group.name]} of {comm.group.size}"
    reduced = f" {comm.reduce_op}" if comm.reduce_op else ""
    return f"{op.target}{reduced} {_dtype(op)} over {group}: {', '.join(members)}{several}"


def _sends_less(op: Op, members: Sequence[Op]) -> bool:
    """Whether a collective sends less than those did that it stands for: something is sent once for several of them."""
    return len(members) > 1 and total_bytes(op) < sum(total_bytes(one) for one in members if one.is_start)


def _dtype(op: Op) -> str:
    return "+".join(sorted({spec.dtype for spec in op.out if isinstance(spec, TensorSpec)}))
