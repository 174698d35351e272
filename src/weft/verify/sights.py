"""What each op sees: which memory it reads, and who wrote there last. Two Programs are told in the same terms.

A *place* is a storage of `before` whose maker lives on in `after`. All other memory is scratch, and to read scratch is
to see what those saw that filled it: an op may be fed through ops that a pass put in between. A value on scratch that
stands for values of `before`, as a part of a bucket does, is at the place of those. That the parts of a bucket do not
overlap is taken from their `sources`, and not proved.

Where nobody ever writes, everybody sees a place as it was made. So only starts, which must say what they send, and
those that fill scratch note such places; most ops note nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from weft.analysis.reordering import reordering
from weft.analysis.storages import storages, uses
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.verify.heirs import Heirs

CALLER = ""  # as a reader: who gets the outputs and has the inputs back
MADE = ""  # as a writer: nobody wrote there since the place was made

Sight = frozenset[tuple[int, str]]  # places, each with the op that wrote there last
_NONE: frozenset[int] = frozenset()
_NOTHING: Sight = frozenset()


@dataclass(frozen=True)
class Layout:
    """Where the values of a Program are.

    - `storages`: of each value
    - `place`: for each of those that is one: which place it is
    - `home`: of values on scratch that stand for values of `before`: the places of those
    """

    storages: Mapping[str, tuple[int, ...]]
    place: Mapping[int, int]
    home: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def places(self, name: str) -> frozenset[int]:
        """The places that a value is at."""
        found = frozenset([self.place[storage] for storage in self.storages[name] if storage in self.place])
        return found | self.home[name] if name in self.home else found

    def scratch(self, name: str) -> list[int]:
        """The scratch storages that a value is in."""
        if name in self.home:
            return []
        return [storage for storage in self.storages[name] if storage not in self.place]


@dataclass(frozen=True)
class Sights:
    """Of one Program:

    - `seen`: what ops see that read memory that is written, and starts; and the CALLER after the last of them
    - `sent`: of each collective, what it sees of what it sends, or of what the product is made from that it sends
    - `last`: for an op of `before` and a place: the last op that writes there in its stead
    - `written`: for each op that writes to places: how many bytes to which
    - `layout`: where each value is
    """

    seen: Mapping[str, Sight]
    sent: Mapping[str, Sight]
    last: Mapping[tuple[str, int], str]
    written: Mapping[str, Mapping[int, int]]
    layout: Layout

    def places_sent(self, names: Iterable[str]) -> frozenset[int]:
        """The places that any of these collectives sends."""
        return frozenset(place for name in names for place, _ in self.sent.get(name, ()))


def sights(before: Program, after: Program, heirs: Heirs) -> tuple[Sights, Sights]:
    """What is seen in `before` and in `after`. The names and definitions of both must be in order."""
    lost = {name for name in before.index.keys() - after.index.keys() if not heirs.of(name)}
    was = _layout_before(before, lost)
    now = _layout_after(before, after, heirs, was)
    written = _written(before, was) | _written(after, now)
    return (
        _Walk(before, was, lost, lambda op: (op.name,) if op.name not in lost else (), written).run(),
        _Walk(after, now, heirs.new, heirs.origins, written).run(),
    )


def maker_of(place: int, before: Program) -> str:
    """The op that made a place, which is what people call it by."""
    return before.ops[storages(before).maker[place]].name


def _layout_before(before: Program, lost: Set[str]) -> Layout:
    shared = {storage: storage for name, made in _made(before).items() if name not in lost for storage in made}
    return Layout(storages(before).all_of, shared)


def _layout_after(before: Program, after: Program, heirs: Heirs, was: Layout) -> Layout:
    had, has = _made(before), _made(after)
    both = [(made, had[name]) for name, made in has.items() if name in had]
    place = {now: then for made, known in both for now, then in zip(made, known, strict=False)}
    still_there = frozenset(place.values())
    home: dict[str, frozenset[int]] = {}
    now = Layout(storages(after).all_of, place, home)
    scratch = [storage for storage in range(len(storages(after).maker)) if storage not in place]
    for position in _touching(after, scratch):
        op = after.ops[position]
        if now.scratch(op.name) and (found := _home(op, heirs.origins(op), was, now) - still_there):
            home[op.name] = found
    return now


def _touching(program: Program, chosen: Iterable[int]) -> list[int]:
    """The positions of the ops that make these storages or are given values in them, in order. The rest, which are
    nearly all, need not be looked at."""
    maker, used = storages(program).maker, uses(program)
    found = {maker[storage] for storage in chosen}
    found.update([position for storage in chosen for position in used[storage]])
    return sorted(found)


def _home(op: Op, origins: tuple[str, ...], was: Layout, now: Layout) -> frozenset[int]:
    """The places of the values that one on scratch stands for; a view that is new is where its base is."""
    if origins:
        return _NONE.union(*(was.places(origin) for origin in origins))
    bases = [ref.name for key in op.traits.views for ref in refs(op.argument(key))]
    return _NONE.union(*(now.places(base) for base in bases if not now.scratch(base)))


def _made(program: Program) -> Mapping[str, list[int]]:
    """For each op, the storages of the tensors that it allocates."""
    return program.fact(_find_made)


def _find_made(program: Program) -> Mapping[str, list[int]]:
    if (how := reordering(program)) is not None:
        return _made(how.original)
    found: dict[str, list[int]] = {}
    result, previous = 0, -1
    for storage, maker in enumerate(storages(program).maker):
        op = program.ops[maker]
        result = result + 1 if maker == previous else 0
        if isinstance(op.out[result], TensorSpec):
            if result:
                found.setdefault(op.name, []).append(storage)
            else:
                found[op.name] = [storage]
        previous = maker
    # An attribute that is fetched several times is one tensor, and any of those ops may be dropped.
    for op in program.attributes:
        found[op.name] = sorted(storages(program).of_value(op.name))
    return found


def _written(program: Program, layout: Layout) -> frozenset[int]:
    """The places that anybody writes to."""
    writers = [op for op in program.ops if op.traits.mutates]
    names = {ref.name for op in writers for key in op.traits.mutates for ref in refs(op.argument(key))}
    return _NONE.union(*map(layout.places, names))


class _Walk:
    """Goes through a Program in its order and notes who wrote where."""

    def __init__(
        self,
        program: Program,
        layout: Layout,
        strangers: Set[str],
        origins: Callable[[Op], tuple[str, ...]],
        written: frozenset[int],
    ) -> None:
        self._program, self._layout, self._origins = program, layout, origins
        self._strangers, self._written = strangers, written
        # Storages that are written to, or are scratch: all others look the same to everybody.
        where = layout.place.get
        count = len(storages(program).maker)
        self._loud = frozenset([one for one in range(count) if (place := where(one)) is None or place in written])
        self._writer: dict[int, str] = {}
        self._state: dict[tuple[int, int], str] = {}  # of memory that stands for a place: who wrote last what it has
        self._filled: dict[int, Sight] = {}  # scratch storages: what those saw that filled them
        self._last: dict[tuple[str, int], str] = {}
        self._sizes: dict[str, dict[int, int]] = {}

    def run(self) -> Sights:
        seen: dict[str, Sight] = {}
        sent: dict[str, Sight] = {}
        index, ops = self._program.index, self._program.ops
        communicating = {index[op.name] for op in self._program.communicating}
        touching = [ops[place] for place in sorted({*communicating, *_touching(self._program, self._loud)})]
        unseen = self._unseen(touching)
        for op in touching:
            if op.traits.is_view or op.name in unseen:
                continue
            # What a start is to write to (`out`) it does not read.
            read = op.given if op.comm is None else [ref.name for arg in op.args for ref in refs(arg)]
            seen[op.name] = self._look(read)
            if op.collective is not None:
                gathers = op.inside is not None and op.inside.kind == "all_gather"
                sent[op.name] = self._look(ref.name for ref in refs(op.args[0])) if gathers else seen[op.name]
            self._fill(op.name, seen[op.name])
            self._make(op.name)
            self._write(op, seen[op.name])
        of = self._layout.storages
        seen[CALLER] = self._look(name for name in _kept(self._program) if not self._loud.isdisjoint(of[name]))
        return Sights(seen, sent, self._last, self._sizes, self._layout)

    def _unseen(self, touching: Sequence[Op]) -> set[str]:
        """Of the ops that only one Program has: those that feed no others, as they are dead or are to be."""
        found = {name for name in self._strangers if not self._program[name].traits.mutates}
        if not found:
            return found
        for op in reversed(touching):
            if op.name not in found:
                found.difference_update(op.given)
        return found

    def _look(self, names: Iterable[str]) -> Sight:
        found: set[tuple[int, str]] = set()
        place_of, home, writer = self._layout.place, self._layout.home, self._writer
        for name in names:
            for storage in self._layout.storages[name]:
                place = place_of.get(storage)
                if place is not None:
                    found.add((place, writer.get(place, MADE)))
                elif name not in home:
                    found |= self._filled.get(storage, _NOTHING)
            if name in home:
                found.update([(place, self._left_by(name, place)) for place in home[name]])
        return frozenset(found)

    def _make(self, name: str) -> None:
        """Memory of its own that stands for a place has what was there when it was made, whoever writes later
        elsewhere. Where nobody writes there is nothing to note: a bucket stands for many places with many storages."""
        for place in self._layout.home.get(name, _NONE) & self._written:
            for storage in self._layout.storages[name]:
                self._state[storage, place] = self._writer.get(place, MADE)

    def _left_by(self, name: str, place: int) -> str:
        """Who wrote last what a value has of a place that it stands for."""
        now = self._writer.get(place, MADE)
        return next((self._state.get((one, place), now) for one in self._layout.storages[name]), now)

    def _fill(self, name: str, sight: Sight) -> None:
        for storage in self._layout.scratch(name):
            self._filled[storage] = self._filled.get(storage, _NOTHING) | sight

    def _write(self, op: Op, sight: Sight) -> None:
        for name in [ref.name for key in op.traits.mutates for ref in refs(op.argument(key))]:
            self._fill(name, sight)
            size = sum(spec.nbytes for spec in self._program[name].out)
            for place in self._layout.places(name):
                self._writer[place] = op.name
                self._state.update(((storage, place), op.name) for storage in self._layout.storages[name])
                sizes = self._sizes.setdefault(op.name, {})
                sizes[place] = sizes.get(place, 0) + size
                self._last.update(((origin, place), op.name) for origin in self._origins(op))


def _kept(program: Program) -> Iterator[str]:
    """What the caller can look at after the last op."""
    for output in program.outputs:
        yield from (ref.name for ref in refs(output))
    yield from (op.name for op in program.inputs if not op.kwargs.get("donated"))
    yield from (op.name for op in program.attributes)
