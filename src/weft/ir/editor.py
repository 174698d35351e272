"""`Editor`: the only way from one Program to the next.

The order is a linked list, so moving, inserting and removing cost the same in a program of ten ops and of a hundred
thousand. `finish` checks what is cheap to check; `weft.verify` checks the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from operator import is_

from weft.errors import ProgramError
from weft.ir.args import Ref, refs, rename
from weft.ir.program import Op, Program

_END = ""  # the sentinel: no op may have the empty name


class Editor:
    """Collects changes to a Program. The Program itself is not touched."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ops = {op.name: op for op in program.ops}
        if len(self._ops) < len(program.ops) or _END in self._ops:
            raise ProgramError(_misnamed(program.ops))
        self._link_all(list(self._ops))
        self._renamed: dict[str, str] = {}
        self._taken = set(self._ops)
        self._counts: dict[str, int] = {}  # of each name that was wanted more than once, the last number that it got
        self._lost = {source for op in program.ops for source in op.sources} - self._taken

    def __getitem__(self, name: str) -> Op:
        """The op as it now is."""
        self._known(name)
        return self._ops[name]

    def __iter__(self) -> Iterator[Op]:
        """The ops in their present order. The order may be changed behind the iterator, not in front of it."""
        name = self._next[_END]
        while name != _END:
            yield self._ops[name]
            name = self._next[name]

    def move_before(self, name: str, anchor: str) -> None:
        """Put the op `name` directly before the op `anchor`."""
        if self._known(name) != self._known(anchor):
            self._unlink(name)
            self._link(name, self._before[anchor])

    def move_after(self, name: str, anchor: str) -> None:
        """Put the op `name` directly after the op `anchor`."""
        if self._known(name) != self._known(anchor):
            self._unlink(name)
            self._link(name, anchor)

    def insert_before(self, anchor: str, op: Op) -> Ref:
        """Add a new op directly before `anchor`; its name is made unique. Returns how to refer to it."""
        return self._insert(op, self._before[self._known(anchor)])

    def insert_after(self, anchor: str, op: Op) -> Ref:
        """Add a new op directly after `anchor`; its name is made unique. Returns how to refer to it."""
        return self._insert(op, self._known(anchor))

    def free_name(self, base: str) -> str:
        """The first name with this beginning that nobody has or had: a new op is never mistaken for an old one."""
        name, count = base, self._counts.get(base, 0)
        while name in self._taken:
            count += 1
            name = f"{base}_w{count}"
        self._counts[base] = count
        return name

    def replace(self, op: Op) -> None:
        """Put `op` in the place of the op that now has its name."""
        self._known(op.name)
        self._ops[op.name] = self._with_origins(op)

    def remove(self, name: str, *, use: str | None = None) -> None:
        """Drop an op; those that used its value use that of `use` from now on."""
        if use is not None and self._known(use) == self._known(name):
            raise ProgramError(f"%{name} cannot take its own place")
        self._unlink(name)
        del self._ops[name], self._next[name], self._before[name]
        if use is not None:
            self._renamed[name] = use

    def survivor(self, name: str) -> str:
        """The op whose value is used where that of `name` was: another one if it was removed in favour of that."""
        while name in self._renamed:
            name = self._renamed[name]
        return name

    def reorder(self, names: Iterable[str]) -> None:
        """Take a whole new order. It must name every op once."""
        order = list(names)
        if len(order) != len(self._ops) or set(order) != self._ops.keys():
            raise ProgramError("a new order must name every op of the program exactly once")
        self._link_all(order)

    def finish(self, stamp: str) -> Program:
        """The new Program, with `stamp` added to its history. Every value must still be defined before its use."""
        names = {name: self.survivor(name) for name in self._renamed}
        kept = names.keys().isdisjoint
        ops = tuple([op if kept(op.given) else _renamed(op, names) for op in self]) if names else tuple(self)
        defined: set[str] = set()
        for op in ops:
            if not defined.issuperset(op.given):
                missing = next(name for name in op.given if name not in defined)
                raise ProgramError(self._undefined(op, missing))
            defined.add(op.name)
        outputs = tuple(rename(output, names) for output in self._program.outputs)
        for ref in (ref for output in outputs for ref in refs(output)):
            if ref.name not in defined:
                raise ProgramError(f"the program would return %{ref.name}, which was removed")
        was = self._program
        if outputs == was.outputs and len(ops) == len(was.ops) and all(map(is_, ops, was.ops)):
            return was.stamped(stamp)
        return replace(was, ops=ops, outputs=outputs, history=(*was.history, stamp))

    def _known(self, name: str) -> str:
        if name not in self._ops:
            raise ProgramError(f"there is no op called %{name} in this program")
        return name

    def _insert(self, op: Op, after: str) -> Ref:
        if not op.name:
            raise ProgramError("an op needs a name of its own; '' is empty")
        name = self.free_name(op.name)
        self._ops[name] = self._with_origins(op if name == op.name else replace(op, name=name))
        self._taken.add(name)
        self._link(name, after)
        return Ref(name)

    def _with_origins(self, op: Op) -> Op:
        """`sources` always name ops of the first Program, so those that were made in between pass theirs on."""
        flat: dict[str, None] = {}
        for source in op.sources:
            if source in self._lost:  # an op of an earlier Program
                flat[source] = None
                continue
            if source not in self._ops and source not in self._program:
                raise ProgramError(f"%{op.name} names %{source} as its source, and there is no such op")
            known = self._ops[source] if source in self._ops else self._program[source]
            flat.update(dict.fromkeys(known.sources or (source,)))
        return op if tuple(flat) == op.sources else replace(op, sources=tuple(flat))

    def _link_all(self, names: list[str]) -> None:
        pairs = list(pairwise([_END, *names, _END]))
        self._next = dict(pairs)
        self._before = {behind: before for before, behind in pairs}

    def _unlink(self, name: str) -> None:
        before, behind = self._before[self._known(name)], self._next[name]
        self._next[before], self._before[behind] = behind, before

    def _link(self, name: str, after: str) -> None:
        behind = self._next[after]
        self._next[after], self._before[name] = name, after
        self._next[name], self._before[behind] = behind, name

    def _undefined(self, op: Op, name: str) -> str:
        if name in self._ops:
            return f"%{op.name} ({op.target}) would come before %{name}, whose value it uses"
        return f"%{op.name} ({op.target}) would use %{name}, which was removed"


def _misnamed(ops: Iterable[Op]) -> str:
    """What is wrong with the first name that is empty or taken."""
    seen: set[str] = set()
    for op in ops:
        if not op.name or op.name in seen:
            return f"an op needs a name of its own; {op.name!r} is {'taken' if op.name else 'empty'}"
        seen.add(op.name)
    return ""


def _renamed(op: Op, names: dict[str, str]) -> Op:
    args = tuple(rename(arg, names) for arg in op.args)
    return replace(op, args=args, kwargs={key: rename(arg, names) for key, arg in op.kwargs.items()})
