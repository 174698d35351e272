"""What there is to say of an exposed collective: why it is, and what would hide it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.sim.reasons import Exposure


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that hides a collective, as it is written; by how much the step is shorter, and its peak memory."""

    change: str
    saves_us: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """An exposed collective with its causes, and the smallest change that hides it; None if none that was tried does,
    and `tried` is how many were."""

    exposure: Exposure
    remedy: Remedy | None
    tried: int
