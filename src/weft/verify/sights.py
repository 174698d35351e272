"""What each op sees: which memory it reads, and who wrote there last. Two Programs are told in the same terms.

A *place* is a storage of `before` whose maker lives on in `after`. All other memory is scratch, and to read scratch is
to see what those saw that filled it: an op may be fed through ops that a pass put in between. A value on scratch that
stands for values of `before`, as a part of a bucket does, is at the place of those. That the parts of a bucket do not
overlap is taken from their `sources`, and not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.analysis.storages import storages
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.verify.heirs import Heirs

CALLER = ""  # as a reader: who gets the outputs and has the inputs back
MADE = ""  # as a writer: nobody wrote there since the place was made

Sight = frozenset[tuple[int, str]]  # places, each with the op that wrote there last
_Storages = frozenset[int]
_NOTHING: Sight = frozenset()


@dataclass(frozen=True)
class Layout:
    """Where each value of a Program is: at which places of `before`, and in which scratch storages of its own."""

    places: Mapping[str, _Storages]
    scratch: Mapping[str, _Storages]


@dataclass(frozen=True)
class Sights:
    """Of one Program:

    - `seen`: what each op that reads sees, and what the CALLER sees after the last of them
    - `last`: for an op of `before` and a place: the last op that writes there in its stead
    - `written`: for each op that writes to places: how many bytes to which
    - `layout`: where each value is
    """

    seen: Mapping[str, Sight]
    last: Mapping[tuple[str, int], str]
    written: Mapping[str, Mapping[int, int]]
    layout: Layout

    def places_seen(self, names: Iterable[str]) -> frozenset[int]:
        """The places that any of these ops reads."""
        return frozenset(place for name in names for place, _ in self.seen.get(name, ()))


def sights(before: Program, after: Program) -> tuple[Sights, Sights]:
    """What is seen in `before` and in `after`. The names and definitions of both must be in order."""
    heirs = Heirs(before, after)
    was = _layout_before(before, heirs)
    now = _layout_after(before, after, heirs, was)
    living = {op.name for op in before.ops if heirs.of(op.name)}
    return (
        _Walk(before, was, lambda op: (op.name,) if op.name in living else ()).run(),
        _Walk(after, now, heirs.origins).run(),
    )


def maker_of(place: int, before: Program) -> str:
    """The op that made a place, which is what people call it by."""
    return before.ops[storages(before).maker[place]].name


def _layout_before(before: Program, heirs: Heirs) -> Layout:
    known = storages(before)
    shared = _union(made for name, made in _made(before).items() if heirs.of(name))
    values = {op.name: known.of_value(op.name) for op in before.ops}
    places = {name: own & shared for name, own in values.items()}
    return Layout(places, {name: own - shared for name, own in values.items()})


def _layout_after(before: Program, after: Program, heirs: Heirs, was: Layout) -> Layout:
    known = storages(after)
    had, place = _made(before), dict[int, int]()
    for name, made in _made(after).items():
        place.update(zip(made, had.get(name, ()), strict=False))
    still_there = frozenset(place.values())
    places: dict[str, _Storages] = {}
    scratch: dict[str, _Storages] = {}
    for op in after.ops:
        own = known.of_value(op.name)
        places[op.name] = frozenset([place[storage] for storage in own if storage in place])
        scratch[op.name] = frozenset([storage for storage in own if storage not in place])
        if scratch[op.name]:
            home = _home(op, heirs.origins(op), was, Layout(places, scratch)) - still_there
            places[op.name] |= home
            scratch[op.name] = frozenset() if home else scratch[op.name]
    return Layout(places, scratch)


def _home(op: Op, origins: tuple[str, ...], was: Layout, now: Layout) -> _Storages:
    """The places of the values that one on scratch stands for; a view that is new is where its base is."""
    if origins:
        return _union(was.places[origin] for origin in origins)
    bases = [ref.name for key in op.traits.views for ref in refs(op.argument(key))]
    return _union(now.places[base] for base in bases if not now.scratch[base])


def _made(program: Program) -> dict[str, list[int]]:
    """For each op, the storages of the tensors that it allocates."""
    found: dict[str, list[int]] = {}
    result, previous = 0, -1
    for storage, maker in enumerate(storages(program).maker):
        result = result + 1 if maker == previous else 0
        previous = maker
        if isinstance(program.ops[maker].out[result], TensorSpec):
            found.setdefault(program.ops[maker].name, []).append(storage)
    # An attribute that is fetched several times is one tensor, and any of those ops may be dropped.
    for op in program.ops:
        if op.target == "get_attr":
            found[op.name] = sorted(storages(program).of_value(op.name))
    return found


def _union(sets: Iterable[Iterable[int]]) -> _Storages:
    return frozenset[int]().union(*sets)


class _Walk:
    """Goes through a Program in its order and notes who wrote where."""

    def __init__(self, program: Program, layout: Layout, origins: Callable[[Op], tuple[str, ...]]) -> None:
        self._program, self._layout, self._origins = program, layout, origins
        self._writer: dict[int, str] = {}
        self._filled: dict[int, Sight] = {}  # scratch storages: what those saw that filled them
        self._last: dict[tuple[str, int], str] = {}
        self._written: dict[str, dict[int, int]] = {}

    def run(self) -> Sights:
        seen: dict[str, Sight] = {}
        matters = self._matters()
        for op in self._program.ops:
            if op.name in matters and not op.traits.is_view:
                # What a start is to write to (`out`) it does not read.
                read = op.refs() if not op.is_start else (ref for arg in op.args for ref in refs(arg))
                seen[op.name] = self._look(ref.name for ref in read)
                self._fill(op.name, seen[op.name])
                self._write(op, seen[op.name])
        seen[CALLER] = self._look(_kept(self._program))
        return Sights(seen, self._last, self._written, self._layout)

    def _matters(self) -> set[str]:
        """The ops that both Programs have, those that write, and all that feed them; not what is dead or to be."""
        found: set[str] = set()
        for op in reversed(self._program.ops):
            if op.name in found or op.traits.mutates or self._origins(op):
                found.add(op.name)
                found.update(ref.name for ref in op.refs())
        return found

    def _look(self, names: Iterable[str]) -> Sight:
        found: set[tuple[int, str]] = set()
        for name in names:
            found.update((place, self._writer.get(place, MADE)) for place in self._layout.places[name])
            for storage in self._layout.scratch[name]:
                found |= self._filled.get(storage, _NOTHING)
        return frozenset(found)

    def _fill(self, name: str, sight: Sight) -> None:
        for storage in self._layout.scratch[name]:
            self._filled[storage] = self._filled.get(storage, _NOTHING) | sight

    def _write(self, op: Op, sight: Sight) -> None:
        for name in [ref.name for key in op.traits.mutates for ref in refs(op.argument(key))]:
            self._fill(name, sight)
            size = sum(spec.nbytes for spec in self._program[name].out)
            for place in self._layout.places[name]:
                self._writer[place] = op.name
                sizes = self._written.setdefault(op.name, {})
                sizes[place] = sizes.get(place, 0) + size
                self._last.update(((origin, place), op.name) for origin in self._origins(op))


def _kept(program: Program) -> Iterator[str]:
    """What the caller can look at after the last op."""
    for output in program.outputs:
        yield from (ref.name for ref in refs(output))
    for op in program.ops:
        if (op.is_input and not op.kwargs.get("donated")) or op.target == "get_attr":
            yield op.name
