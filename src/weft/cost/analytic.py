"""How long a collective takes where nobody measured it: rings and trees, step by step, as NCCL's tuner reckons.

A message is cut into pieces that travel from rank to rank. A collective's time is what it takes to start, plus the
latency of the steps that one piece makes, plus the time in which the narrowest link carries its share of the bytes.
Protocols trade latency for bandwidth; the library takes the best, and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from weft.cost.topology import Crossing, Placement


@dataclass(frozen=True, slots=True)
class Protocol:
    """How bytes are handed over: what it takes to begin, how many latencies a step costs, what bandwidth is left."""

    base_us: float
    hop: float
    efficiency: float


# The base latencies, and the ratios of the protocols' step latencies and bandwidths, are those of NCCL's tuner
# (src/graph/tuning.cc, 2.2x): LL sends a flag with every four bytes, LL128 one with every 120, Simple synchronises per
# chunk. A step's ratio differs between NVLink and network there (LL128 3.2 and 1.5, Simple 5.7 and 5.2); these are
# between the two. "plain" is a library that just sends, such as Gloo.
PROTOCOLS: Mapping[str, Protocol] = {
    "ll": Protocol(6.6, 1.0, 0.4),
    "ll128": Protocol(14.0, 2.2, 0.92),
    "simple": Protocol(8.4, 5.4, 1.0),
    "plain": Protocol(0.0, 1.0, 1.0),
}
_TREE_EFFICIENCY = 0.92  # of the ring's bandwidth: NCCL's tuner again


def analytic_us(kind: str, placement: Placement, total_bytes: float, protocols: tuple[str, ...]) -> float:
    """The time of the best algorithm and protocol, without what the machine needs to start any collective."""
    # What no protocol changes is reckoned once: to choose buckets, thousands of sizes are asked for.
    busy = max([busy_us(kind, placement, one, total_bytes) for one in placement.crossings])
    latency, used = _ring_latency(kind, placement), [PROTOCOLS[name] for name in protocols]
    ways = [one.base_us + latency * one.hop + busy / one.efficiency for one in used]
    if kind == "all_reduce":
        latency = _tree_latency(placement)
        whole = busy * (placement.size / (placement.size - 1))  # a tree carries a rank's own piece, too
        ways += [one.base_us + latency * one.hop + whole / (one.efficiency * _TREE_EFFICIENCY) for one in used]
    return min(ways)


def busy_us(kind: str, placement: Placement, crossing: Crossing, total_bytes: float) -> float:
    """How long a collective keeps a rank's link of one level busy, at the full bandwidth that large messages see."""
    peers = 1 if kind == "permute" else crossing.parts - 1
    return _carried(kind, placement.size, crossing, total_bytes) / crossing.level.bytes_per_us(peers)


def _carried(kind: str, size: int, crossing: Crossing, total_bytes: float) -> float:
    """The bytes that go each way through the link of one rank.

    What a ring carries between two parts is spread over the links of all members there. In an exchange every rank has
    bytes of its own for each other rank, and they cross the first level that joins the two. A permute is as slow as its
    slowest pair, and a pair has one link.
    """
    if kind == "permute":
        return total_bytes
    if kind == "all_to_all":
        return total_bytes * (crossing.joined - crossing.inside) / size
    if kind == "broadcast":
        return total_bytes / crossing.width
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * total_bytes * (size - 1) / size / crossing.width


def _ring_latency(kind: str, placement: Placement) -> float:
    """Pieces go round a ring through all members, pipelined: the slowest link sets the pace, every hop its latency."""
    if kind == "permute":
        return placement.crossings[-1].level.latency_us  # one hop, between the two that are furthest apart
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * sum([one.hops * one.level.latency_us for one in placement.crossings])


def _tree_latency(placement: Placement) -> float:
    """An all-reduce goes up a tree and down again: a chain inside a node, a binary tree between nodes."""
    inner, *outer = placement.crossings
    steps = (inner.parts - 1) * inner.level.latency_us
    steps += sum(ceil(log2(one.parts)) * one.level.latency_us for one in outer)
    return 2 * steps
