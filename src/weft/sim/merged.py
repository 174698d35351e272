"""A Sketch with some of its pieces merged: what a bucket would do to the schedule, without making it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.cost.model import CostModel, HardwareModel
from weft.sim.sketch import Hold, Piece, Sketch
from weft.sim.streams import link_shares

# Of a bucket, by the numbers of its members and as a piece: the compute that it takes to copy it together and apart,
# less what is saved by it; None if its members are not copied.
Copies = Callable[[Sequence[int], Piece], float | None]
# Of a bucket whose members are not copied: the compute that is saved because what prepares them is done together, and
# because what is done to their results first is.
Saved = Callable[[Sequence[int]], tuple[float, float]]


def merged(sketch: Sketch, buckets: Sequence[Sequence[int]], cost: CostModel, copies: Copies, saved: Saved) -> Sketch:
    """The sketch in which the pieces of each bucket, given by their numbers, are one.

    Members that are copied go through a buffer, which is held from the launch to the wait, and what they send is needed
    no longer than the launch. Their results are counted as if each had a storage of its own.
    """
    head = {number: bucket[0] for bucket in buckets for number in bucket}
    hardware = cost if isinstance(cost, HardwareModel) else None  # asked once: it looks at every method
    whole = {bucket[0]: _bucket([sketch.pieces[number] for number in bucket], cost, hardware) for bucket in buckets}
    holds: list[Hold] = []
    copied: set[int] = set()
    for bucket in buckets:
        first, piece = bucket[0], whole[bucket[0]]
        us = copies(bucket, piece)
        if us is not None:
            whole[first] = _copied(piece, us)
            holds.append(Hold(piece.nbytes, 0, first, at_wait=False, until=0, launch=(), wait=(first,)))
            copied.update(bucket)
        else:
            before, behind = saved(bucket)
            left = max(0.0, piece.before_us - before), max(0.0, piece.behind_us - behind)
            whole[first] = replace(piece, before_us=left[0], behind_us=left[1])
    holds += [_let_go(hold, copied) for hold in sketch.holds] if copied else sketch.holds
    kept = [number for number in range(len(sketch.pieces)) if head.get(number, number) == number]
    place = {number: index for index, number in enumerate(kept)}
    numbers = [place[head.get(number, number)] for number in range(len(sketch.pieces))]
    pieces = tuple(whole.get(number, sketch.pieces[number]) for number in kept)
    return replace(sketch, pieces=pieces, holds=tuple(holds), bucket=tuple(numbers[number] for number in sketch.bucket))


def _bucket(members: Sequence[Piece], cost: CostModel, hardware: HardwareModel | None) -> Piece:
    """Pieces as one, with the time that it takes."""
    first = members[0]
    nbytes = sum([one.nbytes for one in members])
    us = cost.collective_us(first.comm, nbytes)
    links = hardware.link_us(first.comm, nbytes) if hardware is not None else {}
    return replace(
        first,
        us=us,
        shares=link_shares(links, us),
        nbytes=nbytes,
        ready=max([one.ready for one in members]),
        due=min([one.due for one in members]),
        settled=max([one.settled for one in members]),
        used=min([one.used for one in members]),
        before_us=sum([one.before_us for one in members]),
        behind_us=sum([one.behind_us for one in members]),
        makes=sum([one.makes for one in members]),
        frees=sum([one.frees for one in members]),
    )


def _let_go(hold: Hold, copied: set[int]) -> Hold:
    """A storage that is no longer in flight itself, because it was copied."""
    sent = [number for number in hold.wait if number in copied and hold.made != number]
    if not sent:
        return hold
    waiting = tuple(number for number in hold.wait if number not in sent)
    launching = tuple(number for number in hold.launch if number not in sent)
    return replace(hold, wait=waiting, launch=launching, copied=tuple(sent))


def _copied(piece: Piece, us: float) -> Piece:
    """A gather is mostly copied out of the buffer, anything else into it. What is saved is saved behind the wait.

    To memory the buffer comes on top of what is gathered, and takes the place of what is reduced.
    """
    if piece.grows:
        makes, frees = piece.makes + piece.nbytes, piece.frees + piece.nbytes
        return replace(piece, behind_us=max(0.0, piece.behind_us + us), makes=makes, frees=frees)
    if us < 0:
        return replace(piece, behind_us=max(0.0, piece.behind_us + us))
    return replace(piece, before_us=max(0.0, piece.before_us + us))
