"""The best way to merge a chain of collectives that run one after the other on one stream.

A gradient is ready at some time, and a collective of several starts when the last of them is. To merge saves start-up
time and costs delay, and the copies that it takes delay the compute stream and with it all that comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A collective of the chain: when its input is there if nothing is merged, and how many bytes it has."""

    ready: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The links from number `first` up to `last`, without it, as one collective that ends at `end`."""

    first: int
    last: int
    end: float


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run the first links of a chain: how long copies took until then, and its last bucket, if any, behind
    the way to run those before."""

    end: float
    copied: float
    bucket: Bucket | None = None
    before: _Way | None = None

    def buckets(self) -> list[Bucket]:
        found: list[Bucket] = []
        way: _Way | None = self
        while way is not None and way.bucket is not None:
            found.append(way.bucket)
            way = way.before
        return found[::-1]


def best_buckets(
    links: Sequence[Link],
    us: Callable[[int], float],
    copy_us: Callable[[int], float],
    together: Callable[[int, int], bool],
    compute_us: float,
) -> list[Bucket]:
    """A chain in buckets so that the step ends first.

    `us` is the time of a collective by its bytes, `copy_us` that of the copies for a bucket of several; links from one
    number up to another can be `together` or not. The step lasts until the compute stream, which has `compute_us` to do
    besides the copies, and the chain are both done. Of equally good ways the one with the fewest copies wins, and of
    those the one with the fewest buckets.

    Exact, by dynamic programming: for each link the ways to end with it that no other way beats in time and in copies.
    Longer buckets are tried only as long as the one before them would still be under way when the last link is ready:
    beyond that, to merge more only takes longer.
    """
    ways: list[list[_Way]] = [[_Way(0.0, 0.0)]]
    for last, link in enumerate(links):
        found: list[_Way] = []
        nbytes = 0
        for first in range(last, -1, -1):
            if not together(first, last):
                break
            nbytes += links[first].nbytes
            copies = copy_us(nbytes) if first < last else 0.0
            took = us(nbytes)
            for way in ways[first]:
                end = max(way.end, link.ready + way.copied + copies) + took
                found.append(_Way(end, way.copied + copies, Bucket(first, last + 1, end), way))
            if all(way.end <= link.ready + way.copied for way in ways[first]):
                break
        ways.append(_undominated(found))
    best = min(ways[-1], key=lambda way: (max(way.end, compute_us + way.copied), way.copied, len(way.buckets())))
    return best.buckets()


def _undominated(ways: list[_Way]) -> list[_Way]:
    """Those that no other beats or equals in both end and copies, by their end."""
    kept: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.end, way.copied)):
        if not kept or way.copied < kept[-1].copied:
            kept.append(way)
    return kept
