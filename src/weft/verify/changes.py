"""Rules between a Program and the one that was made from it. Each yields (op at fault in `after`, what is wrong).

An op of `before` lives on in `after` under its own name, or in the ops that name it among their `sources`: the bucket
that it went into, the chunks that it was cut into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from weft.analysis.dependencies import Kind, accesses, dependencies
from weft.analysis.storages import storages
from weft.analysis.traffic import total_bytes
from weft.ir.args import Arg, Ref, map_leaves, refs
from weft.ir.program import Op, Program
from weft.ir.text import print_spec


def inputs_kept(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """The same inputs in the same order."""
    had, has = ([(op.name, op.out) for op in program.inputs] for program in (before, after))
    if had != has:
        names = [", ".join(f"%{name}" for name, _ in entries) or "none" for entries in (had, has)]
        same = "the same names with other types" if names[0] == names[1] else names[1]
        yield "", f"the inputs were {names[0]} and are {same}"


def outputs_kept(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """The same outputs: the same values, of the same type, written by the same ops in the end."""
    if len(before.outputs) != len(after.outputs):
        yield "", f"the program returned {len(before.outputs)} values and returns {len(after.outputs)}"
        return
    stands_for = _Successors(before, after)
    for number, (was, now) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if not _same_arg(was, now, stands_for):
            yield _first_name(now), f"output {number} is no longer the same value"
            continue
        for old, new in zip(refs(was), refs(now), strict=True):
            if before[old.name].out != after[new.name].out:
                types = [", ".join(map(print_spec, op.out)) for op in (before[old.name], after[new.name])]
                yield new.name, f"output {number} was {types[0]} and is {types[1]}"


def arguments_kept(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """An op that is still there does the same to the same values."""
    stands_for = _Successors(before, after)
    for op in after.ops:
        if op.name not in before or before[op.name] is op:
            continue
        old = before[op.name]
        if old.target != op.target:
            continue
        was, now = (*old.args, *old.kwargs.values()), (*op.args, *op.kwargs.values())
        if tuple(old.kwargs) != tuple(op.kwargs) or not _same_arg(was, now, stands_for):
            yield op.name, f"%{op.name} was given other arguments before"
        elif old.comm != op.comm:
            yield op.name, f"%{op.name} communicated otherwise before"


def mutation_order(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Writes stay on their side of the reads and writes of the same memory, and none is lost."""
    yield from _order_kept(before, after, (Kind.MUTATION, Kind.IN_FLIGHT), "write the same memory")
    yield from _not_lost(before, after, "mutates", lambda op: bool(op.traits.mutates))
    yield from _versions_kept(before, after)


def random_order(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Random ops draw from the generator in the same order, and none is lost."""
    yield from _order_kept(before, after, (Kind.RANDOM,), "draw random numbers")
    yield from _not_lost(before, after, "draws random numbers", lambda op: op.traits.random)


def barriers(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Nothing crosses a barrier, and none is lost."""
    yield from _order_kept(before, after, (Kind.BARRIER,), "are kept apart by a barrier")
    yield from _not_lost(before, after, "is a barrier", lambda op: op.traits.barrier)


def collectives_accounted(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Collectives are neither lost nor invented: merged and split ones move as many bytes as they did."""
    old = {name: op for op in before.starts for name in _identity(op)}
    claimed: dict[str, list[Op]] = {name: [] for name in old}
    for op in after.starts:
        known = [name for name in _identity(op) if name in old]
        if not known:
            yield op.name, f"%{op.name} is a collective that was not there before"
        for name in known:
            claimed[name].append(op)
    for name, heirs in claimed.items():
        if not heirs:
            yield "", f"the collective %{old[name].name} was lost"
    yield from _bytes_kept(old, after)


def group_order(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Within a group, collectives are issued in the order in which they were; a bucket counts as its first member."""
    place = {name: before.index[op.name] for op in before.starts for name in _identity(op)}
    for group in after.groups:
        issued = [
            (min(places), op.name)
            for op in after.starts
            if op.comm is not None
            and op.comm.group == group
            and (places := [place[name] for name in _identity(op) if name in place])
        ]
        for (first, one), (second, other) in pairwise(issued):
            if second < first:
                yield other, f"%{one} was issued after %{other} in group {group.name}, and now comes before it"


def _identity(op: Op) -> tuple[str, ...]:
    """The ops of the first Program that an op stands for."""
    return op.sources or (op.name,)


class _Successors:
    """Where each op of `before` lives on in `after`."""

    def __init__(self, before: Program, after: Program) -> None:
        self._before, self._after = before, after
        self._heirs: dict[str, list[str]] = {}
        for op in after.ops:
            for name in op.sources:
                self._heirs.setdefault(name, []).append(op.name)

    def of(self, name: str) -> list[str]:
        """The names in `after` of what the op `name` of `before` became; none if it is gone."""
        if name in self._after:
            return [name]
        found = [heir for known in _identity(self._before[name]) for heir in self._heirs.get(known, ())]
        return list(dict.fromkeys(found))

    def includes(self, new: str, old: str) -> bool:
        """Whether the value `new` may stand where the value `old` stood."""
        if new == old or new not in self._after:
            return new == old
        return bool(set(_identity(self._after[new])) & set(_identity(self._before[old])))


def _same_arg(was: Arg, now: Arg, stands_for: _Successors) -> bool:
    old, new = list(refs(was)), list(refs(now))
    if len(old) != len(new):
        return False
    placeholder = Ref("")

    def hide(leaf: Arg) -> Arg:
        return placeholder if isinstance(leaf, Ref) else leaf

    same_form = map_leaves(was, hide) == map_leaves(now, hide)
    return same_form and all(stands_for.includes(b.name, a.name) for a, b in zip(old, new, strict=True))


def _first_name(arg: Arg) -> str:
    return next((ref.name for ref in refs(arg)), "")


def _order_kept(before: Program, after: Program, kinds: tuple[Kind, ...], why: str) -> Iterator[tuple[str, str]]:
    successors = _Successors(before, after)
    for first, second, kind in dependencies(before).order:
        if kind not in kinds:
            continue
        one, other = before.ops[first], before.ops[second]
        places = [[after.index[name] for name in successors.of(op.name)] for op in (one, other)]
        if all(places) and max(places[0]) >= min(places[1]):
            culprit = after.ops[min(places[1])].name
            yield culprit, f"%{one.name} must stay before %{other.name}: they {why}"


def _not_lost(before: Program, after: Program, what: str, matters: Callable[[Op], bool]) -> Iterator[tuple[str, str]]:
    successors = _Successors(before, after)
    for op in before.ops:
        if matters(op) and not successors.of(op.name):
            yield "", f"%{op.name} ({op.target}) {what}, and is gone"


def _versions_kept(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Every op that is still there, and every output, sees its values as the same op left them."""
    successors = _Successors(before, after)
    was, now = _versions(before, before), _versions(after, before)
    for (reader, value), writer in was.items():
        if (reader, value) not in now:
            continue
        found = now[reader, value]
        if found != writer and (writer is None or found not in successors.of(writer)):
            seen = [f"%{name}" if name else "nobody" for name in (writer, found)]
            who = f"%{reader} sees" if reader else "the outputs show"
            yield reader, f"{who} %{value} as {seen[0]} left it in the original, and as {seen[1]} does now"


def _versions(program: Program, original: Program) -> Mapping[tuple[str, str], str | None]:
    """For each (reader, value): the op that last wrote to the value's memory before the reader.

    Only memory that the original program has is looked at: what a pass allocates it may also write.
    """
    known = storages(program)
    writer: dict[int, str] = {}
    found: dict[tuple[str, str], str | None] = {}

    def last(value: str) -> str | None:
        writers = [writer[s] for s in known.of_value(value) if s in writer]
        return max(writers, key=program.index.__getitem__, default=None)

    for op, (_, writes) in zip(program.ops, accesses(program), strict=True):
        if not op.traits.is_view:
            for ref in op.refs():
                found[op.name, ref.name] = last(ref.name)
        if op.traits.mutates:
            for storage in writes:
                if program.ops[known.maker[storage]].name in original:
                    writer[storage] = op.name
    for output in program.outputs:
        for ref in refs(output):
            found["", ref.name] = last(ref.name)
    return found


def _bytes_kept(old: Mapping[str, Op], after: Program) -> Iterator[tuple[str, str]]:
    """Group what was and what is by common members, and compare what each family moves."""
    families: dict[str, str] = {}  # each member's representative

    def root(name: str) -> str:
        while families.setdefault(name, name) != name:
            name = families[name]
        return name

    heirs = [op for op in after.starts if any(name in old for name in _identity(op))]
    for op in (*old.values(), *heirs):
        first, *others = _identity(op)
        for name in others:
            families[root(name)] = root(first)
    was = _moved((op, root(_identity(op)[0])) for op in dict.fromkeys(old.values()))
    now = _moved((op, root(_identity(op)[0])) for op in heirs)
    culprit = {root(_identity(op)[0]): op.name for op in heirs}
    for family, moved in now.items():
        if moved != was[family]:
            yield (
                culprit[family],
                f"%{culprit[family]} moves {_show(moved)}, and what it stands for {_show(was[family])}",
            )


def _moved(ops: Iterator[tuple[Op, str]]) -> dict[str, dict[tuple[str, str, str], int]]:
    found: dict[str, dict[tuple[str, str, str], int]] = {}
    for op, family in ops:
        assert op.comm is not None
        key = (op.comm.kind, op.comm.reduce_op, op.comm.group.name)
        moved = found.setdefault(family, {})
        moved[key] = moved.get(key, 0) + total_bytes(op)
    return found


def _show(moved: Mapping[tuple[str, str, str], int]) -> str:
    return " and ".join(
        f"{size} bytes by {kind}{f' ({reduce_op})' if reduce_op else ''} over {group}"
        for (kind, reduce_op, group), size in moved.items()
    )
