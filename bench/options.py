"""What the benchmarks' command lines share."""

from __future__ import annotations

from argparse import ArgumentTypeError

from bench.workloads import WORKLOADS


def listed(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",")]


def known_workloads(text: str) -> list[str]:
    """Names of workloads between commas."""
    names = listed(text)
    for name in names:
        if name not in WORKLOADS:
            raise ArgumentTypeError(f"{name!r} is no workload; there are {', '.join(WORKLOADS)}")
    return names


def ratios(text: str) -> list[float]:
    """Communication to compute, separated by commas."""
    try:
        found = list(map(float, listed(text)))
    except ValueError:
        found = []
    if not found or not all(0.01 <= ratio <= 100 for ratio in found):
        raise ArgumentTypeError(f"ratios are numbers from 0.01 to 100, separated by commas, not {text!r}")
    return found


def count(text: str) -> int:
    """How often."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"this is a number of times, at least 1, not {text!r}")
    return int(text)
