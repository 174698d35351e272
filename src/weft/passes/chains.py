"""The best way to merge a chain of collectives that run one after the other on one stream.

A gradient is ready at some time, and a collective of several starts when the last of them is. To merge saves start-up
time and costs delay. The copies that it takes delay the compute stream, as any collective does while it is under way,
and with it all that comes later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

_BEAM = 4
_LONG = 160  # a chain of more links is cut only between runs of small ones
_DIGITS = 9  # of a size in binary: the error is below 0.4 %


@dataclass(frozen=True, slots=True)
class Link:
    """A collective of the chain: when its input is there if nothing delays it, how many bytes it has, and the number
    of the first link that it can be in a bucket with. Neither `ready` nor `reach` falls along a chain."""

    ready: float
    nbytes: int
    reach: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The links from number `first` up to `last`, without it, as one collective that ends at `end`."""

    first: int
    last: int
    end: float


@dataclass(frozen=True)
class Stream:
    """What a chain runs on.

    - `us`: the time of a collective by its bytes; `copy_us`: that of the copies for a bucket of several
    - `drag`: the share of a collective's time by which it delays the compute stream
    - `compute_us`: what the compute stream has to do besides
    """

    us: Callable[[int], float]
    copy_us: Callable[[int], float]
    compute_us: float
    drag: float = 0.0


class _Way(NamedTuple):  # many are made
    """One way to run the first links of a chain: when it ends, how long it has delayed the compute stream until then,
    and the `first` link of its last bucket, behind the way to run those before."""

    end: float
    delay: float
    first: int = -1
    before: _Way | None = None

    def buckets(self, last: int) -> list[Bucket]:
        """Its buckets, if it runs the links up to `last`."""
        found: list[Bucket] = []
        way = self
        while way.before is not None:
            found.append(Bucket(way.first, last, way.end))
            way, last = way.before, way.first
        return found[::-1]

    def rank(self, stream: Stream) -> tuple[float, float]:
        return max(self.end, stream.compute_us + self.delay), self.delay


def best_buckets(links: Sequence[Link], stream: Stream, slack: float = 0.0) -> list[Bucket]:
    """A chain in buckets so that the step ends first.

    The step lasts until the compute stream and the chain are both done. Of equally good ways the one with the least
    delay wins.

    By dynamic programming: for each link the ways to end with it that no other way beats in time and in delay. Exact
    without `slack`. With it, of ways that differ by less than that share of the step only those are followed that
    promise most, and a long chain is not cut everywhere: there are very many ways that are equally good for all that
    anybody could measure. What is found is never worse than `soonest_cuts` or the greedy rule's, so it is exact with
    `slack` too if nothing delays compute.
    """
    if not slack or not links:
        return _cut_between_runs(links, stream, slack)
    stream = replace(stream, us=_remembered(stream.us, 0.0), copy_us=_remembered(stream.copy_us, 0.0))
    searched = [bucket.last for bucket in _cut_between_runs(links, stream, slack)]
    # Each as it is, without what the search rounds.
    found = (searched, soonest_cuts(links, stream), _greedy_cuts(links, stream))
    return min((_run(links, stream, cuts) for cuts in found), key=lambda buckets: _rank(links, stream, buckets))


def soonest_cuts(links: Sequence[Link], stream: Stream) -> list[int]:
    """Where to cut a chain that nothing delays, so that it ends first: T(i) = min over j of max(T(j), r_i) + t(j..i),
    where the copies of a bucket of several are a part of t. Exact at any length if `us` and `copy_us` rise with bytes.

    T never falls, since a bucket without its last link ends no later. So of all j with T(j) <= r_i only the last can
    be best: it starts at r_i as they do and has the fewest bytes. After it starts only grow, so the first that is no
    better even with the least of t is the end. A link alone has no copies, and is looked at apart.
    """
    sums = [*accumulate((link.nbytes for link in links), initial=0)]
    us, copy_us = _remembered(stream.us, 0.0), _remembered(stream.copy_us, 0.0)
    ends, firsts, idle = [0.0], [0], 0
    for last, link in enumerate(links):
        least = us(link.nbytes)
        best, begin = max(ends[last], link.ready) + least, last
        while idle < last - 1 and ends[idle + 1] <= link.ready:
            idle += 1
        for first in range(max(idle, link.reach), last):
            start, nbytes = max(ends[first], link.ready), sums[last + 1] - sums[first]
            if start + least >= best:
                break
            best, begin = min((best, begin), (start + us(nbytes) + copy_us(nbytes), first))
        ends.append(best)
        firsts.append(begin)
    cuts = [len(links)]
    while firsts[cuts[-1]]:
        cuts.append(firsts[cuts[-1]])
    return cuts[::-1]


def _run(links: Sequence[Link], stream: Stream, cuts: Sequence[int]) -> list[Bucket]:
    """The buckets that end before these links, and when each of them ends."""
    found: list[Bucket] = []
    end = delay = 0.0
    for first, last in pairwise([0, *cuts]):
        nbytes = sum(link.nbytes for link in links[first:last])
        copies = stream.copy_us(nbytes) if last - first > 1 else 0.0
        took = stream.us(nbytes)
        end = max(end, links[last - 1].ready + delay + copies) + took
        delay += copies + took * stream.drag
        found.append(Bucket(first, last, end))
    return found


def _rank(links: Sequence[Link], stream: Stream, buckets: Sequence[Bucket]) -> tuple[float, float]:
    """How long the step takes with these buckets, and how long compute is delayed."""
    delay = 0.0
    for bucket in buckets:
        nbytes = sum(link.nbytes for link in links[bucket.first : bucket.last])
        delay += stream.us(nbytes) * stream.drag
        delay += stream.copy_us(nbytes) if bucket.last - bucket.first > 1 else 0.0
    return max(buckets[-1].end, stream.compute_us + delay), delay


def _greedy_cuts(links: Sequence[Link], stream: Stream) -> list[int]:
    """The rule known as MG-WFBP: a link joins those before it if it is ready before they have paid their start-up."""
    cuts: list[int] = []
    end, first, startup = 0.0, 0, stream.us(1)
    for number, link in enumerate(links):
        start = max(end, link.ready)
        following = links[number + 1] if number + 1 < len(links) else None
        if following is not None and following.reach <= first and following.ready < start + startup:
            continue
        end = start + stream.us(sum(one.nbytes for one in links[first : number + 1]))
        cuts.append(number + 1)
        first = number + 1
    return cuts


def _cut_between_runs(links: Sequence[Link], stream: Stream, slack: float) -> list[Bucket]:
    runs = _runs(links, _LONG) if slack else [(place, place + 1) for place in range(len(links))]
    begins = [first for first, _ in runs]
    grouped = [
        Link(
            links[last - 1].ready,
            sum(link.nbytes for link in links[first:last]),
            min(bisect_left(begins, links[last - 1].reach), number),
        )
        for number, (first, last) in enumerate(runs)
    ]
    best = min(_ways(grouped, stream, slack), key=lambda way: way.rank(stream)).buckets(len(grouped))
    return [replace(one, first=runs[one.first][0], last=runs[one.last - 1][1]) for one in best]


def _runs(links: Sequence[Link], most: int) -> list[tuple[int, int]]:
    """The chain in runs of neighbours that are small and can be together: about `most` of them, or as many as links."""
    small = sum(link.nbytes for link in links) / most if len(links) > most else 0
    runs: list[tuple[int, int]] = []
    nbytes = 0
    for place, link in enumerate(links):
        if runs and place > 0 and link.reach <= runs[-1][0] and nbytes + link.nbytes <= small:
            runs[-1] = (runs[-1][0], place + 1)
            nbytes += link.nbytes
        else:
            runs.append((place, place + 1))
            nbytes = link.nbytes
    return runs


def _ways(links: Sequence[Link], stream: Stream, slack: float) -> list[_Way]:
    """The ways to run all links that are worth following."""
    behind = [*accumulate((link.nbytes for link in reversed(links)), initial=0)][::-1]
    us, copy_us = _remembered(stream.us, slack), _remembered(stream.copy_us, slack)
    ways: list[list[_Way]] = [[_Way(0.0, 0.0)]]
    for last, link in enumerate(links):
        found: list[_Way] = []
        for first in range(last, link.reach - 1, -1):
            nbytes = behind[first] - behind[last + 1]
            copies = copy_us(nbytes) if first < last else 0.0
            took = us(nbytes)
            for way in ways[first]:
                end = max(way.end, link.ready + way.delay + copies) + took
                found.append(_Way(end, way.delay + copies + took * stream.drag, first, way))
        kept = _undominated(found)
        if slack:
            left = us(behind[last + 1]) if behind[last + 1] else 0.0
            kept.sort(key=lambda way: max(way.end + left, stream.compute_us + way.delay + left * stream.drag))
            kept = _distinct(kept[:_BEAM], slack * stream.compute_us)
        ways.append(kept)
    return ways[-1]


def _undominated(ways: list[_Way]) -> list[_Way]:
    """Those that no other beats or equals in both end and delay."""
    kept: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.end, way.delay)):
        if not kept or way.delay < kept[-1].delay:
            kept.append(way)
    return kept


def _distinct(ways: list[_Way], least: float) -> list[_Way]:
    """Those that differ in end or in delay from all that come before them."""
    kept: list[_Way] = []
    for way in ways:
        if all(abs(way.end - one.end) > least or abs(way.delay - one.delay) > least for one in kept):
            kept.append(way)
    return kept


def _remembered(us: Callable[[int], float], slack: float) -> Callable[[int], float]:
    """The same function, which is not asked twice for a size, or with `slack` for one that is nearly the same."""
    known: dict[int, float] = {}

    def asked(nbytes: int) -> float:
        if slack and (fine := nbytes.bit_length() - _DIGITS) > 0:
            nbytes = nbytes >> fine << fine
        if nbytes not in known:
            known[nbytes] = us(nbytes)
        return known[nbytes]

    return asked
