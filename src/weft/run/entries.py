"""What ranks write into the store in order to agree, and how it is read back. What is read is data, and is checked.

The entry of a rank is short, as everybody reads everybody's. What it claims, and which ranks it names, lie beside it
under their digests, once for all ranks that say the same; the claims are read only by those who explain a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import AgreementError, visible
from weft.run.store import SharedStore, digest, packed, plain, unpacked

_SHOWN = 60  # characters of a strange value that are worth showing


@dataclass(frozen=True)
class Claim:
    """What a rank says of a graph that it wants to use.

    - `key`: which graph; the same on all ranks, and whenever the same step is compiled again
    - `header`: what decisions depend on: versions, machine, options
    - `lines`: the collectives, in the order in which they are launched
    - `ranks`: the ranks of all groups that the graph communicates over
    """

    key: str
    header: tuple[str, ...]
    lines: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """What the store holds for a rank: the digest of its claim and whom it names, or why its word does not count."""

    claimed: str = ""
    ranks: frozenset[int] = frozenset()
    refusal: str = ""


def refused(why: str) -> str:
    """The text of an entry for a rank whose word does not count."""
    return plain({"refused": why})


def announce(shared: SharedStore, claim: Claim) -> str:
    """Put into the store what an entry refers to, and return the entry's text, which is not written yet."""
    said, ranks = [claim.header, claim.lines], sorted(claim.ranks)
    try:
        parts = {_part(digest(value)): packed(value) for value in (said, ranks)}
    except AgreementError as error:
        return refused(f"its claim is too large: {error}")
    for key in shared.missing([*parts]):
        shared.write(key, parts[key])
    return plain({"claim": digest(said), "ranks": digest(ranks)})


def write_entry(shared: SharedStore, key: str, rank: int, text: str) -> None:
    """Write an entry, unless there is one."""
    shared.write_once(_cell(key, rank), text)


def await_entries(shared: SharedStore, key: str, ranks: Iterable[int]) -> bool:
    """Wait until all these ranks have an entry; False if it takes too long."""
    return shared.wait([_cell(key, rank) for rank in ranks])


def without_entry(shared: SharedStore, key: str, ranks: Iterable[int]) -> list[int]:
    """The ranks that have no entry so far."""
    cells = {_cell(key, rank): rank for rank in ranks}
    return [cells[one] for one in shared.missing([*cells])]


def read_entries(shared: SharedStore, key: str, ranks: Iterable[int]) -> dict[int, Entry]:
    """The entries of those of the ranks that have one."""
    cells = {_cell(key, rank): rank for rank in ranks}
    found = {cells[one]: data for one, data in shared.read([*cells]).items()}
    digests = {rank: _digests(data) for rank, data in found.items()}
    names = {one[1] for one in digests.values() if one is not None}
    parts = shared.read([*map(_part, names)])
    named = {name: _ranks(_intact(name, parts)) for name in names}  # once for all who name the same
    return {rank: _entry(data, digests[rank], named) for rank, data in found.items()}


def read_claim(shared: SharedStore, key: str, entry: Entry) -> Claim | None:
    """The claim that an entry refers to; None if the store does not hold it, or not intact."""
    said = _intact(entry.claimed, shared.read([_part(entry.claimed)]))
    if not (isinstance(said, list) and len(said) == 2 and all(map(_is_texts, said))):
        return None
    header, lines = said
    return Claim(key, tuple(header), tuple(lines), tuple(sorted(entry.ranks)))


def _cell(key: str, rank: int) -> str:
    return f"claims/{digest(key)}/{rank}"


def _part(name: str) -> str:
    return f"parts/{name}"


def _digests(data: bytes) -> tuple[str, str] | None:
    """What the entry of a claim refers to: the claim, and the ranks that it names."""
    value = _json(data)
    if not isinstance(value, dict) or value.keys() != {"claim", "ranks"} or not _is_texts([*value.values()]):
        return None
    return value["claim"], value["ranks"]


def _entry(data: bytes, digests: tuple[str, str] | None, named: Mapping[str, frozenset[int] | None]) -> Entry:
    if digests is None:
        value = _json(data)
        why = value.get("refused") if isinstance(value, dict) else None
        strange = f"the store holds no claim of it, but {_shown(data)}"
        return Entry(refusal=why if isinstance(why, str) and why else strange)
    ranks = named[digests[1]]
    return Entry(digests[0], ranks) if ranks is not None else Entry(refusal="what it claims is damaged in the store")


def _ranks(value: object) -> frozenset[int] | None:
    if not isinstance(value, list) or not all(isinstance(rank, int) and rank >= 0 for rank in value):
        return None
    return frozenset(value)


def _intact(name: str, parts: dict[str, bytes]) -> object:
    """The value whose digest this is, or None if what is there is something else."""
    try:
        value: object = unpacked(parts.get(_part(name), b""))
    except ValueError:
        return None
    return value if digest(value) == name else None


def _json(data: bytes) -> object:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


def _is_texts(values: Sequence[object]) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _shown(data: bytes) -> str:
    text = visible(data.decode(errors="replace"))
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
