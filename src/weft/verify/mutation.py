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
from weft.verify.excerpts import named
from weft.verify.heirs import Heirs, families
from weft.verify.sights import CALLER, MADE, Sights, maker_of, sights


def mutation_order(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    """Everybody sees memory as the same op left it as before, the caller too, and no write is lost."""
    if not any(op.traits.mutates for op in chain(before.ops, after.ops)):
        return
    change = _Change(before, after, Heirs(before, after), *sights(before, after))
    yield from _not_lost(change)
    wrong = list(_seen_alike(change))
    yield from wrong
    yield from _seen_still(change, told={name for name, _ in wrong})
    yield from _not_shared(change)
    yield from _written_once(change)


@dataclass(frozen=True)
class _Change:
    before: Program
    after: Program
    heirs: Heirs
    was: Sights
    now: Sights

    def right(self, writer: str, place: int) -> str | None:
        """Who must have written there last where `writer` did in the original; None if nobody does in its stead."""
        return self.now.last.get((writer, place)) if writer != MADE else MADE

    def are_parts(self, reader: str, writer: str) -> bool:
        """Whether both were cut from the same op, so that one part may come after the other."""
        if CALLER in (reader, writer) or reader in self.before:
            return False
        one, other = (self.heirs.origins(self.after[name]) for name in (reader, writer))
        return not set(one).isdisjoint(other)


def _not_lost(change: _Change) -> Iterator[tuple[str, str]]:
    for op in change.before.ops:
        if op.traits.mutates and not change.heirs.of(op.name):
            yield "", f"%{op.name} ({op.target}) writes to its arguments, and is gone"


def _seen_alike(change: _Change) -> Iterator[tuple[str, str]]:
    """Every reader that is still there sees each place as the same op left it."""
    for reader, found in change.now.seen.items():
        writers = _writers(reader, change)
        for place, writer in sorted(found):
            known = writers.get(place, {writer})
            if writer in {change.right(one, place) for one in known} or change.are_parts(reader, writer):
                continue
            # That a write is gone is told once, and not by everybody who misses it.
            if all(one == MADE or change.heirs.of(one) for one in known):
                who = f"%{reader}" if reader != CALLER else "the caller"
                left = [" or ".join(map(_left, sorted(names))) for names in ({writer}, known)]
                what = f"{who} sees %{maker_of(place, change.before)} {left[0]}; in the original, {left[1]}"
                yield reader or writer, what


def _writers(reader: str, change: _Change) -> dict[int, set[str]]:
    """For each place that the reader saw in the original: who it was that wrote there last."""
    origins = change.heirs.origins(change.after[reader]) if reader != CALLER else (CALLER,)
    found: dict[int, set[str]] = {}
    for origin in origins:
        for place, writer in change.was.seen.get(origin, ()):
            found.setdefault(place, set()).add(writer)
    return found


def _seen_still(change: _Change, told: set[str]) -> Iterator[tuple[str, str]]:
    """Where several ops became one, it sees each place as each of them did: a bucket cannot send two states of one."""
    for reader, expected in change.was.seen.items():
        names = change.heirs.of(reader) if reader != CALLER else ()
        if reader in names or not told.isdisjoint(names):
            continue
        found = {pair for name in names for pair in change.now.seen.get(name, ())}
        places = {place for place, _ in found}
        for place, writer in sorted(expected):
            right = change.right(writer, place)
            # A write that became one with this one is seen from within.
            if place in places and (place, right) not in found and right not in names:
                what = f"%{reader} saw %{maker_of(place, change.before)} {_left(writer)}, and %{names[-1]} does not"
                yield names[-1], what


def _left(writer: str) -> str:
    return f"as %{writer} left it" if writer != MADE else "as it was made"


def _not_shared(change: _Change) -> Iterator[tuple[str, str]]:
    """A value that stands for one with memory of its own does not share the memory of another that is written."""
    written = {place for places in change.now.written.values() for place in places}
    for op in change.after.ops:
        origins = change.heirs.origins(op) if op.name not in change.before else ()
        home = frozenset[int]().union(*(change.was.layout.places[origin] for origin in origins))
        other = change.now.layout.places[op.name] - home if origins else home
        if other and not written.isdisjoint(other | home):
            whose = sorted({maker_of(place, change.before) for place in other})
            yield op.name, f"%{op.name} stands for {named(origins)}, and unlike it shares memory with {named(whose)}"


def _written_once(change: _Change) -> Iterator[tuple[str, str]]:
    """Where a write was cut into parts, or several became one, as much is written as before."""
    writing = {op.name: change.heirs.origins(op) for op in change.after.ops if op.traits.mutates}
    for old, new in families(writing):
        if old == new:
            continue
        wrote, writes = _total(old, change.was), _total(new, change.now)
        for place in sorted(wrote.keys() | writes.keys()):
            if wrote[place] != writes[place]:
                now, then = f"{writes[place]} bytes by {named(new)}", f"{wrote[place]} by {named(old)}"
                yield new[-1], f"%{maker_of(place, change.before)}: {now} are written there; before, {then}"


def _total(names: Iterable[str], seen: Sights) -> Counter[int]:
    found: Counter[int] = Counter()
    for name in names:
        found.update(seen.written.get(name, {}))
    return found
