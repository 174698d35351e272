"""What a process remembers of its compilations: a backend of torch.compile is a plain function, and cannot."""

from __future__ import annotations

import sys
from collections import deque

from weft.run.reports import Report, log, put_on_record

_KEPT = 16  # a step has a forward and a backward, and is compiled anew a few times


class Session:
    """The last reports, and the keys of graphs for which this process has spoken to the other ranks."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=_KEPT)
        self._claimed: set[str] = set()
        self._partners: dict[str, list[tuple[int, ...]]] = {}

    def add(self, report: Report, rank: int) -> None:
        """Keep a report, and tell of it: in one line by rank 0, in full to those who asked for it."""
        self._reports.append(report)
        if log.hasHandlers():
            log.info("%s", report)
        elif rank == 0:
            sys.stderr.write(f"{report}\n")
        for remark in report.remarks:
            log.debug("%s", remark)
        put_on_record(report)

    @property
    def reports(self) -> tuple[Report, ...]:
        """Those that are kept, the newest first."""
        return tuple(reversed(self._reports))

    def last(self, role: str | None) -> Report | None:
        return next((one for one in self.reports if role in (None, one.role)), None)

    def told_apart(self, key: str, ranks: tuple[int, ...]) -> str:
        """The key under which a graph is claimed that talks to these ranks.

        Graphs may communicate alike over the rows of a mesh and over its columns. What was agreed upon with some ranks
        says nothing about others, so each further set of them has a key of its own, by the order in which they came.
        If that order is another one on other ranks, they do not name each other, and all run the graph as it was.
        """
        known = self._partners.setdefault(key, [])
        if ranks not in known:
            known.append(ranks)
        number = known.index(ranks)
        return f"{key} #{number}" if number else key

    def claims(self, key: str) -> bool:
        """Note that a key is claimed now; whether it was before."""
        again = key in self._claimed
        self._claimed.add(key)
        return again


SESSION = Session()


def last_report(role: str | None = None) -> Report | None:
    """What Weft did to the graph that was compiled last, or to the last "forward", "backward" or "inference"."""
    return SESSION.last(role)
