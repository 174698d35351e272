"""What there is to say of an exposed collective: why it is, and what would help."""

from __future__ import annotations

from dataclasses import dataclass

from weft.sim.reasons import Exposure


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that hides a collective, or leaves less of it exposed, and how to make it.

    - `change`: what is changed, as people say it
    - `saves_us`, `peak_bytes`: by how much the step is shorter, and its peak memory
    - `left_us`, `hides`: for how long the collective, or what it became, is still exposed; whether that is nothing
    - `passes`, `memory_limit`: what `optimize` is to be given, of the program as it was before all passes
    - `faster_links`: the levels of the machine that have twice their bandwidth in it, as `Machine.faster` makes it; the
      passes have decided for the machine as it is
    """

    change: str
    saves_us: float
    peak_bytes: int
    left_us: float
    hides: bool
    passes: str
    memory_limit: int | None
    faster_links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An exposed collective with its causes, and the smallest change that hides it, or the one that leaves least; None
    if none that was tried helps, and `tried` is how many were."""

    exposure: Exposure
    remedy: Remedy | None
    tried: int
