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
