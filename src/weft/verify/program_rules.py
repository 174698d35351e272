"""Rules that any single Program must obey. Each yields (op at fault, what is wrong)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.analysis.dependencies import accesses
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.targets import STARTS

_REDUCING = ("reduce_scatter", "all_reduce")


def unique_names(program: Program) -> Iterator[tuple[str, str]]:
    """Every op has a name of its own."""
    seen: set[str] = set()
    for op in program.ops:
        if op.name in seen:
            yield op.name, f"the name %{op.name} is taken twice"
        seen.add(op.name)


def defined_before_use(program: Program) -> Iterator[tuple[str, str]]:
    """A value is used only after the op that makes it; outputs exist."""
    for position, op in enumerate(program.ops):
        for name in dict.fromkeys(ref.name for ref in op.refs()):
            place = program.index.get(name)
            if place is None:
                yield op.name, f"%{op.name} uses %{name}, which is defined nowhere"
            elif place >= position:
                loop = ": a cycle" if _leads_to(program, name, op.name) else ""
                yield op.name, f"%{op.name} uses %{name}, which is defined only later{loop}"
    for output in program.outputs:
        for ref in refs(output):
            if ref.name not in program:
                yield "", f"the program returns %{ref.name}, which is defined nowhere"


def _leads_to(program: Program, start: str, goal: str) -> bool:
    """Whether the value `start` is made, through whatever ops, from the value `goal`."""
    todo, seen = [start], {start}
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        fresh = {ref.name for ref in program[name].refs() if ref.name in program} - seen
        seen |= fresh
        todo += fresh
    return False


def collectives_complete(program: Program) -> Iterator[tuple[str, str]]:
    """A start says what it communicates, and one group name means one group."""
    known: dict[str, tuple[int, ...]] = {}
    for op in program.ops:
        kind = STARTS.get(op.target)
        if op.comm is None:
            if kind is not None:
                yield op.name, f"%{op.name} is a start and does not say over which group"
            continue
        group = op.comm.group
        if op.comm.kind != kind:
            yield op.name, f"%{op.name} is said to be {op.comm.kind}, and its target {op.target} is not that"
        if (op.comm.kind in _REDUCING) != bool(op.comm.reduce_op):
            yield op.name, f"%{op.name} ({op.comm.kind}) " + _reduction_fault(op.comm.reduce_op)
        if known.setdefault(group.name, group.ranks) != group.ranks:
            yield op.name, f"%{op.name} uses a group {group.name} of other ranks than the ops before it"
        if not group.ranks or len(set(group.ranks)) != group.size:
            yield op.name, f"%{op.name} uses the group {group.name}, which is empty or names a rank twice"


def _reduction_fault(reduce_op: str) -> str:
    return f"reduces nothing, and yet says '{reduce_op}'" if reduce_op else "does not say how it reduces"


def starts_waited(program: Program) -> Iterator[tuple[str, str]]:
    """Each start is waited for at least once, result by result, and each wait has a start."""
    known, waited = storages(program), pairs(program)
    for start, waits in waited.waits.items():
        missing = known.of_value(start) - {storage for wait in waits for storage in known.of_value(wait)}
        if not waits:
            yield start, f"%{start} is never waited for"
        elif missing:
            yield start, f"%{start} has {len(missing)} results that nobody waits for"
    for wait in waited.strays:
        yield wait, f"%{wait} waits for something that no start made"


def waited_before_read(program: Program) -> Iterator[tuple[str, str]]:
    """Nobody touches what a collective is still writing."""
    known, start_of = storages(program), pairs(program).start
    pending: dict[int, str] = {}
    for op, (reads, writes) in zip(program.ops, accesses(program), strict=True):
        if op.name in start_of:
            for storage in writes:
                pending.pop(storage, None)
            continue
        for start in _owners(reads | writes, pending):
            yield op.name, f"%{op.name} touches the result of %{start} before any wait for it"
        if op.is_start:
            pending.update(dict.fromkeys(known.of_value(op.name), op.name))


def unchanged_in_flight(program: Program) -> Iterator[tuple[str, str]]:
    """Nobody writes to what a collective is still sending."""
    known, start_of = storages(program), pairs(program).start
    last_wait = {start: waits[-1] for start, waits in pairs(program).waits.items() if waits}
    sending: dict[int, list[str]] = {}
    for op, (_, writes) in zip(program.ops, accesses(program), strict=True):
        start = start_of.get(op.name)
        if start is not None:
            if last_wait[start] == op.name:
                _forget(program[start], sending, known.of_args(program[start].args))
            continue
        for storage in sorted(writes):
            for flying in sending.get(storage, ()):
                yield op.name, f"%{op.name} writes to what %{flying} is still sending: its wait comes later"
        if op.is_start:
            for storage in known.of_args(op.args):
                sending.setdefault(storage, []).append(op.name)


def _forget(start: Op, sending: dict[int, list[str]], sent: frozenset[int]) -> None:
    for storage in sent:
        sending[storage].remove(start.name)


def _owners(touched: frozenset[int], pending: Mapping[int, str]) -> list[str]:
    return sorted({pending[storage] for storage in touched if storage in pending})
