"""Collectives in a row that are cut as one, and what is computed between them. docs/bounds.md has the proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from weft.sim.pieced import COUNTS


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a part of a segment: by how much compute is `delay`ed in any case, and how long it takes besides, whatever is
    computed in it; and how much has been left to do of what lies beside a place where pieces are put together."""

    delay: float
    us: float
    left: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.delay + other.delay, self.us + other.us, other.left)


@dataclass(frozen=True)
class Member:
    """A collective of a row: how long it takes whole, and what it adds inside a matmul; and for each of COUNTS how long
    its pieces keep its group busy, and how long any one of them takes, at the least. Unless it is inside a matmul, it
    is in flight for so long that nothing else is, `alone_us`, if that is known."""

    group: str
    whole_us: float
    cut_us: tuple[float, ...]
    piece_us: tuple[float, ...]
    inside_us: float | None
    alone_us: float | None = None

    def uncut(self, slowed: float) -> Iterator[Cost]:
        """What it costs in one piece, and inside a matmul if that may be."""
        delay = slowed * (self.whole_us if self.alone_us is None else self.alone_us)
        yield Cost(delay, (1 - slowed) * self.whole_us)
        if self.inside_us is not None:
            yield Cost(self.inside_us, 0.0)


@dataclass(frozen=True)
class Work:
    """What is computed, and by how much it takes longer in pieces, for each of COUNTS."""

    us: float
    dearer: tuple[float, ...]


NOTHING = Work(0.0, (0.0,) * len(COUNTS))


@dataclass(frozen=True)
class Fence:
    """A place where pieces might be put together, so that all of what comes before it has ended before anything begins
    that comes behind it."""

    before: Work
    behind: Work


@dataclass(frozen=True)
class Span:
    """What is computed behind one member of a row and before the next, and the `fences` in it. `soft` says whether it
    may also go on in the same pieces all the way."""

    work: Work
    fences: tuple[Fence, ...]
    soft: bool


@dataclass(frozen=True, slots=True)
class Length:
    """How long a stretch takes besides what delays compute: from end to end; from its beginning to one of its members;
    from a member to its end; and from one member to another. Only what is sure to be done there counts."""

    delay: float
    through: float
    begin: float
    end: float
    inner: float

    def cost(self, left: float, beside: float, late: float) -> Cost:
        """With what was `left` to do before, and with as much of what lies `beside` its end as fits in for nothing. So
        much may be done in it that can be done `late`r as well."""
        us = max(self.through + left, self.begin + left, self.end, self.inner)
        room = us - max(self.through + left, self.end)
        return Cost(self.delay, us - late, max(0.0, beside - room))


@dataclass(frozen=True)
class Stretch:
    """Members that are cut into as many pieces each, with the work of the `inner` spans between them.

    So much is computed `before` the first of them and `behind` the last, which may be cut as well, and in more than one
    span, `across`. Behind the last piece of the last member it takes no less than `closing`.
    """

    members: Sequence[Member]
    inner: Sequence[Work]
    before: Work
    behind: Work
    across: float
    closing: float

    def lengths(self, slowed: float) -> Iterator[Length]:
        """How long it takes in so many pieces, for each of COUNTS, by the longest way through it."""
        for count in range(len(COUNTS)):
            for before, behind in product(_in_one_or_more(self.before, count), _in_one_or_more(self.behind, count)):
                yield self._length(_Cut(self, count, before, behind, 1 - slowed), slowed)

    def _length(self, cut: _Cut, slowed: float) -> Length:
        end = len(self.members) + 1
        numbers = range(1, end)
        inner = [cut.by_compute(one, other) for one in numbers for other in numbers if one < other]
        return Length(
            slowed * cut.in_flight() + cut.added,
            cut.by_compute(0, end) + self.across - cut.added,
            max(cut.by_compute(0, last) for last in numbers) - cut.added,
            max(cut.by_compute(first, end) for first in numbers) - cut.added,
            max([cut.by_groups(), *inner]) - cut.added,
        )


# Work at an end of a stretch: all of it, what it takes longer in pieces, and how much of it comes before the first
# piece of a member, or behind the last.
_End = tuple[float, float, float]


def _in_one_or_more(work: Work, count: int) -> Iterator[_End]:
    """Work at an end that is cut, and that is not: the latter only if it may be better."""
    yield work.us + work.dearer[count], work.dearer[count], (work.us + work.dearer[count]) / COUNTS[count][1]
    if work.dearer[count] > 0:
        yield work.us, 0.0, work.us


class _Cut:
    """A stretch in so many pieces, one of COUNTS. Its members are numbered from 1 on; 0 is its beginning.

    The first pieces of members come one after the other, each behind an m-th of the work before it, and the last ones
    likewise. From the first piece of one to the last piece of another, a group is busy with all pieces of its members,
    and the compute stream with all work between the two.
    """

    def __init__(self, stretch: Stretch, count: int, before: _End, behind: _End, share: float) -> None:
        self._members, self._count, self._share = stretch.members, count, share
        most = COUNTS[count][1]
        self._pieces = [share * member.piece_us[count] for member in stretch.members]
        work = [one.us + one.dearer[count] for one in stretch.inner]
        self._heads = _chained(before[2], self._pieces, work, most)
        self._tails = _chained(max(behind[2], stretch.closing), self._pieces[::-1], work[::-1], most)[::-1]
        self._done = [*accumulate([before[0], *work, behind[0]], initial=0.0)]
        self.added = before[1] + sum(one.dearer[count] for one in stretch.inner) + behind[1]

    def in_flight(self) -> float:
        """For how long any of its members is in flight, and, if that is known of them, nothing else."""
        alone = [one.alone_us for one in self._members if one.alone_us is not None]
        return sum(alone) if len(alone) == len(self._members) else max(self._busy(1, len(self._members)).values())

    def by_compute(self, first: int, last: int) -> float:
        """By all work from the first piece of one member, or from the beginning, to the last piece of another, or to
        the end."""
        begun = self._heads[first - 1] + self._pieces[first - 1] if first > 0 else 0.0
        left = self._pieces[last - 1] + self._tails[last - 1] if last <= len(self._members) else 0.0
        return begun + self._done[last] - self._done[first] + left

    def by_groups(self) -> float:
        """By all pieces of a group from one member to another."""
        numbered = [*enumerate(self._members, start=1)]
        return max(
            self._heads[first - 1] + self._share * self._busy(first, last)[one.group] + self._tails[last - 1]
            for first, one in numbered
            for last, other in numbered[first - 1 :]
            if one.group == other.group
        )

    def _busy(self, first: int, last: int) -> dict[str, float]:
        """For how long each group is busy with all pieces from one member to another."""
        busy: dict[str, float] = {}
        for one in self._members[first - 1 : last]:
            busy[one.group] = busy.get(one.group, 0.0) + one.cut_us[self._count]
        return busy


def _chained(first: float, pieces: Sequence[float], work: Sequence[float], most: float) -> list[float]:
    """For each member, how long it takes until its first piece can begin: one piece of each before it, and one of so
    many of the work before them; `first` is that for the first."""
    found = [first]
    for piece, us in zip(pieces, work, strict=False):
        found.append(found[-1] + piece + us / most)
    return found


def best(costs: Iterable[Cost]) -> list[Cost]:
    """Those that are not as bad as another one in every way."""
    found: list[Cost] = []
    for cost in sorted(set(costs), key=lambda one: (one.delay, one.us, one.left)):
        if not any(one.us <= cost.us and one.left <= cost.left for one in found):
            found.append(cost)
    return found
