"""How long a matmul takes: a measured surface over the size of its result and the depth of its sum."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

# Kernels compute results in tiles, and a part of a tile takes as long as a whole one. Every measured shape is a
# multiple of 256 and cannot tell the tile's side: this is an estimate, the side of most kernels for tensor cores.
_TILE = 128


@dataclass(frozen=True, slots=True)
class Surface:
    """The rate at which matmuls of one dtype run, in TFLOP/s, by `areas` (b·m·n, a row each) and `depths` (k).

    `batched` says whether it was measured on batches (b > 1), on single matmuls, or (None) on both. Time never falls
    from a knot to a larger one, so neither does anything in between.
    """

    dtype: str
    batched: bool | None
    areas: tuple[float, ...]
    depths: tuple[float, ...]
    tflops: tuple[tuple[float, ...], ...]

    @property
    def top_tflops(self) -> float:
        """The best rate that was measured."""
        return max(max(row) for row in self.tflops)

    def us(self, b: int, m: int, n: int, k: int, speed: float = 1.0) -> float:
        """The time of b matmuls m×k by k×n; with a `speed` other than 1, on arithmetic that is so much faster."""
        area = float(b * padded(m) * padded(n))
        return self.at_speed(self._measured_us(area, float(k)), area, k, speed)

    def pieces_us(self, b: int, m: int, n: int, k: int, speed: float = 1.0) -> float:
        """The least that matmuls take together into which these are cut, along any of their dimensions.

        None of them has a larger result or a deeper sum, so none runs at a better rate than the best up to there. On
        logarithmic axes that is reached at a knot or at the edge, as everything between is interpolated.
        """
        area = float(b * padded(m) * padded(n))
        whole = flop_us(max(area, self.areas[0]), max(float(k), self.depths[0]), self.best_tflops(area, k))
        return self.at_speed(whole * self._shallow(k), area, k, speed)

    def best_tflops(self, area: float, depth: float) -> float:
        """The best rate of matmuls whose results are no larger and whose sums are no deeper than these."""
        most = max(area, self.areas[0]), max(float(depth), self.depths[0])
        areas = [*self.areas[: bisect_left(self.areas, most[0])], most[0]]
        depths = [*self.depths[: bisect_left(self.depths, most[1])], most[1]]
        return max(self._tflops(one, other) for one in areas for other in depths)

    def at_speed(self, us: float, area: float, k: float, speed: float) -> float:
        """A time of this surface on other arithmetic.

        Slower arithmetic adds what it takes longer at the best rate: starting, filling and emptying the device takes
        what it takes. Faster arithmetic is a newer device, and taken to be faster in all of it.
        """
        if speed >= 1:
            return us / speed
        return us + flop_us(area, k, self.top_tflops) * (1 / speed - 1)

    def _measured_us(self, area: float, k: float) -> float:
        """Interpolated on logarithmic axes. Beyond the last knots the rate stays, below the smallest area the time."""
        area, depth = max(area, self.areas[0]), max(k, self.depths[0])
        return flop_us(area, depth, self._tflops(area, depth)) * self._shallow(k)

    def _shallow(self, k: float) -> float:
        """What a sum that is not as deep as any that was measured takes, as a part of the first that was.

        Half of the time is taken to be for the result, which is written in any case.
        """
        return min(1.0, (1 + k / self.depths[0]) / 2)

    def _tflops(self, area: float, k: float) -> float:
        """The rate at a point that is not before the first knots."""
        row, down = _position(self.areas, area)
        column, right = _position(self.depths, k)
        rates = [
            log(self.tflops[row][column]) * (1 - right) + log(self.tflops[row][column + 1]) * right,
            log(self.tflops[row + 1][column]) * (1 - right) + log(self.tflops[row + 1][column + 1]) * right,
        ]
        return exp(rates[0] * (1 - down) + rates[1] * down)


def flop_us(area: float, k: float, tflops: float) -> float:
    """How long the two operations for each of area·k products take at a rate."""
    return 2 * area * k / tflops / 1e6


def padded(size: int) -> int:
    """A size in whole tiles."""
    return -(-size // _TILE) * _TILE


def _position(knots: Sequence[float], value: float) -> tuple[int, float]:
    """The knot before a value, and how far it is to the next, from 0 to 1, by logarithms."""
    at = min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
    share = log(value / knots[at]) / log(knots[at + 1] / knots[at])
    return at, min(share, 1.0)
