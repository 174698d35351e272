"""Where programs run: under torch.compile, on virtual ranks in one process, on real ones; how long ops take here."""

from weft.run.backend import compile  # noqa: A004
from weft.run.benchmark import benchmark
from weft.run.benchmark_collectives import benchmark_collectives
from weft.run.comparison import Comparison
from weft.run.hook import enabled, install
from weft.run.local import local_ranks
from weft.run.profiling import profile
from weft.run.reports import Report
from weft.run.session import last_report
from weft.run.settings import Settings
from weft.run.virtual import virtual

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
