"""Where programs run: under torch.compile, on virtual ranks in one process, on real ones; how long ops take here.

What needs Inductor is imported when it is asked for: each rank that is started here would wait seconds for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.run.benchmark import benchmark
from weft.run.benchmark_collectives import benchmark_collectives
from weft.run.comparison import Comparison
from weft.run.local import local_ranks
from weft.run.profiling import profile
from weft.run.reports import Report
from weft.run.session import last_report
from weft.run.settings import Settings
from weft.run.virtual import virtual

if TYPE_CHECKING:
    from weft.run.backend import compile  # noqa: A004
    from weft.run.hook import enabled, install

__all__ = [
    "Comparison",
    "Report",
    "Settings",
    "benchmark",
    "benchmark_collectives",
    "compile",
    "enabled",
    "install",
    "last_report",
    "local_ranks",
    "profile",
    "virtual",
]

_NEED_INDUCTOR = {"compile": "weft.run.backend", "enabled": "weft.run.hook", "install": "weft.run.hook"}


def __getattr__(name: str) -> Any:
    if name not in _NEED_INDUCTOR:
        raise AttributeError(f"module 'weft.run' has no attribute {name!r}")
    return getattr(import_module(_NEED_INDUCTOR[name]), name)
