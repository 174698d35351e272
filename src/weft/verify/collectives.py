"""Rules about collectives, between a Program and the one that was made from it. Each yields (op, what is wrong)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from weft.analysis.traffic import inside_bytes, whole_bytes
from weft.ir.program import Collective, Op, Program
from weft.verify.change import Change
from weft.verify.excerpts import named
from weft.verify.heirs import families
from weft.verify.sights import Sights, maker_of


@dataclass(frozen=True, eq=False)
class _Family:
    """Collectives of `before` and those of `after` that stand for them, such that no other has a part in it."""

    was: tuple[Op, ...]
    now: tuple[Op, ...]

    @property
    def is_untouched(self) -> bool:
        if len(self.was) != 1 or len(self.now) != 1:
            return False
        return (self.was[0].name, self.was[0].sources) == (self.now[0].name, self.now[0].sources)


def collectives_accounted(change: Change) -> Iterator[tuple[str, str]]:
    """Collectives are neither lost nor invented: merged and split ones send the same, and as many bytes of it.

    Unless it can be proved that what is received stays the same; and what was received several times may be received
    less often. A collective may go on inside a matmul.
    """
    before, after, origins = change.before, change.after, change.starts
    for name, known in origins.items():
        if not known:
            yield name, f"%{name} is a collective that was not there before"
    kept = {name for names in origins.values() for name in names}
    for op in before.communicating:
        if op.name not in kept and not change.proofs.proved([op], []):
            yield "", f"the collective %{op.name} was lost"
    found = [
        _Family(tuple(before[name] for name in was), tuple(after[name] for name in now))
        for was, now in families(origins)
    ]
    yield from _sent_and_received(change, [family for family in found if not family.is_untouched])


def _sent_and_received(change: Change, changed: list[_Family]) -> Iterator[tuple[str, str]]:
    """What is wrong with families, unless it can be proved that their results are what they were all the same."""
    if not changed:
        return
    seen, sees = change.sights
    bytes_of = {family: [*_bytes_kept(family, change)] for family in changed}
    sent_by = {family: [*_sent_alike(family, seen, sees, change.before)] for family in changed}
    wrong = [family for family in changed if bytes_of[family] or sent_by[family]]
    wrong = [family for family in wrong if not change.proofs.proved(family.was, family.now)]
    wrong = [family for family in wrong if sent_by[family] or not _repeats_left_out(family, change)]
    for found in (bytes_of, sent_by):
        for family in wrong:
            yield from found[family]


def group_order(change: Change) -> Iterator[tuple[str, str]]:
    """Within a group, collectives are issued in the order in which they were; a bucket counts as its first member."""
    before, after, origins = change.before, change.after, change.starts
    issued: dict[str, list[tuple[int, str]]] = {}
    for op in after.communicating:
        if op.collective is not None and origins[op.name]:
            place = min(before.index[name] for name in origins[op.name])
            issued.setdefault(op.collective.group.name, []).append((place, op.name))
    for group, starts in issued.items():
        for (first, one), (second, other) in pairwise(starts):
            if second < first:
                yield other, f"%{one} was issued after %{other} in group {group}, and now comes before it"


def _bytes_kept(family: _Family, change: Change) -> Iterator[tuple[str, str]]:
    was, now = _moved(family.was, change.before), _moved(family.now, change.after)
    if was != now:
        others = {ranks for _, ranks in was} != {ranks for _, ranks in now}
        shown = [
            f"{named(op.name for op in ops)}: {_show(moved, others)}"
            for ops, moved in ((family.now, now), (family.was, was))
        ]
        yield family.now[-1].name, f"{shown[0]}; before, {shown[1]}"


def _repeats_left_out(family: _Family, change: Change) -> bool:
    """Whether there are fewer bytes only because what was done several times is not done as often any more.

    What is sent has been looked at: all of it is still sent at least once.
    """
    once = _moved(change.proofs.without_repeats(family.was, family.now), change.before)
    was, now = _moved(family.was, change.before), _moved(family.now, change.after)
    return once.keys() == now.keys() and all(once[key] <= now[key] <= was[key] for key in now)


def _moved(ops: Iterable[Op], program: Program) -> dict[tuple[str, tuple[int, ...]], int]:
    """Bytes by what must stay: kind, reduction and what is reduced, root, group."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for op in ops:
        comm = op.collective
        if comm is None:
            continue
        for dtype, size in _sizes(op, comm, program):
            how = f" ({comm.reduce_op} of {dtype})" if comm.reduce_op else ""
            root = f" from rank {op.argument(1)}" if comm.kind == "broadcast" else ""
            key = f"{comm.kind}{how}{root} over {comm.group.name}", comm.group.ranks
            found[key] = found.get(key, 0) + size
    return found


def _sizes(op: Op, comm: Collective, program: Program) -> list[tuple[str, int]]:
    """For each result of a collective, its dtype and the bytes of the whole."""
    if op.inside is not None:
        return [(op.out[0].dtype, inside_bytes(program, op))]
    return [(spec.dtype, whole_bytes(comm, spec.nbytes)) for spec in op.out]


def _show(moved: Mapping[tuple[str, tuple[int, ...]], int], with_ranks: bool) -> str:
    return " and ".join(
        f"{size} bytes by {how}" + (f" {list(ranks)}" if with_ranks else "") for (how, ranks), size in moved.items()
    )


def _sent_alike(family: _Family, was: Sights, now: Sights, before: Program) -> Iterator[tuple[str, str]]:
    """What is sent is made from what was sent: from all of it, and from nothing else."""
    names = [op.name for op in family.was]
    sent, sends = was.places_sent(names), now.places_sent(op.name for op in family.now)
    # One half of a collective may feed the other.
    own = frozenset[int]().union(*(was.layout.places(name) for name in names))
    culprit, old, new = family.now[-1].name, named(names), named(op.name for op in family.now)
    for place in sorted(sends - sent - own):
        yield culprit, f"%{maker_of(place, before)} is sent by {new}, and was not by {old}"
    for place in sorted(sent - sends):
        yield culprit, f"%{maker_of(place, before)} was sent by {old}, and is not by {new}"
