"""Who stands for whom: the ops of a Program in the one that was made from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weft.ir.args import Arg, Ref, map_leaves, refs
from weft.ir.program import Op, Program


class Heirs:
    """An op of `before` lives on in `after` under its own name, or in the ops that name it among their `sources`:

    the bucket that it went into, the chunks that it was cut into.
    """

    def __init__(self, before: Program, after: Program) -> None:
        self._before, self._after = before, after
        self._made_from, self._stood_for = _by_source(after.ops), _by_source(before.ops)
        self._origins: dict[str, tuple[str, ...]] = {}  # those that were asked for
        unknown = after.index.keys() - before.index.keys()
        self.new = frozenset([name for name in unknown if not self.origins(after[name])])  # they stand for nobody

    def of(self, name: str) -> tuple[str, ...]:
        """The ops of `after` that the op `name` of `before` lives on in; none if it is gone."""
        if name in self._after.index:
            return (name,)
        known = identity(self._before[name])
        return tuple(dict.fromkeys(heir for source in known for heir in self._made_from.get(source, ())))

    def origins(self, op: Op) -> tuple[str, ...]:
        """The ops of `before` that an op of `after` stands for; none if it is new."""
        if op.name not in self._origins:
            self._origins[op.name] = self._origins_of(op)
        return self._origins[op.name]

    def unchanged(self, op: Op) -> bool:
        """Whether an op of `after` is an op of `before` and nothing else: then `arguments_kept` compares the two."""
        place = self._before.index.get(op.name)
        return place is not None and op.sources == self._before.ops[place].sources

    def _origins_of(self, op: Op) -> tuple[str, ...]:
        place = self._before.index.get(op.name)
        if place is not None and (self._before.ops[place] is op or op.sources == self._before.ops[place].sources):
            return (op.name,)
        found = dict.fromkeys([op.name] if op.name in self._before else [])
        for source in op.sources:
            found.update(dict.fromkeys([source] if source in self._before else self._stood_for.get(source, ())))
        # A bucket's wait and its parts have sources in common. Those that are still there stand for themselves.
        gone = tuple(name for name in found if name == op.name or name not in self._after)
        return gone or tuple(found)

    def same(self, was: Arg, now: Arg) -> bool:
        """Whether an argument is still the same: the same literals, and values that stand for what was there."""
        if isinstance(was, Ref) and isinstance(now, Ref):
            return self._includes(now.name, was.name)
        old, new = refs(was), refs(now)
        if len(old) != len(new) or not all(self._includes(b.name, a.name) for a, b in zip(old, new, strict=True)):
            return False
        # As text: 1, 1.0 and True are equal to Python, and nan is not equal to itself.
        return was is now or repr(map_leaves(was, _hidden)) == repr(map_leaves(now, _hidden))

    def _includes(self, new: str, old: str) -> bool:
        """Whether the value `new` may stand where the value `old` stood."""
        if new == old or new not in self._after or old in self._after:
            return new == old
        return not set(identity(self._after[new])).isdisjoint(identity(self._before[old]))


def families(origins: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[list[str], list[str]]]:
    """Ops of `before`, and those of `after` that stand for them, such that no other op has a part in it.

    `origins` has the ops of `after` in question with what each of them stands for.
    """
    heirs: dict[str, list[str]] = {}
    for new, names in origins.items():
        for name in names:
            heirs.setdefault(name, []).append(new)
    done: set[str] = set()
    for first, known in origins.items():
        if first in done or not known:
            continue
        was: dict[str, None] = {}
        now: dict[str, None] = {}
        todo = [first]
        while todo:
            new = todo.pop()
            now[new] = None
            for name in origins[new]:
                was[name] = None
                todo += [heir for heir in heirs[name] if heir not in now]
        done |= now.keys()
        yield list(was), list(now)


def identity(op: Op) -> tuple[str, ...]:
    """The ops of the first Program that an op stands for."""
    return op.sources or (op.name,)


def _by_source(ops: Iterable[Op]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for op in ops:
        for source in op.sources:
            found.setdefault(source, []).append(op.name)
    return found


def _hidden(leaf: Arg) -> Arg:
    return Ref("") if isinstance(leaf, Ref) else leaf
