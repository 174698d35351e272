"""What a fit to measured times is made of. Everything minimises the relative error, in absolute value: a few times
that are far off do not bend a curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def middle(values: Iterable[float]) -> float:
    """The value v that minimises the sum of |v / value - 1|: the median, where each value weighs its inverse."""
    ordered = sorted(values)
    half = sum(1 / value for value in ordered) / 2
    for value in ordered:
        half -= 1 / value
        if half <= 0:
            return value
    return ordered[-1]


def monotone(values: Sequence[float]) -> list[float]:
    """The rising sequence with the least sum of relative errors: the best that any curve could do on these values."""
    count = len(values)
    between = {(a, b): middle(values[a : b + 1]) for a in range(count) for b in range(a, count)}
    return [max(min(between[a, b] for b in range(i, count)) for a in range(i + 1)) for i in range(count)]
