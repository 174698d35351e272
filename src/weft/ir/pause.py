"""A pause for Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile.

    A large graph is a hundred thousand objects, all of them alive. Making so many at once starts collections that
    look at every object of the process, find nothing, and take as long as the work itself. So does the first one after
    the pause, which looks at all that was made meanwhile; therefore that joins the objects that are known to last.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # what the user has frozen stays so
                gc.freeze()
                gc.unfreeze()  # not to where they were, but to the oldest generation
            gc.enable()
