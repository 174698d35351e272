"""Alignment of measured times: ranks that measured differently go on with the same numbers, and so decide alike.

As in `weft.run.agreement`, each rank has an entry that is written once: the ranks that it names, or a refusal by
somebody who has waited long enough; and a rank reaches those that it names, those that they name, and so on. Its times
lie beside its entry. The aligned times are a function of all that are reached, so whoever computes them gets the same.
To spare the store, the lowest rank does it for all, and the others do it themselves only if they wait for it in vain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from torch._C._distributed_c10d import Store

from weft.errors import AgreementError, CostError
from weft.run.cache import is_time
from weft.run.store import SharedStore, digest, packed, plain, unpacked


def aligned(
    store: Store, rank: int, ranks: Iterable[int], key: str, times: Mapping[str, float], *, timeout_s: float
) -> dict[str, float]:
    """The median of all ranks for each name: bit for bit the same on all of them, by name.

    `ranks` are those that this rank communicates with. They may be others on other ranks, as on a mesh: all that are
    reached through them, under the same key, get the same. A name that some ranks lack goes by those that have it; a
    rank that comes too late gets what the others have, and ranks that are reached only through that one are not.
    A key that was used before gives what it gave then, and nobody waits.
    Raises CostError for a time that cannot be, AgreementError if the store gives no answer within the time limit.
    """
    for name, us in times.items():
        if not is_time(us):
            raise CostError(f"a measured time must be a number of at least 0, not {us!r} for {name}")
    named, base = sorted({*ranks, rank}), f"times/{digest(key)}"
    own = packed({name: float(us) for name, us in times.items()})
    with SharedStore(store, timeout_s) as shared:
        try:
            shared.write_once(f"{base}/{rank}/own", own)
            shared.write_once(f"{base}/{rank}", plain(named))
            members = _reached(shared, base, named)
            data = _result(shared, base, members, rank)
        except AgreementError as error:
            raise AgreementError(f"times {key}: rank {rank} cannot learn those of the others: {error}") from error
    found = _times(data)
    if found is None:
        raise AgreementError(f"times {key}: what the store holds as their median is damaged")
    return found


def _reached(shared: SharedStore, base: str, named: Iterable[int]) -> list[int]:
    """The ranks that are reached through those that are named, without those that were refused."""
    found: dict[int, list[int]] = {}
    pending = [*named]
    while pending:
        cells = {f"{base}/{rank}": rank for rank in pending}
        if not shared.wait([*cells]):
            for cell in shared.missing([*cells]):
                shared.write_once(cell, plain([]))
        found |= {cells[cell]: _named(data) for cell, data in shared.read([*cells]).items()}
        pending = sorted({other for others in found.values() for other in others} - found.keys())
    return sorted(rank for rank, others in found.items() if others)


def _result(shared: SharedStore, base: str, members: list[int], rank: int) -> bytes:
    """What was decided, as it is in the store: by the one who leads, or else by whoever gives up waiting for that."""
    leader = members[0] if members else rank
    result = f"{base}/{leader}/median"
    if shared.has([result]) or (rank != leader and shared.wait([result])):
        return shared.read([result])[result]
    entries = shared.read([f"{base}/{member}/own" for member in members])
    return shared.write_once(result, packed(_median([_times(data) or {} for data in entries.values()])))


def _median(entries: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for entry in entries for name in entry})
    return {name: float(median([entry[name] for entry in entries if name in entry])) for name in names}


def _named(data: bytes) -> list[int]:
    """The ranks that an entry names; none if it is a refusal or holds anything else, which counts as one."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, list) or not all(type(rank) is int and rank >= 0 for rank in value):
        return []
    return value


def _times(data: bytes) -> dict[str, float] | None:
    """The times of an entry; None if it holds anything else, which counts as nothing."""
    try:
        value: Any = unpacked(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or not all(map(is_time, value.values())):
        return None
    return {name: float(us) for name, us in value.items()}
