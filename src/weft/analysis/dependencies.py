"""What must stay before what: by data, through shared memory, by the random generator, by barriers.

A collective is asynchronous, and the model says so: a start reads its input and writes its result from the start to
the wait. So the wait counts as a reader of the start's input and as a writer of its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from weft.analysis.pairs import pairs
from weft.analysis.reordering import Reordering, reordering
from weft.analysis.storages import Storages, storages, uses
from weft.ir.program import Op, Program


class Kind(Enum):
    """Why one op must stay before another."""

    DATA = "data"  # the later one uses the earlier one's result
    MUTATION = "mutation"  # one of them writes what the other reads or writes
    IN_FLIGHT = "in flight"  # the same, where one of them is a wait: the collective was under way until then
    RANDOM = "random"  # both draw from the same generator
    BARRIER = "barrier"  # one of them is a barrier


@dataclass(frozen=True)
class Dependencies:
    """`before[i]` holds the positions that must stay before position i, sorted, without repetition.

    `order` lists the edges that are not visible as data, as (before, after, kind), sorted by `after`.
    """

    before: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int, Kind], ...]

    def after(self) -> list[list[int]]:
        """The same edges the other way round: for each position, those that must stay after it. Found out once, and
        not to be changed."""
        return self._after

    @cached_property
    def _after(self) -> list[list[int]]:
        return turned(self.before)

    def reordered(self, how: Reordering) -> Dependencies:
        """The dependencies of the reordered Program: the same ones."""
        place, before = how.place, self.before
        moved = [tuple(sorted([place[other] for other in before[was]])) if before[was] else () for was in how.order]
        order = [(place[earlier], place[later], kind) for earlier, later, kind in self.order]
        return Dependencies(tuple(moved), tuple(sorted(order, key=_by_later)))


def turned(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Edges the other way round: for each position, those that it is among the edges of, in order."""
    found: list[list[int]] = [[] for _ in before]
    for position, earlier in enumerate(before):
        for other in earlier:
            found[other].append(position)
    return found


def dependencies(program: Program) -> Dependencies:
    """Every dependency of a Program: any order that keeps them computes the same.

    Values that are used but not defined before are left out; `verify` reports those.
    """
    return program.fact(_dependencies)


def arguments(program: Program) -> Sequence[Sequence[int]]:
    """For each op, where the values are made that it is given, with repetition; a use before its definition is none."""
    return program.fact(_arguments)


def _arguments(program: Program) -> Sequence[Sequence[int]]:
    index = program.index
    return [
        [place for name in op.given if (place := index.get(name, position)) < position]
        for position, op in enumerate(program.ops)
    ]


def ill_defined(program: Program) -> Sequence[int]:
    """The positions of the ops that are given a value that is not made before them."""
    return program.fact(_ill_defined)


def _ill_defined(program: Program) -> Sequence[int]:
    found, given = arguments(program), [op.given for op in program.ops]
    if sum(map(len, found)) == sum(map(len, given)):
        return ()  # as nearly always: an op is found no more than it is given
    return [place for place, (some, whole) in enumerate(zip(found, given, strict=True)) if len(some) < len(whole)]


def accesses(program: Program) -> list[tuple[frozenset[int], frozenset[int]]]:
    """For each op, the storages that it reads and those that it writes, in flight included.

    What nobody ever writes everybody sees alike, whatever the order: to read that counts for nothing here.
    """
    return program.fact(_accesses)


def _accesses(program: Program) -> list[tuple[frozenset[int], frozenset[int]]]:
    if (how := reordering(program)) is not None:
        known_before = accesses(how.original)
        return [known_before[was] for was in how.order]
    known, start_of = storages(program), pairs(program).start
    writes = {
        position: known.of_value(op.name) if op.name in start_of else _written(op, known)
        for position, op in enumerate(program.ops)
        if op.traits.mutates or op.comm is not None or op.name in start_of
    }
    written, used = _NONE.union(*writes.values()), uses(program)
    sent: dict[str, frozenset[int]] = {}
    found = [_NEITHER] * len(program)  # as with most ops
    for position in sorted({*writes, *[place for storage in written for place in used[storage]]}):
        op = program.ops[position]
        reads = sent[start_of[op.name]] if op.name in start_of else _read(op, known, written)
        if op.comm is not None:
            sent[op.name] = reads
        if position in writes or reads:
            found[position] = reads, writes.get(position, _NONE)
    return found


_NONE: frozenset[int] = frozenset()
_NEITHER = (_NONE, _NONE)


def _read(op: Op, known: Storages, written: frozenset[int]) -> frozenset[int]:
    """What an op reads of the `written` storages."""
    return written & known.of_values(op.given) if not op.traits.is_view else _NONE


def _written(op: Op, known: Storages) -> frozenset[int]:
    if op.is_start:
        return known.of_value(op.name)
    if not op.traits.mutates:
        return _NONE
    return known.of_args(op.argument(key) for key in op.traits.mutates)


def _dependencies(program: Program) -> Dependencies:
    if (how := reordering(program)) is not None:
        return dependencies(how.original).reordered(how)
    data = arguments(program)
    order: dict[tuple[int, int], Kind] = {}
    for earlier, later, kind in (*_through_memory(program), *_random(program.ops), *_barriers(program.ops)):
        if earlier not in data[later]:
            order.setdefault((earlier, later), kind)
    before = [tuple(sorted({*places}) if len(places) > 1 else places) for places in data]
    hidden: dict[int, list[int]] = {}
    for earlier, later in order:
        hidden.setdefault(later, []).append(earlier)
    for later, more in hidden.items():
        before[later] = tuple(sorted({*before[later], *more}))
    edges = sorted(((a, b, kind) for (a, b), kind in order.items()), key=_by_later)
    return Dependencies(tuple(before), tuple(edges))


def _by_later(edge: tuple[int, int, Kind]) -> tuple[int, int]:
    return edge[1], edge[0]


def _through_memory(program: Program) -> Iterator[tuple[int, int, Kind]]:
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for position, (reads, writes) in enumerate(accesses(program)):
        if not reads and not writes:
            continue  # most ops
        for storage in sorted(reads | writes) if writes else reads:
            if storage in writer:
                yield _edge(writer[storage], position, program)
            if storage not in writes:
                readers.setdefault(storage, []).append(position)
                continue
            for reader in readers.pop(storage, ()):
                yield _edge(reader, position, program)
            writer[storage] = position


def _edge(earlier: int, later: int, program: Program) -> tuple[int, int, Kind]:
    flying = program.ops[earlier].is_wait or program.ops[later].is_wait
    return earlier, later, Kind.IN_FLIGHT if flying else Kind.MUTATION


def _random(ops: Iterable[Op]) -> Iterator[tuple[int, int, Kind]]:
    last: int | None = None
    for position, op in enumerate(ops):
        if op.traits.random:
            if last is not None:
                yield last, position, Kind.RANDOM
            last = position


def _barriers(ops: Sequence[Op]) -> Iterator[tuple[int, int, Kind]]:
    if not any(op.traits.barrier for op in ops):
        return
    barrier: int | None = None
    since: list[int] = []
    for position, op in enumerate(ops):
        if op.is_input:
            continue
        if barrier is not None:
            yield barrier, position, Kind.BARRIER
        if op.traits.barrier:
            for earlier in since:
                yield earlier, position, Kind.BARRIER
            barrier, since = position, []
        else:
            since.append(position)
