"""The clock of one simulated rank: a compute stream, a communication stream for each group, links that are shared.

Collectives of one group run one after the other in the order of their launch; those of different groups run at the
same time, and slow each other down where they cross the same link. Compute is slowed while anything is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Flight:
    """A collective from its launch on. `shares` says which part of each link it takes while it runs alone."""

    position: int
    group: str
    us: float
    shares: Mapping[str, float]
    issued: float
    begin: float = 0.0
    end: float = 0.0  # while it is under way: when it will end if nothing is launched or ends before
    rate: float = 1.0


def link_shares(links: Mapping[str, float], us: float) -> Mapping[str, float]:
    """The part of each link that a collective of `us` takes, by how long each would be busy at full bandwidth."""
    return {link: min(1.0, busy / us) for link, busy in links.items() if us > 0}


def _landing(flight: Flight) -> tuple[float, int]:
    """By what it is decided who ends first."""
    return flight.end, flight.position


class Streams:
    """`now` is the compute stream's time. What is in flight never ends before `now`."""

    def __init__(self, slowdown: float) -> None:
        self.now = 0.0
        self.landed: dict[int, Flight] = {}
        self._slowdown = slowdown
        self._flying: dict[str, Flight] = {}
        self._next_end = inf  # of those in flight: kept, since every op that computes asks for it
        self._queues: dict[str, deque[Flight]] = {}

    def compute(self, us: float) -> None:
        """Let the compute stream work: `us` if nothing is in flight, longer if something is."""
        left, slowdown = us, self._slowdown
        while left > 0 and self._flying:
            possible = (self._next_end - self.now) / slowdown
            if left <= possible:
                self.now += left * slowdown
                return
            left -= possible
            self.now = self._next_end
            self._land()
        self.now += left

    def launch(self, flight: Flight) -> None:
        """Hand a collective to its group's stream, where it runs when those before it are through."""
        if flight.group in self._flying:
            self._queues.setdefault(flight.group, deque()).append(flight)
        else:
            self._take_off(flight, self.now)
            self._share_links(self.now)

    def wait(self, position: int) -> None:
        """Hold the compute stream until a collective has landed."""
        while position not in self.landed:
            if self._next_end > self.now:
                self.now = self._next_end
            self._land()

    def drain(self) -> float:
        """When the last collective lands; the compute stream does not wait for it."""
        while self._flying:
            self._land()
        return max((flight.end for flight in self.landed.values()), default=0.0)

    def _land(self) -> None:
        """End the collective that ends first; the next of its group follows."""
        flying = self._flying.values()
        flight = min(flying, key=_landing) if len(flying) > 1 else next(iter(flying))
        del self._flying[flight.group]
        self.landed[flight.position] = flight
        if queue := self._queues.get(flight.group):
            self._take_off(queue.popleft(), flight.end)
        self._share_links(flight.end)

    def _take_off(self, flight: Flight, time: float) -> None:
        flight.begin, flight.end = time, time + flight.us
        self._flying[flight.group] = flight

    def _share_links(self, time: float) -> None:
        """Give all that are in flight the speed that their links allow from `time` on."""
        flying = self._flying.values()
        load: dict[str, float] = {}
        if len(flying) > 1:
            for flight in flying:
                for link, share in flight.shares.items():
                    load[link] = load.get(link, 0.0) + share
        self._next_end = inf
        for flight in flying:
            rate = 1.0 / max(1.0, *[load[link] for link in flight.shares]) if load and flight.shares else 1.0
            if rate != flight.rate:
                flight.end = time + (flight.end - time) * flight.rate / rate
                flight.rate = rate
            if flight.end < self._next_end:
                self._next_end = flight.end
