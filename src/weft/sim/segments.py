"""The bound that goes along a chain of ops that nothing can cut, from one to the next. docs/bounds.md has the proof."""

from __future__ import annotations

from weft.sim.between import Between, Segment
from weft.sim.delays import Delay, least_delay, unfilled
from weft.sim.in_rows import InRows, in_rows


def segments_us(found: Between, slowdown: float) -> float:
    """The step is no shorter than this."""
    work, segments, floating = sum(found.parts.loads["compute"].values()), found.segments(), found.floating()
    slowed = 1 - 1 / slowdown
    by_flight = [max(0.0, one.flight * (1 - slowed) - one.compute) for one in segments]
    by_path = [_by_path(one, slowed) for one in segments]
    rows = in_rows(found)
    by_rows = rows.delays(slowdown)
    # Each of the two holds in every segment, whatever else is done there.
    chosen = [rowed.us > path.us for path, rowed in zip(by_path, by_rows, strict=True)]
    delays = [rowed if one else path for one, path, rowed in zip(chosen, by_path, by_rows, strict=True)]
    late = {place for one, places in zip(chosen, rows.late, strict=True) if one for place in places}
    return max(
        work + found.flights.us * slowed + unfilled(by_flight, floating),
        work + least_delay(by_path, floating),
        work + least_delay(delays, found.floating(late)),
        *(_on_a_link(found, rows, name, slowdown) for name in found.parts.loads if name.startswith("link ")),
    )


def _on_a_link(found: Between, rows: InRows, name: str, slowdown: float) -> float:
    """By all that a link has to carry: what is not in a row delays compute by as much as it would alone."""
    members = [place for places in rows.members for place in places]
    crossing = {place: found.parts.starts.link_us(place).get(name, 0.0) for place in members}
    others = {place: us for place, us in found.parts.loads[name].items() if place not in crossing and us > 0}
    if not others or not any(crossing.values()):
        return 0.0
    slowed = 1 - 1 / slowdown
    delays = rows.alone(crossing).delays(slowdown)
    floating = found.floating({place for places in rows.late for place in places})
    work = sum(found.parts.loads["compute"].values()) + slowed * sum(others.values())
    return work + least_delay(delays, floating)


def _by_path(segment: Segment, slowed: float) -> Delay:
    """What is in flight delays compute, and the longest path leaves a gap."""
    delay = segment.flight * slowed
    return Delay.of([(delay, max(0.0, max(segment.flight, segment.path) - segment.compute - delay))])
