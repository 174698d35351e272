"""How much memory decisions may take: each is tried on the bytes that live at each op, and kept if it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from weft.analysis.memory import memory
from weft.ir.program import Program

Lease = tuple[int, int, int]  # from this position to that one, both included, so many bytes more (or fewer)

_BLOCK = 256


class Budget:
    """The memory of a program while decisions are taken.

    `increase` is by how many bytes its peak may rise; None is without limit.
    """

    def __init__(self, program: Program, increase: int | None) -> None:
        known = memory(program)
        self._levels = _Levels(known.bytes_at)
        self.limit = known.peak_bytes + increase if increase is not None else inf

    def peak(self, leases: Sequence[Lease]) -> int:
        """The highest that memory would rise, where these leases raise it; 0 if they do not raise it anywhere."""
        raised = [self._levels.highest(first, last) + more for first, last, more in _net(leases) if more > 0]
        return max(raised, default=0)

    def take(self, leases: Sequence[Lease]) -> bool:
        """Take the leases if that does not raise memory above the limit."""
        if self.peak(leases) > self.limit:
            return False
        for first, last, more in _net(leases):
            self._levels.add(first, last, more)
        return True


class _Levels:
    """Bytes by position, in blocks, so that long stretches cost little. The end of a stretch is not included."""

    def __init__(self, levels: Sequence[int]) -> None:
        self._blocks = [list(levels[first : first + _BLOCK]) for first in range(0, len(levels), _BLOCK)]
        self._highest = [max(block) for block in self._blocks]
        self._more = [0] * len(self._blocks)  # for each block, what was added to all of it

    def highest(self, first: int, last: int) -> int:
        """The most that lives anywhere in a stretch."""
        found = []
        for block, begin, end in self._parts(first, last):
            whole = end - begin == len(self._blocks[block])
            highest = self._highest[block] if whole else max(self._blocks[block][begin:end])
            found.append(highest + self._more[block])
        return max(found)

    def add(self, first: int, last: int, more: int) -> None:
        """Let so much more live in a stretch."""
        for block, begin, end in self._parts(first, last):
            levels = self._blocks[block]
            if end - begin == len(levels):
                self._more[block] += more
            else:
                levels[begin:end] = [level + more for level in levels[begin:end]]
                self._highest[block] = max(levels)

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """The blocks that a stretch lies in, with the part of each."""
        for block in range(first // _BLOCK, (last - 1) // _BLOCK + 1):
            start = block * _BLOCK
            yield block, max(0, first - start), min(len(self._blocks[block]), last - start)


def _net(leases: Sequence[Lease]) -> Iterator[Lease]:
    """The same as stretches that do not overlap; here the end is not included."""
    change: dict[int, int] = {}
    for first, last, more in leases:
        if first <= last:
            change[first] = change.get(first, 0) + more
            change[last + 1] = change.get(last + 1, 0) - more
    total = 0
    for first, last in pairwise(sorted(change)):
        total += change[first]
        if total:
            yield first, last, total
