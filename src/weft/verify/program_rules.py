"""Rules that any single Program must obey. Each yields (op at fault, what is wrong)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.analysis.dependencies import accesses, ill_defined
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.targets import FUSED, STARTS
from weft.ir.text import counted

_COLLECTIVES = frozenset({*STARTS, *FUSED})
_REDUCING = ("reduce_scatter", "all_reduce")


def unique_names(program: Program) -> Iterator[tuple[str, str]]:
    """Every op has a name of its own."""
    if len(program.index) == len(program.ops):
        return
    seen: set[str] = set()
    for op in program.ops:
        if op.name in seen:
            yield op.name, f"the name %{op.name} is taken twice"
        seen.add(op.name)


def defined_before_use(program: Program) -> Iterator[tuple[str, str]]:
    """A value is used only after the op that makes it; outputs exist."""
    circle: Mapping[str, int] = {}
    for position in ill_defined(program):
        op = program.ops[position]
        for name in dict.fromkeys(op.given):
            place = program.index.get(name)
            if place is None:
                yield op.name, f"%{op.name} uses %{name}, which is defined nowhere"
            elif place == position:
                yield op.name, f"%{op.name} uses its own value: a cycle"
            elif place > position:
                circle = circle or _circles(program)
                loop = ": a cycle" if circle[name] == circle[op.name] else ""
                yield op.name, f"%{op.name} uses %{name}, which is defined only later{loop}"
    for output in program.outputs:
        for ref in refs(output):
            if ref.name not in program:
                yield "", f"the program returns %{ref.name}, which is defined nowhere"


def _circles(program: Program) -> Mapping[str, int]:
    """A number for each op; those that use each other's values, through whatever ops, have the same."""
    uses = {op.name: [name for name in op.given if name in program] for op in program.ops}
    seen: dict[str, int] = {}
    circle: dict[str, int] = {}
    open_ops: list[str] = []  # that have no number yet
    path: list[str] = []  # of those, the ones that may still turn out to be the first of their circle
    todo: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        seen[name] = len(seen)
        open_ops.append(name)
        path.append(name)
        todo.append((name, iter(uses[name])))

    for root in uses:
        if root not in seen:
            enter(root)
        while todo:
            name, rest = todo[-1]
            other = next(rest, None)
            if other is None:
                todo.pop()
                if path[-1] == name:
                    _close(path.pop(), open_ops, circle)
            elif other not in seen:
                enter(other)
            elif other not in circle:
                while seen[path[-1]] > seen[other]:
                    path.pop()
    return circle


def _close(first: str, open_ops: list[str], circle: dict[str, int]) -> None:
    number = len(circle)
    while open_ops[-1] != first:
        circle[open_ops.pop()] = number
    circle[open_ops.pop()] = number


def collectives_complete(program: Program) -> Iterator[tuple[str, str]]:
    """A start says what it communicates, one group name means one group, and what else communicates is a barrier.

    So does an op with a collective inside it, which is no barrier, either.
    """
    known: dict[str, tuple[int, ...]] = {}
    for op in program.ops:
        if op.target not in _COLLECTIVES and op.inside is None and not op.traits.communicates and op.comm is None:
            continue  # nearly all
        comm = op.comm if op.target not in FUSED else op.inside
        if comm is None or op.collective != comm:
            yield from _says_nothing(op)
            continue
        group, kind = comm.group, STARTS.get(op.target) or FUSED.get(op.target)
        if comm.kind != kind:
            yield op.name, f"%{op.name} is said to be {comm.kind}, and its target {op.target} is not that"
        if (comm.kind in _REDUCING) != bool(comm.reduce_op):
            yield op.name, f"%{op.name} ({comm.kind}) " + _reduction_fault(comm.reduce_op)
        if known.setdefault(group.name, group.ranks) != group.ranks:
            yield op.name, f"%{op.name} uses a group {group.name} of other ranks than the ops before it"
        if not group.ranks or len(set(group.ranks)) != group.size:
            yield op.name, f"%{op.name} uses the group {group.name}, which is empty or names a rank twice"


def _says_nothing(op: Op) -> Iterator[tuple[str, str]]:
    """What is wrong with an op that does not say what it communicates, or says it in the wrong place."""
    if op.target in STARTS:
        yield op.name, f"%{op.name} is a start and does not say over which group"
    elif op.target in FUSED:
        yield op.name, f"%{op.name} ({op.target}) does not say over which group it communicates"
    elif op.inside is not None:
        yield op.name, f"%{op.name} ({op.target}) is said to communicate inside, and is no matmul that does"
    elif op.traits.communicates and not op.traits.barrier:
        yield op.name, f"%{op.name} ({op.target}) communicates, and is neither a start nor a barrier"


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
            yield start, f"%{start} has {counted(len(missing), 'result')} that nobody waits for"
    for wait in waited.strays:
        yield wait, f"%{wait} waits for something that no start made, or that was waited for already"


def waited_before_read(program: Program) -> Iterator[tuple[str, str]]:
    """Nobody touches what a collective is still writing."""
    known, start_of = storages(program), pairs(program).start
    pending: dict[int, str] = {}
    for op, (reads, writes) in zip(program.ops, accesses(program), strict=True):
        if not reads and not writes:
            continue  # most ops
        if op.name in start_of:
            for storage in writes:
                if pending.get(storage) == start_of[op.name]:  # and not a later one that reuses the memory
                    del pending[storage]
            continue
        in_flight = pending.keys()
        touches = not (in_flight.isdisjoint(reads) and in_flight.isdisjoint(writes))
        for start in _owners(reads | writes, pending) if touches else ():
            yield op.name, f"%{op.name} touches the result of %{start} before any wait for it"
        if op.comm is not None:
            pending.update(dict.fromkeys(known.of_value(op.name), op.name))


def unchanged_in_flight(program: Program) -> Iterator[tuple[str, str]]:
    """Nobody writes to what a collective is still sending."""
    known, start_of = storages(program), pairs(program).start
    sending: dict[int, list[str]] = {}
    missing: dict[str, frozenset[int]] = {}  # of each start in flight, the results that nobody has waited for yet
    for op, (_, writes) in zip(program.ops, accesses(program), strict=True):
        start = start_of.get(op.name)
        if start is not None:
            if start in missing:
                missing[start] -= known.of_value(op.name)
                if not missing[start]:
                    del missing[start]
                    _forget(program[start], sending, known.of_args(program[start].args))
            continue
        if not writes and op.comm is None:
            continue  # most ops
        for storage in sorted(writes):
            for flying in sending.get(storage, ()):
                yield op.name, f"%{op.name} writes to what %{flying} is still sending: its wait comes later"
        if op.comm is not None:
            missing[op.name] = known.of_value(op.name)
            for storage in known.of_args(op.args):
                sending.setdefault(storage, []).append(op.name)


def _forget(start: Op, sending: dict[int, list[str]], sent: frozenset[int]) -> None:
    for storage in sent:
        sending[storage].remove(start.name)


def _owners(touched: frozenset[int], pending: Mapping[int, str]) -> list[str]:
    return sorted({pending[storage] for storage in touched if storage in pending})
