"""The bound that goes along a chain of ops that nothing can cut, from one to the next. docs/bounds.md has the proof."""

from __future__ import annotations

from weft.sim.between import Between, Segment
from weft.sim.delays import Delay, least_delay, unfilled
from weft.sim.rows import rows_delayed

_ROUNDING = 1e-9  # what sums are wrong by at most: this bound is often all that a step takes, and must not be more


def segments_us(found: Between, slowdown: float) -> float:
    """The step is no shorter than this."""
    work, segments, floating = sum(found.parts.loads["compute"].values()), found.segments(), found.floating()
    slowed = 1 - 1 / slowdown
    by_flight = [max(0.0, one.flight * (1 - slowed) - one.compute) for one in segments]
    by_path = [_by_path(one, slowed) for one in segments]
    by_rows = rows_delayed(found, slowdown)
    # Each of the two holds in every segment, whatever else is done there.
    delays = [max(two, key=lambda delay: delay.us) for two in zip(by_path, by_rows, strict=True)]
    return max(
        work + found.flights.us * slowed + unfilled(by_flight, floating),
        work + least_delay(by_path, floating),
        (work + least_delay(delays, floating)) * (1 - _ROUNDING),
    )


def _by_path(segment: Segment, slowed: float) -> Delay:
    """What is in flight delays compute, and the longest path leaves a gap."""
    delay = segment.flight * slowed
    return Delay.of([(delay, max(0.0, max(segment.flight, segment.path) - segment.compute - delay))])
