"""Combine by key: the one loop under every pass that makes one collective of several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window
from weft.ir.program import Program

T = TypeVar("T")


def combine(items: Iterable[T], key: Callable[[T], Hashable], fits: Callable[[Sequence[T], T], bool]) -> list[list[T]]:
    """Buckets of items with the same key, in the order of their first members.

    Each item joins the bucket of its key that is open, if it `fits` there, and opens the next one if not: the bucket
    before it is closed then. A bucket may have one member.
    """
    buckets: list[list[T]] = []
    unfilled: dict[Hashable, list[T]] = {}
    for item in items:
        its_key = key(item)
        bucket = unfilled.get(its_key)
        if bucket is not None and fits(bucket, item):
            bucket.append(item)
        else:
            unfilled[its_key] = [item]
            buckets.append(unfilled[its_key])
    return buckets


@dataclass(frozen=True, slots=True)
class Joint:
    """Members of a bucket as one: their bytes, and the window that is in the windows of all.

    It is kept up member by member: to look at all of them for each that may join takes too long in a large bucket.
    """

    nbytes: int
    ready: int
    due: int
    settled: int
    used: int

    @staticmethod
    def of(member: Window) -> Joint:
        """One member alone."""
        return Joint(total_bytes(member.start), member.ready, member.due, member.settled, member.used)

    def joined(self, other: Joint) -> Joint:
        """Both together."""
        return Joint(
            self.nbytes + other.nbytes,
            max(self.ready, other.ready),
            min(self.due, other.due),
            max(self.settled, other.settled),
            min(self.used, other.used),
        )

    @property
    def has_place(self) -> bool:
        """Whether there is a place where all can be launched, and one where all can be waited for."""
        return self.ready < self.due and self.settled < self.used


def place(members: Sequence[Window]) -> int | None:
    """The position behind which all members can be launched together, the nearest to the first of them; or None."""
    joint = reduce(Joint.joined, map(Joint.of, members))
    return min(max(members[0].position, joint.ready), joint.due - 1) if joint.has_place else None


def apart(program: Program, members: Sequence[Window]) -> str:
    """Why members have no place in common: what the last to be ready waits for, and who cannot wait so long."""
    if max(one.ready for one in members) < min(one.due for one in members):
        held, soon = max(members, key=lambda one: one.settled), min(members, key=lambda one: one.used)
        stop, user = program.ops[held.settled].name, program.ops[soon.used].name
        return f"%{held.start.name} is waited for after %{stop}, and %{user} needs %{soon.start.name}"
    due = min(members, key=lambda member: member.due)
    ready = max(members, key=lambda member: member.ready)
    user, maker = program.ops[due.due].name, program.ops[ready.ready].name
    late = "is given the result of another collective" if maker == ready.start.name else f"can start after %{maker}"
    return f"%{ready.start.name} {late}, and %{user} needs %{due.start.name}"
