"""From measured rows to a few knots: monotone curves for collectives, surfaces for matmuls.

Everything minimises the relative error, which is what the presets are judged by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import exp, inf, log

from bench.measured import Matmul
from weft.cost.curves import Curve
from weft.cost.fitting import middle, monotone
from weft.cost.matmul import Surface, flop_us

Point = tuple[float, float]  # bytes, microseconds

_TOLERANCE = 0.04  # a knot that the line between its neighbours misses by less is left out


def knots(points: Iterable[Point]) -> list[Point]:
    """A monotone curve through measured points, with few knots.

    Where sizes are missing, straight lines on logarithmic axes would cut the corner between latency and bandwidth. So a
    smooth corner is fitted first, and what is interpolated is how far the points are from it.
    """
    points = sorted(points)
    corner = _corner(points)
    sizes = [points[0][0]]
    while sizes[-1] * 1.5 < points[-1][0]:
        sizes.append(sizes[-1] * 2)
    sizes[-1:] = [points[-1][0]]
    ratios = Curve("", 1, 1, tuple(size for size, _ in points), tuple(us / corner(size) for size, us in points))
    times = monotone([ratios.at(size, "") * corner(size) for size in sizes])
    return _simplified(list(zip(sizes, times, strict=True)))


def _corner(points: Sequence[Point]) -> Callable[[float], float]:
    """The best of a grid of curves (a^p + (bytes / bandwidth)^p)^(1/p): latency, bandwidth, sharpness of the corner."""
    latency = middle(us for _, us in points[: max(3, len(points) // 3)])
    bandwidth = max(size / us for size, us in points)
    steps = [0.6 * 1.15**i for i in range(8)]

    def curve(low: float, fast: float, sharp: float) -> Callable[[float], float]:
        return lambda size: ((low * latency) ** sharp + (size / (fast * bandwidth)) ** sharp) ** (1 / sharp)

    def error(one: Callable[[float], float]) -> float:
        return sum(abs(one(size) / us - 1) for size, us in points)

    return min((curve(*choice) for choice in product(steps, steps, (1.0, 1.5, 2.0, 3.0))), key=error)


def _simplified(points: list[Point]) -> list[Point]:
    """The points without those that the rest already tells: split at the worst one until none is worse than allowed."""
    (first, low), (last, high) = points[0], points[-1]

    def missed(at: int) -> float:
        size, us = points[at]
        return abs(log(low) + log(high / low) * log(size / first) / log(last / first) - log(us))

    worst = max(range(1, len(points) - 1), key=missed, default=0)
    if not worst or missed(worst) <= _TOLERANCE:
        return [points[0], points[-1]]
    return _simplified(points[: worst + 1])[:-1] + _simplified(points[worst:])


def surfaces(dtype: str, rows: list[Matmul], peak_tflops: float) -> list[Surface]:
    """One surface for a dtype, or one each for single and batched matmuls where that predicts unseen rows better."""
    parts: dict[bool | None, list[Matmul]] = {
        batched: [row for row in rows if (row.shape[0] > 1) == batched] for batched in (False, True)
    }
    apart = sum(_unseen_error(part, peak_tflops) for part in parts.values())
    if apart > _unseen_error(rows, peak_tflops):
        parts = {None: rows}
    return [_surface(dtype, batched, part, peak_tflops) for batched, part in parts.items()]


def scaled(surface: Surface, speed: float) -> Surface:
    """The surface of a device that has so many times the arithmetic."""

    def rate(area: float, k: float, before: float) -> float:
        return flop_us(area, k, 1.0) / surface.at_speed(flop_us(area, k, before), area, k, speed)

    rows = zip(surface.areas, surface.tflops, strict=True)
    tflops = tuple(tuple(rate(a, k, one) for k, one in zip(surface.depths, row, strict=True)) for a, row in rows)
    return replace(surface, tflops=tflops)


def _unseen_error(rows: list[Matmul], peak_tflops: float) -> float:
    """The sum of relative errors on each fifth of the rows by what is fitted on the other four."""
    error = 0.0
    for fifth in range(5):
        surface = _surface("", None, [row for at, row in enumerate(rows) if at % 5 != fifth], peak_tflops)
        error += sum(abs(surface.us(*row.shape) / row.us - 1) for row in rows[fifth::5])
    return error


def _surface(dtype: str, batched: bool | None, rows: list[Matmul], peak_tflops: float) -> Surface:
    """A knot for every area and depth that was measured, and for those in between that were not.

    Rates beyond the peak are capped: some f32 rows must have run in another precision. And times are made to rise.
    """
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        cells[row.area, row.shape[3]].append(row.us)
    areas, depths = sorted({area for area, _ in cells}), sorted({k for _, k in cells})
    logs = _filled([[log(middle(cells[a, k]) / (a * k)) if (a, k) in cells else inf for k in depths] for a in areas])
    us = [
        [max(exp(one) * a * k, flop_us(a, k, peak_tflops)) for one, k in zip(line, depths, strict=True)]
        for line, a in zip(logs, areas, strict=True)
    ]
    for i, j in product(range(len(areas)), range(len(depths))):
        us[i][j] = max(us[i][j], us[i - 1][j] if i else 0.0, us[i][j - 1] if j else 0.0)
    tflops = tuple(
        tuple(flop_us(a, k, 1.0) / one for one, k in zip(line, depths, strict=True))
        for line, a in zip(us, areas, strict=True)
    )
    return Surface(dtype, batched, tuple(map(float, areas)), tuple(map(float, depths)), tflops)


def _filled(table: list[list[float]]) -> list[list[float]]:
    """The table with its holes (infinite) filled: the mean of what three neighbours that form a corner with it say."""
    while any(inf in row for row in table):
        table = [
            [one if one < inf else _guess(table, i, j) for j, one in enumerate(row)] for i, row in enumerate(table)
        ]
    return table


def _guess(table: list[list[float]], i: int, j: int) -> float:
    """A hole's value if rows and columns differ by a constant, or that of a neighbour; still a hole if it has none."""
    across = [row for row in (i - 1, i + 1) if 0 <= row < len(table)]
    along = [column for column in (j - 1, j + 1) if 0 <= column < len(table[0])]
    corners = [table[r][j] + table[i][c] - table[r][c] for r in across for c in along if table[r][c] < inf]
    known = [one for one in corners if one < inf] or [one for r in across if (one := table[r][j]) < inf]
    return sum(known) / len(known) if known else inf
