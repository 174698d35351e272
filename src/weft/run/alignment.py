"""Alignment of measured times: ranks that measured differently go on with the same numbers, and so decide alike.

As in `weft.run.agreement`, each rank has an entry that is written once: its times, or a refusal by somebody who has
waited long enough. The aligned times are a function of all entries, so whoever computes them gets the same. To spare
the store, the lowest rank does it for all, and the others do it themselves only if they wait for it in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from torch._C._distributed_c10d import Store

from weft.errors import AgreementError, CostError
from weft.run.cache import is_time
from weft.run.store import SharedStore, digest, packed, unpacked


def aligned(
    store: Store, rank: int, ranks: Iterable[int], key: str, times: Mapping[str, float], *, timeout_s: float
) -> dict[str, float]:
    """The median of all ranks for each name: bit for bit the same on all of them, by name.

    All must call this with the same ranks and key. A name that some ranks lack goes by those that have it; a rank that
    comes too late gets what the others have. A key that was used before gives what it gave then, and nobody waits.
    Raises CostError for a time that cannot be, AgreementError if the store gives no answer within the time limit.
    """
    for name, us in times.items():
        if not is_time(us):
            raise CostError(f"a measured time must be a number of at least 0, not {us!r} for {name}")
    members = sorted({*ranks, rank})
    base = f"times/{digest([key, members])}"
    cells, result = [f"{base}/{member}" for member in members], f"{base}/median"
    own = packed({name: float(us) for name, us in times.items()})
    with SharedStore(store, timeout_s) as shared:
        try:
            shared.write_once(f"{base}/{rank}", own)
            data = _result(shared, cells, result, leads=rank == members[0])
        except AgreementError as error:
            raise AgreementError(f"times {key}: rank {rank} cannot learn those of the others: {error}") from error
    found = _times(data)
    if found is None:
        raise AgreementError(f"times {key}: what the store holds as their median is damaged")
    return found


def _result(shared: SharedStore, cells: list[str], result: str, leads: bool) -> bytes:
    """What was decided, as it is in the store: by the one who leads, or else by whoever gives up waiting for that."""
    if shared.has([result]) or (not leads and shared.wait([result])):
        return shared.read([result])[result]
    if not shared.wait(cells):
        for cell in shared.missing(cells):
            shared.write_once(cell, packed({}))
    entries = shared.read(cells)
    return shared.write_once(result, packed(_median([_times(entries[cell]) or {} for cell in cells])))


def _median(entries: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for entry in entries for name in entry})
    return {name: float(median([entry[name] for entry in entries if name in entry])) for name in names}


def _times(data: bytes) -> dict[str, float] | None:
    """The times of an entry; None if it holds anything else, which counts as nothing."""
    try:
        value: Any = unpacked(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or not all(map(is_time, value.values())):
        return None
    return {name: float(us) for name, us in value.items()}
