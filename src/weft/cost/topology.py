"""Where a group's ranks are, and which links its collectives cross.

A machine is a list of levels from the inside out: eight ranks share an NVLink domain, all of them a network. Ranks are
numbered along it, so rank r belongs to domain r // level.ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of link. `ranks` is how many consecutive ranks it connects; None means all of them.

    `gb_per_s` is one link's bandwidth each way, of which large messages see the fraction `efficiency`. `shared_by`
    ranks have one link together; since the siblings of a group run the same program, each gets its share and no more.
    In a `mesh` a link is a bundle with a part for every other rank of the domain; a group uses those of its members.
    Where memory is `symmetric`, a kernel reads and writes that of the other ranks through such links.
    """

    name: str
    ranks: int | None
    gb_per_s: float
    latency_us: float
    efficiency: float
    shared_by: int = 1
    mesh: bool = False
    symmetric: bool = False

    def bytes_per_us(self, peers: int) -> float:
        """What one rank gets of its link when it talks to so many peers at once."""
        share = self.gb_per_s * 1e3 * self.efficiency / self.shared_by
        if self.mesh and self.ranks is not None:
            share *= min(1.0, peers / (self.ranks - 1))
        return share


@dataclass(frozen=True, slots=True)
class Crossing:
    """How a group uses a level: its members in `parts` of the level below have to meet there.

    `inside` and `joined` count the members of the fullest part and of the fullest domain that joins them; `width` those
    of the emptiest part, whose links are the narrowest place. `hops` is how often a ring through all members crosses.
    """

    level: Level
    parts: int
    inside: int
    joined: int
    width: int
    hops: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A group on a machine: its size, the innermost domains ("nodes") that it touches, the levels that it crosses."""

    size: int
    nodes: int
    crossings: tuple[Crossing, ...]


def place(levels: tuple[Level, ...], ranks: tuple[int, ...]) -> Placement:
    """Put a group's ranks on the levels of a machine. A level that a group does not cross is not in the result."""
    homes = [ranks, *([_domain(level, rank) for rank in ranks] for level in levels)]
    crossings = [
        _crossing(level, Counter(below), Counter(here), Counter(home for home, _ in set(zip(here, below, strict=True))))
        for level, below, here in zip(levels, homes, homes[1:], strict=False)
        if len(set(here)) < len(set(below))
    ]
    return Placement(len(ranks), len(set(homes[1])), tuple(crossings))


def _crossing(level: Level, below: Counter[int], here: Counter[int], parts: Counter[int]) -> Crossing:
    """From the members of each part and of each domain, and the parts of each domain."""
    return Crossing(
        level,
        parts=max(parts.values()),
        inside=max(below.values()),
        joined=max(here.values()),
        width=min(below.values()),
        hops=len(below) - len(here),
    )


def _domain(level: Level, rank: int) -> int:
    return 0 if level.ranks is None else rank // level.ranks
