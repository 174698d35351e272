"""Measured times of collectives: a few knots for each kind and group size, and what lies between them."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log

from weft.errors import WeftWarning


@dataclass(frozen=True, slots=True)
class Curve:
    """Microseconds by bytes, for one kind of collective among `ranks` ranks that touch `nodes` innermost domains.

    Knots ascend in bytes and do not descend in time, so neither does anything that is interpolated.
    """

    kind: str
    ranks: int
    nodes: int
    bytes: tuple[float, ...]
    us: tuple[float, ...]

    def at(self, nbytes: float, machine: str) -> float:
        """The time for so many bytes: straight lines between knots where both axes are logarithmic.

        Below the first knot it is the first knot's: what is left of a small message is latency. Beyond the last it goes
        on at the bandwidth of the last segment, with a WeftWarning that names the machine and the curve.
        """
        if nbytes <= self.bytes[0]:
            return self.us[0]
        if nbytes > self.bytes[-1]:
            self._warn(machine)
            slope = (self.us[-1] - self.us[-2]) / (self.bytes[-1] - self.bytes[-2])
            # A last segment that is flat says nothing of bandwidth; the mean of the whole curve is the next best.
            slope = slope or self.us[-1] / self.bytes[-1]
            return self.us[-1] + (nbytes - self.bytes[-1]) * slope
        after = min(bisect_right(self.bytes, nbytes), len(self.bytes) - 1)
        low, high = self.bytes[after - 1], self.bytes[after]
        return _between(log(nbytes / low) / log(high / low), self.us[after - 1], self.us[after])

    def _warn(self, machine: str) -> None:
        # The same text for every size, from the same place whoever asked: Python's filter shows it once for each curve.
        warnings.warn(
            f"{machine}: {self.kind} among {self.ranks} ranks was measured up to {self.bytes[-1] / 2**20:g} MiB; "
            "beyond that its time is extrapolated at the last bandwidth",
            WeftWarning,
            stacklevel=4,
        )


def measured_us(curves: tuple[Curve, ...], ranks: int, nbytes: float, machine: str) -> float | None:
    """The time by curves of one kind and number of nodes, which ascend in ranks; None if they do not reach this group.

    Between two group sizes it is interpolated by the logarithm of the size. A permute does not depend on how many take
    part, so the nearest curve serves groups beyond the first and the last.
    """
    if not curves:
        return None
    if curves[0].kind == "permute":
        ranks = min(max(ranks, curves[0].ranks), curves[-1].ranks)
    above = next((curve for curve in curves if curve.ranks >= ranks), None)
    below = next((curve for curve in reversed(curves) if curve.ranks <= ranks), None)
    if above is None or below is None:
        return None
    if above is below:
        return above.at(nbytes, machine)
    share = log(ranks / below.ranks) / log(above.ranks / below.ranks)
    return _between(share, below.at(nbytes, machine), above.at(nbytes, machine))


def _between(share: float, low: float, high: float) -> float:
    """The value at a share of the way from low to high, on a logarithmic scale."""
    return low if low == high else exp(log(low) + share * log(high / low))
