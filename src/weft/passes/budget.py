"""How much memory decisions may take: each is tried on the bytes that live at each op, and kept if it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from weft.analysis.memory import memory
from weft.ir.program import Program

Lease = tuple[int, int, int]  # from this position to that one, both included, so many bytes more (or fewer)


class Budget:
    """The memory of a program while decisions are taken.

    `increase` is by how many bytes its peak may rise; None is without limit.
    """

    def __init__(self, program: Program, increase: int | None) -> None:
        known = memory(program)
        self._bytes = list(known.bytes_at)
        self.limit = known.peak_bytes + increase if increase is not None else inf

    def peak(self, leases: Sequence[Lease]) -> int:
        """The highest that memory would rise, where these leases raise it; 0 if they do not raise it anywhere."""
        raised = [max(self._bytes[first:last]) + more for first, last, more in _net(leases) if more > 0]
        return max(raised, default=0)

    def take(self, leases: Sequence[Lease]) -> bool:
        """Take the leases if that does not raise memory above the limit."""
        if self.peak(leases) > self.limit:
            return False
        for first, last, more in _net(leases):
            self._bytes[first:last] = [size + more for size in self._bytes[first:last]]
        return True


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
