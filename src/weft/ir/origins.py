"""Where the user's code made an op: what an origin says."""

from __future__ import annotations

GRADIENT = "gradient of "  # how an origin begins where the capture knows whose gradient is reduced


def module_path(origin: str) -> str:
    """The path of the module or of the parameter in an origin; "" if it has only a place in a file."""
    first, _, place = origin.removeprefix(GRADIENT).partition(" ")
    return "" if not place and ":" in first else first
