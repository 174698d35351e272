"""Combine by key: the one loop under every pass that makes one collective of several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from weft.analysis.windows import Window

T = TypeVar("T")


def combine(items: Iterable[T], key: Callable[[T], Hashable], fits: Callable[[Sequence[T], T], bool]) -> list[list[T]]:
    """Buckets of items with the same key, in the order of their first members.

    Each item joins the bucket of its key that is open, if it `fits` there, and opens the next one if not: the bucket
    before it is closed then. A bucket may have one member.
    """
    buckets: list[list[T]] = []
    unfilled: dict[Hashable, list[T]] = {}
    for item in items:
        bucket = unfilled.get(key(item))
        if bucket is not None and fits(bucket, item):
            bucket.append(item)
        else:
            unfilled[key(item)] = [item]
            buckets.append(unfilled[key(item)])
    return buckets


def place(members: Sequence[Window]) -> int | None:
    """The position behind which all members can be launched together, the nearest to the first of them; or None."""
    ready, due = max(one.ready for one in members), min(one.due for one in members)
    if ready >= due or max(one.settled for one in members) >= min(one.used for one in members):
        return None
    return min(max(members[0].position, ready), due - 1)
