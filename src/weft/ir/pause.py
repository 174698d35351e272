"""A pause for Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MUCH = 100_000  # objects


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile.

    A large graph is a hundred thousand objects, all of them alive. Making so many at once starts collections that
    look at every object of the process, find nothing, and take as long as the work itself. So does the first one after
    the pause, which looks at all that was made meanwhile; therefore that, if it is much, joins the objects that are
    known to last. What is little is left to be looked at: garbage among those that last is found late.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            made, *_ = gc.get_count()
            if made > _MUCH and not gc.get_freeze_count():  # what the user has frozen stays so
                gc.freeze()
                gc.unfreeze()  # not to where they were, but to the oldest generation
            gc.enable()
