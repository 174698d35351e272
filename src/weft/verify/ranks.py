"""Agreement of ranks: every rank issues the same collectives in the same order, and no wait waits for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from weft.analysis.pairs import pairs
from weft.analysis.traffic import total_bytes
from weft.errors import VerifyError
from weft.ir.program import Op, Program

_Ranks = tuple[int, ...]
# The kinds of which every rank must move the same number of bytes.
_EVEN = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")


def verify_ranks(programs: Mapping[int, Program]) -> None:
    """Raise VerifyError unless the programs of these ranks, run together, agree and finish."""
    found = [*_disagreements(programs)]
    if not found:  # with different collectives, who waits for whom means nothing
        found = _stuck(programs)
    if found:
        raise VerifyError(tuple(found))


def _disagreements(programs: Mapping[int, Program]) -> list[str]:
    issued = {rank: _by_group(program) for rank, program in programs.items()}
    found = []
    for ranks in dict.fromkeys(ranks for groups in issued.values() for ranks in groups):
        first, *others = [rank for rank in ranks if rank in programs]
        for other in others:
            pair = zip_longest(issued[first].get(ranks, []), issued[other].get(ranks, []))
            for number, (one, two) in enumerate(pair):
                if _signature(one) != _signature(two):
                    what = f"rank {first} issues {_show(one)} and rank {other} issues {_show(two)}"
                    found.append(f"group_order: collective {number} among ranks {list(ranks)}: {what}")
                    break
    return found


def _by_group(program: Program) -> dict[_Ranks, list[Op]]:
    found: dict[_Ranks, list[Op]] = {}
    for op in program.starts:
        if op.comm is not None:
            found.setdefault(op.comm.group.ranks, []).append(op)
    return found


def _signature(op: Op | None) -> tuple[object, ...] | None:
    if op is None or op.comm is None:
        return None
    size = total_bytes(op) if op.comm.kind in _EVEN else None
    return op.comm.kind, op.comm.reduce_op, tuple(spec.dtype for spec in op.out), size


def _show(op: Op | None) -> str:
    return f"{op.comm.kind} %{op.name} of {total_bytes(op)} bytes" if op and op.comm else "nothing more"


def _stuck(programs: Mapping[int, Program]) -> list[str]:
    """Let every rank run until it blocks, again and again. A collective is done when all its ranks have started it."""
    at = dict.fromkeys(programs, 0)
    started: dict[tuple[_Ranks, int], set[int]] = {}
    numbers = {rank: _numbers(program) for rank, program in programs.items()}
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while at[rank] < len(program):
                op = program.ops[at[rank]]
                if op.is_start:
                    started.setdefault(numbers[rank][op.name], set()).add(rank)
                elif op.name in numbers[rank] and not _done(numbers[rank][op.name], started, programs):
                    break
                at[rank] += 1
                moved = True
    blocked = {rank: program.ops[at[rank]] for rank, program in programs.items() if at[rank] < len(program)}
    return [_deadlock(rank, op, numbers[rank][op.name], started) for rank, op in blocked.items()]


def _numbers(program: Program) -> dict[str, tuple[_Ranks, int]]:
    """For each start, and each of its waits: its group and its place in the group's order."""
    found: dict[str, tuple[_Ranks, int]] = {}
    for ranks, ops in _by_group(program).items():
        for number, op in enumerate(ops):
            for name in (op.name, *pairs(program).waits[op.name]):
                found[name] = ranks, number
    return found


def _done(
    collective: tuple[_Ranks, int], started: Mapping[tuple[_Ranks, int], set[int]], programs: Mapping[int, Program]
) -> bool:
    needed = [rank for rank in collective[0] if rank in programs]
    return _missing(collective, started, needed) == []


def _missing(
    collective: tuple[_Ranks, int], started: Mapping[tuple[_Ranks, int], set[int]], needed: Sequence[int]
) -> list[int]:
    return [rank for rank in needed if rank not in started.get(collective, ())]


def _deadlock(rank: int, op: Op, collective: tuple[_Ranks, int], started: Mapping[tuple[_Ranks, int], set[int]]) -> str:
    absent = _missing(collective, started, collective[0])
    return f"wait_cycle: rank {rank} waits for ever at %{op.name}: ranks {absent} never start that collective"
