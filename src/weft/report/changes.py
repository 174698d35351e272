"""What became of the ops of one program in another: what was merged, split, replaced, moved, is new or gone.

With the timelines of both, every change has the time that it takes of the step before and after: a collective for as
long as it is exposed, any other op for as long as the compute stream works on it. A step is nothing but these, so what
the changes bought adds up to what the step became shorter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from weft.analysis.pairs import pairs
from weft.ir.program import Op, Program
from weft.sim.timeline import Timeline
from weft.verify.heirs import Heirs, families

KINDS = ("merged", "split", "rearranged", "replaced", "moved", "new", "gone", "kept")


@dataclass(frozen=True, slots=True)
class Change:
    """What became of the ops `before`, in which those named in `after` stand for them now.

    - `kind`: one of KINDS. Several that became one are merged, one that became several was split, several that became
      several others were rearranged, and one that became one of another kind was replaced
    - `what`: what they are, such as "all_gather over dp"; empty for ops of all kinds that do not communicate
    - `collective`: whether some of them communicate
    - `start_later`, `wait_later`: of a collective that was moved, how many other ops its start and its wait have passed
    - `before_us`, `after_us`: what they take of the step; None where nobody simulated it. `exposed` says that this is
      nothing but the time for which collectives are exposed
    """

    kind: str
    what: str
    collective: bool
    before: tuple[str, ...]
    after: tuple[str, ...]
    origin: str = ""
    start_later: int = 0
    wait_later: int = 0
    before_us: float | None = None
    after_us: float | None = None
    exposed: bool = False

    @property
    def gain_us(self) -> float:
        """What the change bought: how much less of the step they take."""
        return (self.before_us or 0.0) - (self.after_us or 0.0)


def changes(before: Program, after: Program, timelines: tuple[Timeline, Timeline] | None = None) -> tuple[Change, ...]:
    """All changes from one program to another, those that bought most first; `timelines` are those of the two.

    Waits belong to their collectives, and views take no time: they are not looked at.
    """
    price = _price(timelines)
    found = [*_families(before, after)]
    collectives = [family for family in found if family.communicates]
    others = [family for family in found if not family.communicates]
    changed = [*_collectives(before, after, collectives, price), *_others(before, after, others, price)]
    return tuple(sorted(changed, key=lambda one: (one.gain_us == 0, -one.gain_us)))


_Price = Callable[[Iterable[str], Iterable[str]], tuple[float | None, float | None]]


def _price(timelines: tuple[Timeline, Timeline] | None) -> _Price:
    """What ops of the first and of the second program take of the step."""
    if timelines is None:
        return lambda was, now: (None, None)
    first, second = map(_taken, timelines)
    return lambda was, now: (sum(first.get(name, 0.0) for name in was), sum(second.get(name, 0.0) for name in now))


def _taken(timeline: Timeline) -> Mapping[str, float]:
    spans = zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True)
    working = {op.name: end - begin for op, begin, end in spans if end > begin and not op.is_wait}
    return {**working, **timeline.exposed}


# Who stands for whom


@dataclass(frozen=True)
class _Family:
    """Ops of the first program, and those of the second that stand for them; those that communicate come first."""

    was: tuple[Op, ...]
    now: tuple[Op, ...]

    @property
    def communicates(self) -> bool:
        return any(op.collective is not None for op in (*self.was, *self.now))

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(op.name for op in self.was), tuple(op.name for op in self.now)

    @property
    def what(self) -> str:
        """What they are; where that changed, both."""
        sides = [" and ".join(dict.fromkeys(map(_what, ops))) for ops in (self.was, self.now) if ops]
        return " → ".join(dict.fromkeys(sides))

    @property
    def kind(self) -> str:
        """The kind of change, by the collectives if there are some on both sides; what stayed is "kept"."""
        if not self.was or not self.now:
            return "gone" if self.was else "new"
        was, now = ([op for op in ops if op.collective is not None] for ops in (self.was, self.now))
        if not was or not now:
            was, now = [*self.was], [*self.now]
        if len(was) > 1:
            return "merged" if len(now) == 1 else "rearranged"
        if len(now) > 1:
            return "split"
        same = len(self.was) == len(self.now) and _what(was[0]) == _what(now[0])
        return "kept" if same else "replaced"


def _what(op: Op) -> str:
    if op.collective is None:
        return op.target
    inside = f" inside {op.target}" if op.inside is not None else ""
    return f"{op.collective.kind}{inside} over {op.collective.group.name}"


def _families(before: Program, after: Program) -> Iterator[_Family]:
    """All ops that work, each in one family; one side is empty for what is gone or new."""
    left = {op.name: op for op in before.ops if _works(op)}
    heirs, known = Heirs(before, after), frozenset(left)
    origins = {op.name: tuple(name for name in heirs.origins(op) if name in known) for op in after.ops if _works(op)}
    for was, now in families(origins):
        for name in was:
            del left[name]
        yield _Family(*(_in_order(program, names) for program, names in ((before, was), (after, now))))
    yield from (_Family((), (after[name],)) for name, found in origins.items() if not found)
    yield from (_Family((op,), ()) for op in left.values())


def _in_order(program: Program, names: Iterable[str]) -> tuple[Op, ...]:
    ops = [program[name] for name in sorted(names, key=program.index.__getitem__)]
    return tuple(sorted(ops, key=lambda op: op.collective is None))


def _works(op: Op) -> bool:
    return op.collective is not None or not (op.is_wait or op.is_input or op.traits.is_view)


# Collectives


def _collectives(before: Program, after: Program, found: Iterable[_Family], price: _Price) -> Iterator[Change]:
    shifts = _Shifts(before, after)
    for family in found:
        was, now = family.names
        kind = family.kind
        start, wait = shifts.of(was[0], now[0]) if kind == "kept" else (0, 0)
        origin = (family.was or family.now)[0].origin
        kind = "moved" if start or wait else kind
        starts = all(op.is_start for op in (*family.was, *family.now))
        yield Change(kind, family.what, True, was, now, origin, start, wait, *price(was, now), starts)


class _Shifts:
    """By how many ops starts and waits were moved. Ops that are in both programs are what is counted."""

    def __init__(self, before: Program, after: Program) -> None:
        first, second = (
            {op.name for op in program.ops if _works(op) and op.collective is None} for program in (before, after)
        )
        common = first & second
        self._sides = [(program, _passed(program, common)) for program in (before, after)]

    def of(self, was: str, now: str) -> tuple[int, int]:
        """How many more ops come before the start, and before the first wait."""
        (first, first_wait), (second, second_wait) = (
            self._places(side, name) for side, name in zip(self._sides, (was, now), strict=True)
        )
        return second - first, second_wait - first_wait

    def _places(self, side: tuple[Program, Mapping[str, int]], name: str) -> tuple[int, int]:
        program, passed = side
        waits = pairs(program).waits.get(name, ())
        return passed[name], passed[min(waits, key=program.index.__getitem__)] if waits else passed[name]


def _passed(program: Program, common: set[str]) -> Mapping[str, int]:
    """How many of the common ops come before each op."""
    counts = accumulate((op.name in common for op in program.ops), initial=0)
    return dict(zip((op.name for op in program.ops), counts, strict=False))


# Other ops


def _others(before: Program, after: Program, found: Sequence[_Family], price: _Price) -> Iterator[Change]:
    """Ops that do not communicate: those with the same targets and fate are one change."""
    stay = [family.names for family in found if family.kind == "kept"]
    moved = _moved({before.index[was]: after.index[now] for (was,), (now,) in stay})
    alike: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for family in found:
        was, now = family.names
        kind, what = family.kind, family.what
        if kind == "kept":
            kind, what = ("moved" if before.index[was[0]] in moved else kind), ""
        both = alike.setdefault((kind, what), ([], []))
        both[0].extend(was)
        both[1].extend(now)
    for (kind, what), (first, second) in alike.items():
        yield Change(kind, what, False, tuple(first), tuple(second), "", 0, 0, *price(first, second))


def _moved(places: Mapping[int, int]) -> frozenset[int]:
    """Given where each op was and is: the fewest that must be moved to get from one order to the other."""
    ends: list[int] = []  # the least place at which an ascending run of each length ends
    lengths: dict[int, int] = {}
    for was in sorted(places):
        length = bisect_left(ends, places[was])
        ends[length : length + 1] = [places[was]]
        lengths[was] = length
    left, kept = len(ends) - 1, set()
    for was in sorted(places, reverse=True):
        if lengths[was] == left:
            kept.add(was)
            left -= 1
    return frozenset(places) - kept
