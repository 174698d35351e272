"""The rule `mutation_order`, between a Program and the one that was made from it.

It asks who sees what: see `sights.py`. The hazards of collectives in flight are not its business: `waited_before_read`
and `unchanged_in_flight` find those in the new Program alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from weft.ir.program import Program
from weft.verify.change import Change
from weft.verify.excerpts import named
from weft.verify.heirs import Heirs, families
from weft.verify.sights import CALLER, MADE, Sights, maker_of


def mutation_order(change: Change) -> Iterator[tuple[str, str]]:
    """Everybody sees memory as the same op left it as before, the caller too, and no write is lost."""
    if not any(op.traits.mutates for op in chain(change.before.ops, change.after.ops)):
        return
    views = _Views(change, *change.sights)
    yield from _not_lost(change)
    wrong = list(_seen_alike(views))
    yield from wrong
    yield from _seen_still(views, told={name for name, _ in wrong})
    yield from _not_shared(views)
    yield from _written_once(views)


@dataclass(frozen=True)
class _Views:
    change: Change
    was: Sights
    now: Sights

    @property
    def before(self) -> Program:
        return self.change.before

    @property
    def after(self) -> Program:
        return self.change.after

    @property
    def heirs(self) -> Heirs:
        return self.change.heirs

    def right(self, writer: str, place: int) -> str | None:
        """Who must have written there last where `writer` did in the original; None if nobody does in its stead."""
        return self.now.last.get((writer, place)) if writer != MADE else MADE

    def are_parts(self, reader: str, writer: str) -> bool:
        """Whether both were cut from the same op, so that one part may come after the other."""
        if CALLER in (reader, writer) or reader in self.before:
            return False
        one, other = (self.heirs.origins(self.after[name]) for name in (reader, writer))
        return not set(one).isdisjoint(other)


def _not_lost(change: Change) -> Iterator[tuple[str, str]]:
    for op in change.before.ops:
        if op.traits.mutates and not change.heirs.of(op.name):
            yield "", f"%{op.name} ({op.target}) writes to its arguments, and is gone"


def _seen_alike(views: _Views) -> Iterator[tuple[str, str]]:
    """Every reader that is still there sees each place as the same op left it."""
    for reader, found in views.now.seen.items():
        writers = _writers(reader, views)
        for place, writer in sorted(found):
            known = writers.get(place, {writer})
            if writer in {views.right(one, place) for one in known} or views.are_parts(reader, writer):
                continue
            # That a write is gone is told once, and not by everybody who misses it.
            if all(one == MADE or views.heirs.of(one) for one in known):
                who = f"%{reader}" if reader != CALLER else "the caller"
                left = [" or ".join(map(_left, sorted(names))) for names in ({writer}, known)]
                what = f"{who} sees %{maker_of(place, views.before)} {left[0]}; in the original, {left[1]}"
                yield reader or writer, what


def _writers(reader: str, views: _Views) -> dict[int, set[str]]:
    """For each place that the reader saw in the original: who it was that wrote there last."""
    origins = views.heirs.origins(views.after[reader]) if reader != CALLER else (CALLER,)
    found: dict[int, set[str]] = {}
    for origin in origins:
        for place, writer in views.was.seen.get(origin, ()):
            found.setdefault(place, set()).add(writer)
    return found


def _seen_still(views: _Views, told: set[str]) -> Iterator[tuple[str, str]]:
    """Where several ops became one, it sees each place as each of them did: a bucket cannot send two states of one."""
    for reader, expected in views.was.seen.items():
        names = views.heirs.of(reader) if reader != CALLER else ()
        if reader in names or not told.isdisjoint(names):
            continue
        found = {pair for name in names for pair in views.now.seen.get(name, ())}
        places = {place for place, _ in found}
        for place, writer in sorted(expected):
            right = views.right(writer, place)
            # A write that became one with this one is seen from within.
            if place in places and (place, right) not in found and right not in names:
                what = f"%{reader} saw %{maker_of(place, views.before)} {_left(writer)}, and %{names[-1]} does not"
                yield names[-1], what


def _left(writer: str) -> str:
    return f"as %{writer} left it" if writer != MADE else "as it was made"


def _not_shared(views: _Views) -> Iterator[tuple[str, str]]:
    """A value that stands for one with memory of its own does not share the memory of another that is written."""
    written = {place for places in views.now.written.values() for place in places}
    index = views.after.index
    for name in sorted(index.keys() - views.before.index.keys(), key=index.__getitem__):
        op = views.after[name]
        if not (origins := views.heirs.origins(op)):
            continue
        home = frozenset[int]().union(*(views.was.layout.places(origin) for origin in origins))
        other = views.now.layout.places(op.name) - home
        if other and not written.isdisjoint(other | home):
            whose = sorted({maker_of(place, views.before) for place in other})
            yield op.name, f"%{op.name} stands for {named(origins)}, and unlike it shares memory with {named(whose)}"


def _written_once(views: _Views) -> Iterator[tuple[str, str]]:
    """Where a write was cut into parts, or several became one, as much is written as before."""
    writing = {op.name: views.heirs.origins(op) for op in views.after.ops if op.traits.mutates}
    for old, new in families(writing):
        if old == new:
            continue
        wrote, writes = _total(old, views.was), _total(new, views.now)
        for place in sorted(wrote.keys() | writes.keys()):
            if wrote[place] != writes[place]:
                now, then = f"{writes[place]} bytes by {named(new)}", f"{wrote[place]} by {named(old)}"
                yield new[-1], f"%{maker_of(place, views.before)}: {now} are written there; before, {then}"


def _total(names: Iterable[str], seen: Sights) -> Counter[int]:
    found: Counter[int] = Counter()
    for name in names:
        found.update(seen.written.get(name, {}))
    return found
