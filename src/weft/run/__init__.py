"""Where programs run: virtual ranks in one process, real ones on this machine."""

from weft.run.local import local_ranks
from weft.run.virtual import virtual

__all__ = ["local_ranks", "virtual"]
