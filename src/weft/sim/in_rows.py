"""The collectives of each segment that come one after the other, with what is computed between them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import frexp, ldexp

from weft.sim.between import Between
from weft.sim.delays import Delay
from weft.sim.fences import Edge, fences, total
from weft.sim.pieced import COUNTS
from weft.sim.rows import Row
from weft.sim.stretches import NOTHING, Member, Span, Work

_KEPT_BITS = 7  # of times that are rounded down
_WIDTH = 0.1  # of all work of a segment: fences with so much between them are told apart


@dataclass(frozen=True)
class InRows:
    """The row of each segment; and by segment the places of its members, and of what may be done in it or later that
    the last of them leads to."""

    rows: Sequence[Row]
    members: Sequence[Sequence[int]]
    late: Sequence[Sequence[int]]

    def alone(self, us: Mapping[int, float]) -> InRows:
        """The same if each member is in flight for so long that nothing else is."""
        found = []
        for row, places in zip(self.rows, self.members, strict=True):
            each = zip(row.members, places, strict=True)
            found.append(replace(row, members=tuple(replace(one, alone_us=us.get(place, 0.0)) for one, place in each)))
        return replace(self, rows=found)

    def delays(self, slowdown: float) -> list[Delay]:
        """For each segment, by how much it is longer at least than what is computed in it. Rows that are alike, as
        those of layers are, are looked at once."""
        known = {row: row.delay(slowdown) for row in set(self.rows)}
        return [known[row] for row in self.rows]


def in_rows(between: Between) -> InRows:
    """The rows of all segments."""
    numbers, behind = _numbered(between)
    count = len(between.chain) + 1
    starts: list[list[int]] = [[] for _ in range(count)]
    for place in numbers:
        starts[between.first[place]].append(place)
    ahead = _ahead(between, numbers, [len(one) for one in starts])
    spans: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(count)]
    late: list[list[int]] = [[] for _ in range(count)]
    for place, (first, last) in enumerate(zip(between.first, between.last, strict=True)):
        if 0 <= first == last and place not in numbers:
            spans[first].setdefault((behind[place], ahead[place]), []).append(place)
        elif 0 <= first < last and 0 < behind[place] == len(starts[first]):
            late[first].append(place)
    known: dict[Hashable, Member] = {}
    rows = [_row(between, segment, *one, known) for segment, one in enumerate(zip(starts, spans, late, strict=True))]
    return InRows(rows, starts, late)


def _row(
    between: Between,
    segment: int,
    starts: Sequence[int],
    spans: Mapping[tuple[int, int], Sequence[int]],
    late: Sequence[int],
    known: dict[Hashable, Member],
) -> Row:
    """The row of a segment: its starts, by span what is computed, and what may be done late."""
    members = [_member(between, place, known) for place in starts]
    ends = [starts[max(0, number - 1) : number + 1] for number in range(len(starts) + 1)]
    width = _WIDTH * sum(_work(between, places) for places in spans.values())
    own = [_span(between, spans.get((number, number), []), two, width) for number, two in enumerate(ends)]
    across = sorted((span, _work(between, places)) for span, places in spans.items() if span[0] < span[1])
    behind = {*spans.get((len(starts), len(starts)), [])}
    following = between.chain[segment] if segment < len(between.chain) else -1
    closing = [us for place, us in between.parts.closing.get(following, ()) if place in behind]
    return Row(tuple(members), tuple(own), tuple(across), _work(between, late), max(closing, default=0.0))


def _member(between: Between, place: int, known: dict[Hashable, Member]) -> Member:
    """A start as a member, which may be `known` from one that is like it."""
    starts, inside = between.parts.starts, between.parts.extras.get(place)
    key = starts.known[place], tuple(sorted(starts.mates.others[place].items())), inside
    if key not in known:
        cut = map(_rounded_down, starts.cut_us(place, [least for least, _ in COUNTS]))
        pieces = starts.pieces_us(place, [most for _, most in COUNTS])
        group = starts.known[place][0].group.name
        known[key] = Member(group, starts.whole_us(place), tuple(cut), tuple(pieces), inside)
    return known[key]


def _span(between: Between, places: Sequence[int], ends: Sequence[int], width: float) -> Span:
    """What is computed by some ops, between two members or at an end of the segment; fences are so wide."""
    works = [_one(between, place) for place in places]
    if len(ends) < 2:
        return Span(total(works), (), False)
    here = [ends[0], *places, ends[1]]
    number = {place: index for index, place in enumerate(here)}
    edges: dict[Edge, bool] = {
        (number[other], number[place]): soft
        for place in here[1:]
        for other, soft in between.parts.before[place]
        if other in number
    }
    return Span(total(works), fences([NOTHING, *works, NOTHING], [*edges], width), all(edges.values()))


def _one(between: Between, place: int) -> Work:
    """What one op computes."""
    us = between.parts.loads["compute"].get(place, 0.0)
    return Work(us, between.parts.dearer.get(place, NOTHING.dearer)) if us else NOTHING


def _work(between: Between, places: Sequence[int]) -> float:
    """How long the compute stream works on some ops; rounded, so that rows that are alike are found to be so."""
    work = between.parts.loads["compute"]
    return round(sum(work.get(place, 0.0) for place in places), 9)


def _rounded_down(us: float) -> float:
    """A time that is less by a hundredth at most. Those of layers differ by as much, as they have other mates."""
    mantissa, exponent = frexp(us)
    return ldexp(int(ldexp(mantissa, _KEPT_BITS)), exponent - _KEPT_BITS)


def _numbered(between: Between) -> tuple[Mapping[int, int], Sequence[int]]:
    """The starts that are members of rows, with their numbers, and for each op the last member that leads to it."""
    numbers: dict[int, int] = {}
    longest = [0] * (len(between.chain) + 1)
    behind: list[int] = []
    for place, edges in enumerate(between.parts.before):
        segment, last = between.first[place], 0
        for other, _ in edges:
            if between.first[other] == segment:
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
