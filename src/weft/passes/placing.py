"""Where collectives are launched and waited for, if all other ops keep their order.

What makes memory, such as a gather, is planned backwards from where it is used; what frees memory, such as the
reduction of a gradient, forwards from where it is ready. Each group is one stream, on which the two kinds meet. The
plan is run, and made again with the times that were found. Simpler rules are tried as well: what is kept is what the
simulator finds best.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from weft.passes.fitting_in import Limits, Placed, fitted, in_order, with_room
from weft.passes.together import moved_to_gathers, moved_together
from weft.sim.sketch import Piece, Placement, Run, Sketch

RULES = ("in_time", "one_ahead")


def best_placement(sketch: Sketch, limits: Limits, rounds: int = 4, rule: str = "in_time") -> Placed:
    """The best placement that was found: one within the limits if there is one, then the shortest step. With the rule
    `one_ahead` nothing else is tried. What was found for a sketch is not looked for again."""
    return sketch.fact(_BestPlacement(limits, rounds, rule))


@dataclass(frozen=True)
class _BestPlacement:
    """The analysis that finds the best placement of a sketch."""

    limits: Limits
    rounds: int
    rule: str

    def __call__(self, sketch: Sketch) -> Placed:
        if self.rule == "one_ahead":
            return fitted(sketch, _one_ahead(sketch, self.limits), self.limits)
        best = _best_in_time(sketch, self.limits, self.rounds)
        # With one group, or where compute does not suffer, it does not matter what is in flight at the same time.
        several = sketch.slowdown > 1 and len({piece.group for piece in sketch.pieces}) > 1
        if several and self.rounds > 1 and not self.limits.keep_order:
            best = _together(sketch, best, self.limits)
        return best


def _best_in_time(sketch: Sketch, limits: Limits, rounds: int) -> Placed:
    times: Sequence[float] = times_without_waiting(sketch)
    us: Sequence[float] = [piece.us for piece in sketch.pieces]
    found: list[Placed] = []
    for _ in range(rounds):
        placed = fitted(sketch, _in_time(sketch, times, us, limits), limits)
        found.append(placed)
        if placed.run.step_us <= times[-1]:
            break  # nothing is exposed
        times = placed.run.slots
        us = [land - begin for begin, land in zip(placed.run.begins, placed.run.lands, strict=True)]
    if rounds > 1:
        found.append(fitted(sketch, _one_ahead(sketch, limits), limits))
    return min(found, key=lambda one: (one.over(limits), one.run.step_us))


def _together(sketch: Sketch, placed: Placed, limits: Limits) -> Placed:
    """A placement, or a better one in which groups communicate at the same time: all move to the gathers; then the
    others move to the busiest, and that one to them."""
    loads = {group: sum(sketch.pieces[number].us for number in members) for group, members in _by_group(sketch).items()}
    moves: list[Callable[[Sketch, Placement, Run, Sequence[float]], Placement]] = [moved_to_gathers]
    moves += [partial(moved_together, group=group) for group in sorted(loads, key=lambda group: (loads[group], group))]
    best = placed
    for moved in moves:
        us = [land - begin for begin, land in zip(best.run.begins, best.run.lands, strict=True)]
        latest = _all_latest(sketch, best.run.slots, us)
        found = fitted(sketch, moved(sketch, best.placement, best.run, latest), limits)
        best = min(best, found, key=lambda one: (one.over(limits), one.run.step_us))
    return best


def _all_latest(sketch: Sketch, times: Sequence[float], us: Sequence[float]) -> list[float]:
    """When each must begin at the latest, each group on a stream of its own."""
    latest = [0.0] * len(us)
    for members in _by_group(sketch).values():
        for number, start in _latest_starts(sketch.pieces, members, times, us).items():
            latest[number] = start
    return latest


def times_without_waiting(sketch: Sketch) -> list[float]:
    """When the compute stream comes to each slot if it is never held."""
    extra = [0.0] * len(sketch.slots)
    for piece in sketch.pieces:
        extra[piece.due] += piece.before_us
        extra[piece.used] += piece.behind_us
    times, now = [], 0.0
    for us, more in zip(sketch.us, extra, strict=True):
        now += us
        times.append(now)
        now += more
    return times


# The rules


def _one_ahead(sketch: Sketch, limits: Limits) -> Placement:
    """As people do by hand: each gather is launched where the one before it is used, everything else when it is
    ready."""
    launch = [piece.ready for piece in sketch.pieces]
    for members in _by_group(sketch).values():
        before = 0
        for number in sorted(members, key=lambda number: (sketch.pieces[number].used, number)):
            piece = sketch.pieces[number]
            if piece.grows:
                launch[number] = min(max(before, piece.ready), piece.due)
                before = piece.used
    urgency = [float(piece.used) for piece in sketch.pieces]
    return _ordered(sketch, launch) if limits.keep_order else _placement(sketch, launch, urgency)


def _in_time(sketch: Sketch, times: Sequence[float], us: Sequence[float], limits: Limits) -> Placement:
    """What makes memory as late as it still comes in time, what frees memory as early as it does not hold that up."""
    launch = [0] * len(sketch.pieces)
    latest = _all_latest(sketch, times, us)
    for members in _by_group(sketch).values():
        for number, slot in _dispatched(sketch.pieces, members, times, us, latest).items():
            launch[number] = slot
    if limits.memory is not None:
        launch = with_room(sketch, launch, times, us, limits.memory)
    return _ordered(sketch, launch) if limits.keep_order else _placement(sketch, launch, latest)


def _ordered(sketch: Sketch, launch: Sequence[int]) -> Placement:
    """The launches, put off and brought forward so that no collective overtakes another of its group."""
    return _placement(sketch, in_order(sketch, launch), [float(number) for number in range(len(launch))])


def _placement(sketch: Sketch, launch: Sequence[int], urgency: Sequence[float]) -> Placement:
    """Launches with waits as late as they can be; of those in one slot the most urgent first."""
    order = sorted(range(len(launch)), key=lambda number: (launch[number], urgency[number], number))
    return Placement(tuple(launch), tuple(piece.used for piece in sketch.pieces), tuple(order))


def _by_group(sketch: Sketch) -> Mapping[str, Sequence[int]]:
    """The numbers of the pieces of each group."""
    return sketch.fact(_find_groups)


def _find_groups(sketch: Sketch) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for number, piece in enumerate(sketch.pieces):
        found.setdefault(piece.group, []).append(number)
    return found


def _latest_starts(
    pieces: Sequence[Piece], members: Sequence[int], times: Sequence[float], us: Sequence[float]
) -> dict[int, float]:
    """When each must begin at the latest so that all are there in time, on a stream that may interrupt them.

    Seen from the end of the step: of those whose use has been passed, the one that is ready last goes first.
    """
    by_use = sorted(members, key=lambda number: (-times[pieces[number].used], number))
    waiting: list[tuple[float, float, int]] = []
    left = {number: us[number] for number in members}
    found: dict[int, float] = {}
    now, place = float("inf"), 0
    while place < len(by_use) or waiting:
        if not waiting:
            now = min(now, times[pieces[by_use[place]].used])
        while place < len(by_use) and times[pieces[by_use[place]].used] >= now:
            number = by_use[place]
            heapq.heappush(waiting, (-times[pieces[number].ready], -times[pieces[number].used], number))
            place += 1
        number = waiting[0][2]
        until = times[pieces[by_use[place]].used] if place < len(by_use) else float("-inf")
        if now - left[number] < until:
            left[number] -= now - until
            now = until
        else:
            now -= left[number]
            found[number] = now
            heapq.heappop(waiting)
    return found


def _dispatched(
    pieces: Sequence[Piece],
    members: Sequence[int],
    times: Sequence[float],
    us: Sequence[float],
    latest: Sequence[float],
) -> dict[int, int]:
    """The slot in which each is launched: what frees memory when it is ready, unless something that makes memory would
    come late by it; what makes memory when it must."""
    early = sorted((n for n in members if not pieces[n].grows), key=lambda n: (pieces[n].ready, latest[n], n))
    late = sorted((n for n in members if pieces[n].grows), key=lambda n: (latest[n], n))
    found: dict[int, int] = {}
    now, slot = 0.0, 0
    while early or late:
        begin = max(now, times[pieces[early[0]].ready]) if early else float("inf")
        if early and (not late or begin + us[early[0]] <= latest[late[0]]):
            one = early.pop(0)
            slot = max(slot, pieces[one].ready)
            found[one] = min(slot, pieces[one].due)
            now = begin + us[one]
        else:
            one = late.pop(0)
            wanted = bisect_right(times, min(latest[one], begin)) - 1
            found[one] = min(max(wanted, pieces[one].ready), pieces[one].due)
            slot = max(slot, found[one])
            now = max(now, times[found[one]]) + us[one]
    return found
