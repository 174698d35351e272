"""Collectives in a row, by hand: what it costs to have them whole, in pieces or inside matmuls, in the cheapest way."""

from __future__ import annotations

import pytest

from weft.sim.delays import Delay
from weft.sim.fences import fences
from weft.sim.rows import Row
from weft.sim.stretches import NOTHING, Fence, Member, Span, Work

NEVER = 1e6  # us: what nobody would do


def member(*cut: float, piece: float = 0.0, inside: float | None = None, group: str = "tp") -> Member:
    """One that takes 30 us whole, and so long in 2, 3, 4, 5 to 8 and 9 or more pieces; NEVER where nothing is said."""
    return Member(group, 30.0, (*cut, *[NEVER] * (5 - len(cut))), (piece,) * 5, inside)


def span(us: float, *put: tuple[float, float], dearer: float = 0.0, soft: bool = True) -> Span:
    return Span(_work(us, dearer), tuple(Fence(_work(before), _work(behind)) for before, behind in put), soft)


def _work(us: float, dearer: float = 0.0) -> Work:
    return Work(us, (dearer,) * 5)


def delay(row: Row, slowdown: float = 1.0) -> float:
    return row.delay(slowdown).us


# A matmul of 40 us before a collective of 30 us, and one of 60 us behind it.


def one(found: Member, **more: float) -> Row:
    across = (((0, 1), more.pop("across")),) if "across" in more else ()
    return Row((found,), (span(40.0), span(60.0)), across, more.get("late", 0.0), more.get("closing", 0.0))


def test_a_whole_collective_is_beside_nothing() -> None:
    assert delay(one(member())) == 30.0


def test_a_whole_collective_is_beside_what_is_on_neither_side_of_it() -> None:
    assert delay(one(member(), across=20.0)) == 10.0


def test_pieces_are_beside_other_pieces() -> None:
    # In two pieces, half of what comes before is done first, and half of what comes behind at last: 20 + 70 + 30.
    assert delay(one(member(70.0))) == pytest.approx(20.0)
    # In four: 10 + 80 + 15, where nobody waits for more than 5 us.
    assert delay(one(member(NEVER, NEVER, 80.0))) == pytest.approx(5.0)


def test_inside_a_matmul_it_adds_what_it_adds() -> None:
    assert delay(one(member(70.0, inside=12.0))) == 12.0


def test_what_is_in_flight_slows_compute_down() -> None:
    # Half of the 30 us that it takes whole; the other half is idle.
    assert one(member()).delay(2.0) == Delay(30.0, ((1.0, 15.0),))


def test_of_what_else_is_in_flight_only_what_a_link_carries_slows_compute_down() -> None:
    # Half of the 10 us for which it has the link to itself, and half of the 30 us that it takes.
    alone = Member("tp", 30.0, (NEVER,) * 5, (0.0,) * 5, None, alone_us=10.0)
    assert one(alone).delay(2.0) == Delay(20.0, ((1.0, 15.0),))


def test_what_the_last_member_leads_to_fills_gaps_only_if_that_is_cut() -> None:
    assert delay(one(member(), late=15.0)) == 30.0
    assert delay(one(member(70.0), late=15.0)) == pytest.approx(5.0)


def test_behind_the_last_piece_comes_what_closes_the_segment() -> None:
    # 20 + 70 + 45 instead of 30, where 100 us are worked.
    assert delay(one(member(70.0), closing=45.0)) == 30.0  # whole is better
    assert delay(one(member(60.0), closing=45.0)) == pytest.approx(25.0)


def test_matmuls_take_longer_in_pieces_or_are_not_cut() -> None:
    # Both cut: 46 / 2 + 20 + 66 / 2, and 12 us more work. Only the second: 40 + 20 + 33, and 6 us more.
    dear = Row((member(20.0),), (span(40.0, dearer=6.0), span(60.0, dearer=6.0)), (), 0.0, 0.0)
    assert delay(dear) == pytest.approx(6.0)


# Several of them.


def row(members: tuple[Member, ...], *spans: Span) -> Row:
    return Row(members, spans, (), 0.0, 0.0)


def test_what_is_inside_a_matmul_or_whole_parts_those_that_are_cut() -> None:
    cut, spans = member(36.0), (span(40.0), span(60.0), span(40.0))
    # Both cut, 20 + 36 + 36 + 20 us: hidden. Only one of them cut: what is whole comes on top.
    assert delay(row((cut, cut), *spans)) == 0.0
    assert delay(row((cut, member()), *spans)) == 30.0
    assert delay(row((cut, member(inside=7.0)), *spans)) == 7.0


def test_the_first_pieces_come_one_after_the_other() -> None:
    # In two pieces of 18 us: 5 + 18 until the matmul of 100 us can begin, and 18 + 5 when it has ended, of 120 us.
    cut, spans = member(36.0, piece=18.0), (span(10.0), span(100.0), span(10.0))
    assert delay(row((cut, cut), *spans)) == pytest.approx(26.0)


def test_compute_between_two_is_slowed_down_by_the_pieces_beside_it() -> None:
    # At half the speed, 18 of the 36 us are beside it for each of them: 23 + 100 + 18 + 23 of 120 us.
    cut, spans = member(36.0, piece=18.0), (span(10.0), span(100.0), span(10.0))
    assert delay(row((cut, cut), *spans), 2.0) == pytest.approx(44.0)


def test_pieces_may_be_put_together_on_the_way() -> None:
    # The first in two pieces of 15 us, the second one in five to eight of 5 us.
    first, second = member(30.0, piece=15.0), Member("tp", 40.0, (NEVER, NEVER, NEVER, 40.0, NEVER), (5.0,) * 5, None)
    spans = span(10.0), span(100.0), span(10.0)
    # Nothing is put together: they cannot both be cut, and the first one is whole.
    assert delay(row((first, second), *spans)) == pytest.approx(30.0)
    # Put together in the middle: 5 + 15 + 50, then the other 50 and 10, which is more than 6.25 + 40 + 1.25.
    halves = spans[0], span(100.0, (50.0, 50.0)), spans[2]
    assert delay(row((first, second), *halves)) == pytest.approx(10.0)


def test_what_lies_beside_a_fence_is_done_on_either_side_of_it() -> None:
    # The group is busy for 90 us on either side, and for 30 us more than what is cut there: of the 280 us beside the
    # fence, 120 us fit in, and the rest takes longer. Nothing of it hides the first collective, which is whole.
    cut = Member("tp", NEVER, (90.0, *[NEVER] * 4), (0.0,) * 5, None)
    fenced = span(400.0, (60.0, 60.0), soft=False)
    assert delay(row((cut, cut), span(0.0), span(200.0, (60.0, 60.0), soft=False), span(0.0))) == pytest.approx(40.0)
    assert delay(row((member(), cut, cut), span(0.0), span(0.0), fenced, span(0.0))) == pytest.approx(30.0)


def test_where_an_edge_is_hard_nothing_goes_on_in_the_same_pieces() -> None:
    cut, spans = member(36.0), (span(40.0), span(60.0, soft=False), span(40.0))
    assert delay(row((cut, cut), *spans)) == 30.0


def test_groups_are_busy_at_the_same_time() -> None:
    members = member(*[50.0] * 5), member(*[60.0] * 5, group="dp")
    assert delay(row(members, span(0.0), span(10.0), span(0.0))) == 50.0  # 60 us, of which 10 us are worked


# Where pieces might be put together.


def test_fences_have_what_leads_to_an_edge_before_them_and_what_it_leads_to_behind() -> None:
    # A start, two matmuls beside each other, what multiplies their results, and a start.
    works = [NOTHING, _work(30.0), _work(50.0), _work(8.0), NOTHING]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    found = {(fence.before.us, fence.behind.us) for fence in fences(works, edges, width=1.0)}
    assert found == {(0.0, 38.0), (30.0, 8.0), (50.0, 8.0), (88.0, 0.0)}


def test_a_fence_stands_for_those_that_are_near_it() -> None:
    works = [NOTHING, _work(3.0, 2.0), _work(3.0, 1.0), _work(94.0, 5.0), NOTHING]
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert fences(works, edges, width=10.0) == (Fence(NOTHING, _work(94.0, 5.0)), Fence(_work(100.0, 8.0), NOTHING))
