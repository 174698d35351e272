"""The peak memory of a Program, counted in another way than `weft.analysis.memory` does it, to check that."""

from __future__ import annotations

from collections import Counter

from weft.analysis import pairs
from weft.analysis.storages import storages
from weft.ir import Op, Program
from weft.ir.args import refs


def live_bytes(subject: Program) -> int:
    """The peak, by going through the ops as an allocator would: a storage is let go with the last of its holders.

    Holders of a storage are the ops that name it; a collective's waits hold all that it sends.
    One that is returned or not given away, or in flight at the end, has a holder that never lets go.
    """
    known, waits = storages(subject), pairs(subject).waits
    holders = Counter[int]()
    held_by = {op.name: _held_by(subject, op) for op in subject.ops}
    for held in held_by.values():
        holders.update(held)
    for value in (ref.name for output in subject.outputs for ref in refs(output)):
        holders.update(known.of_value(value))
    for op in subject.ops:
        if op.target == "get_attr" or (op.is_input and not op.kwargs.get("donated")):
            holders.update(known.of_value(op.name))
        if op.is_start and not waits[op.name]:
            holders.update(held_by[op.name])
    given = {known.of_value(op.name) for op in subject.ops if op.is_input or op.target == "get_attr"}
    live = set[int]().union(*given)
    peak = now = sum(known.nbytes[storage] for storage in live)
    for op in subject.ops:
        now += sum(known.nbytes[storage] for storage in held_by[op.name] - live)
        live |= held_by[op.name]
        peak = max(peak, now)
        holders.subtract(held_by[op.name])
        gone = {storage for storage in live if not holders[storage]}
        now -= sum(known.nbytes[storage] for storage in gone)
        live -= gone
    return peak


def _held_by(subject: Program, op: Op) -> set[int]:
    known = storages(subject)
    names = {op.name, *(ref.name for ref in op.refs())}
    if op.name in pairs(subject).start:
        start = subject[pairs(subject).start[op.name]]
        names |= {ref.name for ref in start.refs()}
    return set().union(*(known.of_value(name) for name in names))
