"""A Sketch with some of its pieces merged: what a bucket would do to the schedule, without making it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.cost.model import CostModel, HardwareModel
from weft.sim.sketch import Hold, Piece, Sketch

Copies = Callable[[Piece], float]  # the compute that it takes to copy a bucket together and apart


def merged(sketch: Sketch, buckets: Sequence[Sequence[int]], cost: CostModel, copies: Copies | None) -> Sketch:
    """The sketch in which the pieces of each bucket, given by their numbers, are one.

    With `copies` the members go through a buffer, which is held from the launch to the wait. The members' results are
    counted as if each had a storage of its own.
    """
    head = {number: bucket[0] for bucket in buckets for number in bucket}
    whole = {bucket[0]: _bucket([sketch.pieces[number] for number in bucket], cost) for bucket in buckets}
    holds = list(sketch.holds)
    if copies is not None:
        for first, piece in whole.items():
            whole[first] = _copied(piece, copies(piece))
            holds.append(Hold(piece.nbytes, 0, first, at_wait=False, until=0, launch=(), wait=(first,)))
    kept = [number for number in range(len(sketch.pieces)) if head.get(number, number) == number]
    place = {number: index for index, number in enumerate(kept)}
    numbers = [place[head.get(number, number)] for number in range(len(sketch.pieces))]
    pieces = tuple(whole.get(number, sketch.pieces[number]) for number in kept)
    return replace(sketch, pieces=pieces, holds=tuple(holds), bucket=tuple(numbers[number] for number in sketch.bucket))


def _bucket(members: Sequence[Piece], cost: CostModel) -> Piece:
    first, nbytes = members[0], sum(one.nbytes for one in members)
    us = cost.collective_us(first.comm, nbytes)
    links = cost.link_us(first.comm, nbytes) if isinstance(cost, HardwareModel) else {}
    return Piece(
        name=first.name,
        comm=first.comm,
        us=us,
        shares={link: min(1.0, busy / us) for link, busy in links.items() if us > 0},
        nbytes=nbytes,
        ready=max(one.ready for one in members),
        due=min(one.due for one in members),
        settled=max(one.settled for one in members),
        used=min(one.used for one in members),
        before_us=sum(one.before_us for one in members),
        behind_us=sum(one.behind_us for one in members),
        makes=sum(one.makes for one in members),
        frees=sum(one.frees for one in members),
    )


def _copied(piece: Piece, us: float) -> Piece:
    """A gather is mostly copied out of the buffer, anything else into it."""
    if piece.grows:
        return replace(piece, behind_us=piece.behind_us + us, makes=piece.makes + piece.nbytes)
    return replace(piece, before_us=piece.before_us + us, makes=piece.makes + piece.nbytes)
