"""Where programs run: virtual ranks in one process, real ones on this machine; and how long ops take here."""

from weft.run.benchmark import benchmark
from weft.run.benchmark_collectives import benchmark_collectives
from weft.run.local import local_ranks
from weft.run.virtual import virtual

__all__ = ["benchmark", "benchmark_collectives", "local_ranks", "virtual"]
