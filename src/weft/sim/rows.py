"""Collectives that come one after the other in a segment, each of them whole, in pieces, or inside a matmul.

docs/bounds.md has the proof.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from weft.sim.between import Between
from weft.sim.delays import Delay

# Into how many pieces a collective is cut: so many at least, and so many at most.
_COUNTS = ((2, 2.0), (3, 3.0), (4, 4.0), (5, 8.0), (9, inf))
_LONGEST = 16  # collectives: a longer row is not looked at

# By how much compute is delayed in any case, and how long the segment takes besides, whatever is computed in it.
Cost = tuple[float, float]


@dataclass(frozen=True)
class Member:
    """A collective of a row: how long it takes whole, in so many pieces or more, and what it adds inside a matmul."""

    group: str
    whole_us: float
    cut_us: tuple[float, ...]
    inside_us: float | None

    def uncut(self, slowed: float) -> Iterator[Cost]:
        """What it costs in one piece, and inside a matmul if that may be."""
        yield self.whole_us * slowed, self.whole_us * (1 - slowed)
        if self.inside_us is not None:
            yield self.inside_us, 0.0


@dataclass(frozen=True)
class Row:
    """The collectives of a segment of which each leads to the next, and what is computed in that segment: by (i, j), so
    many microseconds of what comes behind member number i and before member number j + 1. The first is number 1."""

    members: tuple[Member, ...]
    compute: tuple[tuple[tuple[int, int], float], ...]

    def delay(self, slowdown: float) -> Delay:
        """By how much the segment is longer than what is computed in it, at least."""
        work = sum(us for _, us in self.compute)
        costs = self._costs(1 - 1 / slowdown)
        return Delay.of([(delay, max(0.0, us - work)) for delay, us in costs])

    def _costs(self, slowed: float) -> Sequence[Cost]:
        """What the segment costs in every way that may be best.

        What is whole or inside a matmul ends all that leads to it, and lets begin all that it leads to. Between two of
        these, or the ends of the segment, all members are cut.
        """
        end = len(self.members) + 1
        costs: list[Sequence[Cost]] = [[(0.0, 0.0)]]  # up to each member, that one included
        for last in range(1, end + 1):
            here = [*self.members[last - 1].uncut(slowed)] if last < end else [(0.0, 0.0)]
            found: list[Cost] = []
            for first in range(last):
                found += _sums(costs[first], self._cut(first, last, slowed))
            costs.append(_best(_sums(_best(found), here)))
        return costs[-1]

    def _cut(self, first: int, last: int, slowed: float) -> Sequence[Cost]:
        """What it costs that all members between two others are cut."""
        members = self.members[first : last - 1]
        work = sum(us for (low, high), us in self.compute if first <= low and high < last)
        if not members:
            return [(0.0, work)]
        ends = [sum(us for span, us in self.compute if span == (at, at)) for at in (first, last - 1)]
        ways = _pipelined(members, *ends) if len({one.group for one in members}) == 1 else [(_busiest(members), 0.0)]
        return _best((busy * slowed, max(work, busy * (1 - slowed) + idle)) for busy, idle in ways)


def _pipelined(members: Sequence[Member], before: float, behind: float) -> Iterator[tuple[float, float]]:
    """For how long the group of some members is busy with their pieces, and for how long it is idle at the ends: a
    piece of what comes before the first is computed first, and a piece of what comes behind the last one at last."""
    inner = sum(one.cut_us[0] for one in members[1:-1])
    for number, (_, most) in enumerate(_COUNTS):
        if len(members) == 1:
            yield members[0].cut_us[number], (before + behind) / most
            continue
        for other, (_, pieces) in enumerate(_COUNTS):
            yield members[0].cut_us[number] + inner + members[-1].cut_us[other], before / most + behind / pieces


def _busiest(members: Sequence[Member]) -> float:
    """For how long the busiest group is busy with the pieces of some members."""
    busy: dict[str, float] = {}
    for one in members:
        busy[one.group] = busy.get(one.group, 0.0) + one.cut_us[0]
    return max(busy.values())


def _sums(some: Iterable[Cost], others: Sequence[Cost]) -> list[Cost]:
    return [(one[0] + other[0], one[1] + other[1]) for one in some for other in others]


def _best(costs: Iterable[Cost]) -> list[Cost]:
    """Those that are not as bad as another one in both ways."""
    found: list[Cost] = []
    for cost in sorted(costs):
        if not found or cost[1] < found[-1][1]:
            found.append(cost)
    return found


def rows_delayed(between: Between, slowdown: float) -> list[Delay]:
    """For each segment, by how much it is longer at least than what is computed in it. Rows that are alike, as those
    of layers are, are looked at once."""
    known: dict[Row, Delay] = {}
    found = []
    for row in _rows(between):
        if row not in known:
            known[row] = row.delay(slowdown) if len(row.members) <= _LONGEST else Delay(0.0)
        found.append(known[row])
    return found


def _rows(between: Between) -> Iterator[Row]:
    """The row of each segment."""
    numbers, behind = _numbered(between)
    parts, count = between.parts, len(between.chain) + 1
    members: list[list[Member]] = [[] for _ in range(count)]
    asked: dict[Hashable, Member] = {}
    for place in numbers:
        beside = tuple(sorted(parts.starts.mates.others[place].items()))
        key = parts.starts.known[place], beside, parts.extras.get(place)
        if key not in asked:
            asked[key] = _member(between, place)
        members[between.first[place]].append(asked[key])
    ahead = _ahead(between, numbers, [len(one) for one in members])
    compute: list[dict[tuple[int, int], float]] = [{} for _ in range(count)]
    for place, us in parts.loads["compute"].items():
        if 0 <= (segment := between.first[place]) == between.last[place]:
            span = behind[place], ahead[place]
            compute[segment][span] = compute[segment].get(span, 0.0) + us
    for row, spans in zip(members, compute, strict=True):
        # Rounded, so that rows that are alike are found to be so.
        yield Row(tuple(row), tuple(sorted((span, round(us, 9)) for span, us in spans.items())))


def _member(between: Between, place: int) -> Member:
    starts = between.parts.starts
    cut = starts.cut_us(place, [least for least, _ in _COUNTS])
    group = starts.known[place][0].group.name
    return Member(group, starts.whole_us(place), tuple(cut), between.parts.extras.get(place))


def _numbered(between: Between) -> tuple[Mapping[int, int], Sequence[int]]:
    """The starts that are members of rows, with their numbers, and for each op the last member that leads to it."""
    numbers: dict[int, int] = {}
    longest = [0] * (len(between.chain) + 1)
    behind: list[int] = []
    for place, edges in enumerate(between.parts.before):
        segment, last = between.first[place], 0
        for other, _ in edges:
            if between.first[other] == segment == between.last[other]:
                last = max(last, numbers.get(other, behind[other]))
        behind.append(last)
        # All members before it lead to it if the last one does.
        if place in between.parts.starts.known and segment == between.last[place] and last == longest[segment]:
            numbers[place] = longest[segment] = last + 1
    return numbers, behind


def _ahead(between: Between, numbers: Mapping[int, int], lengths: Sequence[int]) -> Sequence[int]:
    """For each op that is in a segment, the number of the member before the first one that it leads to."""
    found = [lengths[segment] if segment >= 0 else 0 for segment in between.last]
    for place in reversed(range(len(found))):
        segment = between.last[place]
        first = numbers[place] - 1 if place in numbers else found[place]
        for other, _ in between.parts.before[place]:
            if between.last[other] == segment == between.first[place]:
                found[other] = min(found[other], first)
    return found
