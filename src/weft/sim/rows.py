"""Collectives that come one after the other in a segment, each of them whole, in pieces, or inside a matmul.

docs/bounds.md has the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.sim.delays import Delay
from weft.sim.stretches import Cost, Fence, Member, Span, Stretch, best

_LONGEST = 16  # collectives: a longer row is not looked at


@dataclass(frozen=True)
class Point:
    """Where what is cut as one begins or ends: at member number `at`, counted from 0, or at an end of the segment; or
    in span number `at`, where pieces are put together."""

    at: int
    fence: Fence | None = None


@dataclass(frozen=True)
class Row:
    """The collectives of a segment of which each leads to the next, and what is computed in that segment: the span
    before the first, between two, and behind the last of them; and by (i, j) what comes behind member number i and
    before member number j + 1, in more than one span. The first member is number 1. So much that the last member leads
    to may be done in the segment or `late`r; and `closing` it takes so long behind the last piece of that."""

    members: tuple[Member, ...]
    spans: tuple[Span, ...]
    across: tuple[tuple[tuple[int, int], float], ...]
    late: float
    closing: float

    def delay(self, slowdown: float) -> Delay:
        """By how much the segment is longer than what is computed in it, at least."""
        if not 0 < len(self.members) <= _LONGEST:
            return Delay(0.0)
        work = sum(span.work.us for span in self.spans) + sum(us for _, us in self.across)
        costs = self._costs(1 - 1 / slowdown)
        return Delay.of([(cost.delay, max(0.0, cost.us - work)) for cost in costs])

    def _costs(self, slowed: float) -> Sequence[Cost]:
        """What the segment costs in every way that may be best.

        What is whole or inside a matmul ends all that leads to it, and lets begin all that it leads to; so do pieces
        that are put together. Between two of these, or the ends of the segment, all members are cut as one.
        """
        points = [*self._points()]
        found: dict[Point, Sequence[Cost]] = {points[0]: [Cost(0.0, 0.0)]}
        for number, last in enumerate(points[1:], start=1):
            costs: list[Cost] = []
            for first in points[:number]:
                costs += self._on_the_way(found[first], first, last, slowed)
            member = self.members[last.at] if last.fence is None and last.at < len(self.members) else None
            here = [*member.uncut(slowed)] if member is not None else []
            found[last] = best(one + other for one in best(costs) for other in here) if here else best(costs)
        return found[points[-1]]

    def _points(self) -> Iterator[Point]:
        """All of them in order: the beginning, each member with the places before it, and the end."""
        yield Point(-1)
        for number in range(len(self.members) + 1):
            if 0 < number < len(self.members):
                yield from (Point(number, fence) for fence in self.spans[number].fences)
            yield Point(number)

    def _on_the_way(self, known: Sequence[Cost], first: Point, last: Point, slowed: float) -> Iterator[Cost]:
        """What it costs up to a point, if it is known up to another one and all behind that is cut as one."""
        begin, end = first.at + (first.fence is None), last.at  # of the members
        low, high = begin + (first.fence is not None), end - (last.fence is not None)  # of the spans
        if begin == end and low == high:
            yield from (one + Cost(0.0, self.spans[begin].work.us) for one in known)
        inner = self.spans[begin + 1 : end]
        if begin >= end or not all(span.soft for span in inner):
            return
        across = sum(us for (one, other), us in self.across if low <= one and other <= high)
        before = first.fence.behind if first.fence is not None else self.spans[begin].work
        behind = last.fence.before if last.fence is not None else self.spans[end].work
        beside = self.spans[end].work.us - behind.us - last.fence.behind.us if last.fence is not None else 0.0
        late, closing = (self.late, self.closing) if end == len(self.members) else (0.0, 0.0)
        stretch = Stretch(self.members[begin:end], [span.work for span in inner], before, behind, across, closing)
        for length in stretch.lengths(slowed):
            yield from (one + length.cost(one.left, beside, late) for one in known)
