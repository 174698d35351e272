"""Agreement of ranks: every rank issues the same collectives in the same order, and no wait waits for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from weft.analysis.pairs import pairs
from weft.analysis.traffic import inside_bytes, total_bytes
from weft.errors import VerifyError
from weft.ir.program import Op, Program

_Ranks = tuple[int, ...]
_Started = Mapping[tuple[_Ranks, int], set[int]]  # for each group and number of a collective in it: who has begun it
# The kinds of which every rank must move the same number of bytes.
_EVEN = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")


def verify_ranks(programs: Mapping[int, Program]) -> None:
    """Raise VerifyError unless the programs of these ranks, run together, agree and finish."""
    found = [*_strangers(programs)] or [*_disagreements(programs)]
    if not found:  # with different collectives, who waits for whom means nothing
        found = _stuck(programs)
    if found:
        raise VerifyError(tuple(found))


def _strangers(programs: Mapping[int, Program]) -> Iterator[str]:
    for rank, program in programs.items():
        for ranks, ops in _by_group(program).items():
            if rank not in ranks:
                what = f"rank {rank} issues {_show(ops[0], program)} among ranks {list(ranks)}"
                yield f"group_order: {what}, and is none of them"


def _disagreements(programs: Mapping[int, Program]) -> Iterator[str]:
    issued = {rank: _by_group(program) for rank, program in programs.items()}
    for ranks in dict.fromkeys(ranks for groups in issued.values() for ranks in groups):
        first, *others = [rank for rank in ranks if rank in programs]
        for other in others:
            pair = zip_longest(issued[first].get(ranks, []), issued[other].get(ranks, []))
            for number, (one, two) in enumerate(pair):
                here, there = programs[first], programs[other]
                if _signature(one, here) != _signature(two, there):
                    what = f"rank {first} issues {_show(one, here)} and rank {other} issues {_show(two, there)}"
                    yield f"group_order: collective {number} among ranks {list(ranks)}: {what}"
                    break


def _by_group(program: Program) -> dict[_Ranks, list[Op]]:
    found: dict[_Ranks, list[Op]] = {}
    for op in program.communicating:
        if op.collective is not None:
            found.setdefault(op.collective.group.ranks, []).append(op)
    return found


def _signature(op: Op | None, program: Program) -> tuple[object, ...] | None:
    """What ranks must agree on."""
    if op is None or op.collective is None:
        return None
    size = _bytes(op, program) if op.collective.kind in _EVEN else None
    return op.collective.kind, size, _manner(op), op.inside is not None


def _bytes(op: Op, program: Program) -> int:
    return total_bytes(op) if op.inside is None else inside_bytes(program, op)


def _manner(op: Op) -> str:
    """How a collective goes about it, besides its kind and size."""
    comm = op.collective
    assert comm is not None
    words = [*dict.fromkeys(spec.dtype for spec in op.out), comm.reduce_op]
    words += [f"from rank {op.argument(1)}"] if comm.kind == "broadcast" else []
    return ", ".join(filter(None, words))


def _show(op: Op | None, program: Program) -> str:
    if op is None or op.collective is None:
        return "nothing more"
    within = " inside a matmul" if op.inside is not None else ""
    return f"{op.collective.kind} %{op.name} of {_bytes(op, program)} bytes ({_manner(op)}){within}"


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
                if op.collective is not None:
                    started.setdefault(numbers[rank][op.name], set()).add(rank)
                # An op with a collective inside is its own wait.
                waits = not op.is_start and op.name in numbers[rank]
                if waits and _missing(numbers[rank][op.name], started, programs):
                    break
                at[rank] += 1
                moved = True
    blocked = {rank: program.ops[at[rank]] for rank, program in programs.items() if at[rank] < len(program)}
    return [
        f"wait_cycle: rank {rank} waits for ever at %{op.name}: "
        f"ranks {_missing(numbers[rank][op.name], started, programs)} never start that collective"
        for rank, op in blocked.items()
    ]


def _numbers(program: Program) -> dict[str, tuple[_Ranks, int]]:
    """For each start, and each of its waits: its group and its place in the group's order."""
    found: dict[str, tuple[_Ranks, int]] = {}
    for ranks, ops in _by_group(program).items():
        for number, op in enumerate(ops):
            for name in (op.name, *pairs(program).waits.get(op.name, ())):
                found[name] = ranks, number
    return found


def _missing(collective: tuple[_Ranks, int], started: _Started, programs: Mapping[int, Program]) -> list[int]:
    """The ranks, of those whose programs are known, that have not started a collective."""
    return [rank for rank in collective[0] if rank in programs and rank not in started.get(collective, ())]
