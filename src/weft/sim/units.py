"""Times and sizes as people read them."""

from __future__ import annotations

from math import ceil

_LONG_US = 10_000.0


def time_text(us: float) -> str:
    """Microseconds, from ten thousand on as milliseconds."""
    return f"{us:,.1f} us" if abs(us) < _LONG_US else f"{us / 1e3:,.2f} ms"


def size_text(nbytes: int) -> str:
    """Bytes, from a million on as megabytes, and from a thousand million on as gigabytes."""
    if nbytes < 1_000_000:
        return f"{nbytes:,} bytes"
    return f"{nbytes / 1e6:,.1f} MB" if nbytes < 1_000_000_000 else f"{nbytes / 1e9:,.2f} GB"


def amount(nbytes: float) -> str:
    """At least so many bytes, as a memory limit is written: such as 70.66GB."""
    unit, name = (1, "B") if nbytes < 1e6 else (1e6, "MB") if nbytes < 1e9 else (1e9, "GB")
    number = nbytes / unit
    fine = 1000 / 10 ** max(0, len(str(int(number))) - 1)  # four digits
    return f"{ceil(number * fine) / fine:g}{name}" if unit > 1 else f"{ceil(number)}B"
