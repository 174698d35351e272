"""`Interval`: a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """From when until when, in microseconds."""

    begin: float
    end: float

    @property
    def us(self) -> float:
        return self.end - self.begin

    def overlap(self, other: Interval) -> float:
        """For how long both last."""
        return max(0.0, min(self.end, other.end) - max(self.begin, other.begin))
