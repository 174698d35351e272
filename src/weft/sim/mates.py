"""How large the buckets of a collective can be: what depends on it, or it on, is never in one with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.dependencies import turned
from weft.analysis.traffic import total_bytes
from weft.ir.program import Collective, Program

Edges = Sequence[Sequence[tuple[int, bool]]]  # for each op, those before it, and whether the edge is soft

# What may be launched as a collective of this kind: an all-reduce may become a reduce-scatter and an all-gather.
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("all_gather", "all_reduce"),
    "reduce_scatter": ("reduce_scatter", "all_reduce"),
}
_KEPT_BITS = 4  # of the sizes of others, which are rounded up: with 8 sizes to a factor of two there are never many


@dataclass(frozen=True)
class Mates:
    """For each start, by position, how many bytes those might have that could share a bucket with it, by their kind."""

    others: Mapping[int, Mapping[str, int]]

    def most(self, place: int, kind: str, own: int) -> int:
        """The bytes of the largest bucket of a kind that a start, with `own` bytes, may have a part in."""
        beside = self.others[place]
        shared = sum(beside.get(alike, 0) for alike in _ALIKE.get(kind, (kind,)))
        return max(1, own + rounded_up(shared))


def mates(program: Program, before: Edges) -> Mates:
    """Who might share a bucket with whom, in pieces or whole: starts of one group of which none leads to the other."""
    starts = [(place, op.comm, total_bytes(op)) for place, op in enumerate(program.ops) if op.comm is not None]
    bits = {place: 1 << number for number, (place, _, _) in enumerate(starts)}
    ordered = _ordered(before, bits)
    classes = _classes(starts, bits)
    found: dict[int, dict[str, int]] = {}
    for place, comm, _ in starts:
        free = ~(ordered[place] | bits[place])
        beside: dict[str, int] = {}
        for kind, nbytes, members in classes[comm.group.name]:
            if count := (members & free).bit_count():
                beside[kind] = beside.get(kind, 0) + count * nbytes
        found[place] = beside
    return Mates(found)


def rounded_up(size: int) -> int:
    """A size that is at most an eighth larger, one of few."""
    low = max(0, size.bit_length() - _KEPT_BITS)
    return -(-size >> low) << low


def _classes(
    starts: Iterable[tuple[int, Collective, int]], bits: Mapping[int, int]
) -> Mapping[str, list[tuple[str, int, int]]]:
    """For each group, its starts as sets of bits, by kind and rounded size."""
    found: dict[tuple[str, str, int], int] = {}
    for place, comm, nbytes in starts:
        key = comm.group.name, comm.kind, rounded_up(nbytes)
        found[key] = found.get(key, 0) | bits[place]
    classes: dict[str, list[tuple[str, int, int]]] = {}
    for (group, kind, nbytes), members in found.items():
        classes.setdefault(group, []).append((kind, nbytes, members))
    return classes


def _ordered(before: Edges, bits: Mapping[int, int]) -> Mapping[int, int]:
    """For each start, those that lead to it and those that it leads to, as bits."""
    needed = [[other for other, _ in edges] for edges in before]
    leading = _leading(needed, range(len(needed)), bits)
    led = _leading(turned(needed), reversed(range(len(needed))), bits)
    return {place: leading[place] | led[place] for place in bits}


def _leading(needed: Sequence[Sequence[int]], order: Iterable[int], bits: Mapping[int, int]) -> Mapping[int, int]:
    """For each start, those from which a path leads to it, as bits."""
    reached: dict[int, int] = {}  # of each op, the starts from which a path leads to it, itself included
    users = [0] * len(needed)
    for earlier in needed:
        for other in earlier:
            users[other] += 1
    found: dict[int, int] = {}
    for place in order:
        here = 0
        for other in needed[place]:
            here |= reached[other]
            users[other] -= 1
            if not users[other]:  # nobody asks for its bits any more, and all together would be many
                del reached[other]
        if place in bits:
            found[place] = here
            here |= bits[place]
        if users[place]:
            reached[place] = here
    return found
