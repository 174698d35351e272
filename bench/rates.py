"""The rate of a link between two ranks at which communication takes as long as it should.

`alone` has two calls: what a step computes without its communication, under COMPUTE, and what it communicates without
its compute, under COMMUNICATION. Every rank must call these functions, and gets the same answers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from weft.run.hosts import Hosts
from weft.run.measuring import Call, measured

COMPUTE, COMMUNICATION = "compute alone", "communication alone"

_FIRST_RATE, _SLOWEST, _FASTEST = 300e6, 1e6, 1e11  # bits per second
_TUNINGS, _CLOSE = 6, 0.03  # how often a rate is corrected, and how near is near enough


def say(rank: int, line: str) -> None:
    """Tell of progress, once."""
    if rank == 0:
        print(line, file=sys.stderr, flush=True)


def tuned(hosts: Hosts, alone: Mapping[str, Call], ratio: float, tries: int) -> float:
    """The rate, in bits per second, at which communication takes `ratio` times as long as compute; it is set."""
    rate = _FIRST_RATE
    for _ in range(_TUNINGS):
        hosts.set_rate(rate)
        times, _ = measured(alone, tries)  # in turn: compute takes longer after something else has had the caches
        off = times[COMMUNICATION].median / times[COMPUTE].median / ratio
        if abs(off - 1) <= _CLOSE:
            break
        rate = min(max(rate * off, _SLOWEST), _FASTEST)
    hosts.set_rate(rate)
    return rate
