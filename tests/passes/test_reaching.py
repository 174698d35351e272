"""How far back a bucket reaches is what trying every window says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weft.ir import Collective, Group
from weft.passes.reaching import Room, reaches
from weft.sim.sketch import Piece

SLOTS = 6
PIECE = Piece("", Collective("all_gather", Group("g", (0, 1))), 1.0, {}, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """A gather of a few bytes; the places of its launch and of its wait are in order."""
    ready, due, settled, used = sorted(draw(st.integers(0, SLOTS - 1)) for _ in range(4))
    nbytes, makes = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    return replace(PIECE, ready=ready, due=due, settled=settled, used=used, nbytes=nbytes, makes=makes)


def fits(bucket: Sequence[Piece], room: Room) -> bool:
    if max(one.ready for one in bucket) > min(one.due for one in bucket):
        return False
    if max(one.settled for one in bucket) > min(one.used for one in bucket):
        return False
    if sum(one.nbytes for one in bucket) > room.nbytes:
        return False
    lives = room.least[2 * bucket[-1].used : 2 * bucket[0].used + 1]
    return room.memory is None or max(lives) + sum(one.makes for one in bucket) <= room.memory


@given(
    st.lists(pieces(), max_size=12),
    st.integers(1, 20),
    st.none() | st.integers(0, 30),
    st.lists(st.integers(0, 10), min_size=2 * SLOTS + 1, max_size=2 * SLOTS + 1),
)
def test_it_is_the_longest_window_that_fits(
    chain: list[Piece], nbytes: int, memory: int | None, least: list[int]
) -> None:
    chain = sorted(chain, key=lambda one: -one.used)
    room = Room(nbytes, memory, least)
    expected = [
        next(first for first in range(last + 1) if first == last or fits(chain[first : last + 1], room))
        for last in range(len(chain))
    ]
    assert reaches(chain, room) == expected
