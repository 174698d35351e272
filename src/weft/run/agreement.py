"""Agreement of ranks: before a rank uses a graph, all that it communicates with have decided to use theirs.

Each rank compiles on its own, and a rank that launches other collectives than the rest, or in another order, hangs the
step or corrupts it. So ranks compare what they are about to launch, through the store of torch.distributed: a
collective would itself hang where a rank is missing.

**Protocol.** For each key, every rank has one entry in the store, which is written once, by compare-and-set. The rank
itself writes its claim there. Whoever has waited long enough for a rank writes a refusal in its place. What a rank
*reaches* is itself, the ranks that its claim names, those that their claims name, and so on. It reads the entries of
all that it reaches, and the verdict is a function of them: yes, if all are claims, all say the same, and all who are
named name back.

**Why two ranks that name each other always get the same verdict.** An entry never changes. If both have claims, both
reach the same ranks, read the same entries, and apply the same function; a rank that stops early does so because it
saw a refusal, which the other has to read as well before it could say yes. If one has a refusal, it finds that when it
comes to write its claim, and says no; the other reads it, and says no. The same follows along any chain of ranks that
name each other.

**Why nobody needs to know who takes part.** There is no decision to be stored, so there is none to be stored in the
wrong place. Pipeline stages do not reach each other, and do not share a verdict, even under one key. A rank whose time
is up refuses those that it waits for, and with that has told everybody who reaches them, also those it never heard of.

**Why nobody waits for one that compiles again.** Its entry stands, and so do all that it reaches. The verdict is known
at once, and the new claim is compared with the one that stands. If it names a rank that took no part then, nobody knows
what that one launches, and the rank raises.

**Why ranks that differ only in what they launch try once more.** Shards of different sizes take different times, so
ranks may come to different plans for one step. Then the verdict is no, and has a proposal: what the lowest rank claims.
That is a function of the entries, so it is the same on all. Each tries to launch it, and they agree once more, under
another key; a rank that cannot claims something else there, and no it is. So nobody launches anything on a proposal.

**A store that fails.** Before a rank's claim is on its way there can be no yes, so no is safe. Afterwards the outcome
is unknown to it, even if the call failed: a request may be carried out when nobody waits for it any more. So it raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from torch._C._distributed_c10d import Store

from weft.errors import AgreementError, visible
from weft.ir.printer import print_ranks
from weft.run.entries import (
    Claim,
    Entry,
    announce,
    await_entries,
    read_claim,
    read_entries,
    refused,
    without_entry,
    write_entry,
)
from weft.run.store import SharedStore

_SHOWN = 200  # characters of a line that are worth showing

_Entries = Mapping[int, Entry]
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True)
class Verdict:
    """What ranks decided on a graph.

    - `agreed`: the rank may use the graph of its claim, as all the others use theirs
    - `why`: if not, which ranks are the reason, and the first difference
    - `followed`: the rank had made the same claim before, and now again
    - `terms`: the claim that is in force. Where there is one though the rank is not `agreed`, the others launch what it
      says: this rank must launch that too, or stop, as any other graph would hang against theirs
    - `proposal`: if ranks differ only in what they launch, the claim of the lowest of them, which all might follow
    """

    agreed: bool
    why: str = ""
    followed: bool = False
    terms: Claim | None = None
    proposal: Claim | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What all ranks launch; nothing if they agreed on nothing."""
        return self.terms.lines if self.terms is not None else ()


def agree(store: Store, rank: int, claim: Claim, *, timeout_s: float, again: bool = False) -> Verdict:
    """Claim a graph, and learn within the time limit whether all ranks that it communicates with claim the same.

    Three quarters of the time are for waiting; the rest is for the store. `again` says that this process has claimed
    the key before: then a store that fails cannot mean no. Raises AgreementError if the outcome cannot be known.
    """
    claim = replace(claim, ranks=tuple(sorted({*claim.ranks, rank})))
    with SharedStore(store, timeout_s) as shared:
        stood = False
        try:
            stood = not without_entry(shared, claim.key, [rank])
            text = announce(shared, claim)
        except AgreementError as error:
            if again or stood:
                raise _unknown(rank, claim.key, error) from error
            return Verdict(False, f"graph {claim.key}: rank {rank} could not post its claim: {error}")
        try:
            write_entry(shared, claim.key, rank, text)
            return _decide(shared, rank, claim, stood)
        except AgreementError as error:
            raise _unknown(rank, claim.key, error) from error


def _decide(shared: SharedStore, rank: int, claim: Claim, stood: bool) -> Verdict:
    """The verdict on a claim. If one `stood` there before, the verdict is on that, and the new one has to follow it."""
    entries = _reached(shared, claim.key, rank)
    why = _objections(shared, claim.key, entries)
    if why:
        return Verdict(False, why, proposal=_proposal(shared, claim.key, entries))
    terms = _standing(shared, claim.key, entries[rank]) if stood else claim
    if terms == claim:
        return Verdict(True, followed=stood, terms=terms)
    if strangers := {*claim.ranks} - entries.keys():
        raise AgreementError(f"{_ranks(strangers)} took no part in what was agreed on before")
    sides = {"as all ranks agreed before": terms, f"now on rank {rank}": claim}
    why = _first_difference(sides) or f"{_ranks(terms.ranks)} were named before, and now {_ranks(claim.ranks)}"
    return Verdict(False, f"graph {claim.key}: {why}", terms=terms)


def _proposal(shared: SharedStore, key: str, entries: _Entries) -> Claim | None:
    """What the lowest rank claims, if all claim the same but for what they launch; None also if that is not sure."""
    if any(entry.refusal for entry in entries.values()) or any(_one_sided(entries)):
        return None
    lowest = _grouped({rank: entry.claimed for rank, entry in entries.items()})
    try:
        claims = [read_claim(shared, key, entries[ranks[0]]) for ranks in lowest.values()]
    except AgreementError:  # then the others wait for this rank in vain, and go on without a proposal as well
        return None
    headers = {claim.header if claim is not None else None for claim in claims}
    return claims[0] if len(headers) == 1 else None


def _standing(shared: SharedStore, key: str, entry: Entry) -> Claim:
    claim = read_claim(shared, key, entry)
    if claim is None:
        raise AgreementError("the claim that was agreed on is damaged in the store")
    return claim


def _unknown(rank: int, key: str, error: AgreementError) -> AgreementError:
    return AgreementError(
        f"graph {key}: rank {rank} cannot learn whether the ranks agreed: {error}. They may run the optimised graph or "
        "the one as written, and with the wrong one this rank would hang them all; start the job again"
    )


# Who takes part


def _reached(shared: SharedStore, key: str, rank: int) -> _Entries:
    """The entries of all that a rank reaches, up to the first refusals, with which the verdict is clear."""
    found: dict[int, Entry] = {}
    pending = [rank]
    while pending:
        found |= _awaited(shared, key, pending)
        if any(entry.refusal for entry in found.values()):
            break
        pending = sorted({one for entry in found.values() for one in entry.ranks} - found.keys())
    return dict(sorted(found.items()))  # so that all ranks explain it alike


def _awaited(shared: SharedStore, key: str, ranks: list[int]) -> _Entries:
    """The entries of ranks that are waited for; and then refused, if they have none."""
    if not await_entries(shared, key, ranks):
        for absent in without_entry(shared, key, ranks):
            write_entry(shared, key, absent, refused(f"late or absent, as nothing came for {shared.patience_s:g} s"))
    return read_entries(shared, key, ranks)


# What they say


def _objections(shared: SharedStore, key: str, entries: _Entries) -> str:
    """Why the graph cannot be used; nothing if it can."""
    found = [*_refusals(entries)]
    if len({entry.claimed for entry in entries.values() if not entry.refusal}) > 1:
        found.append(_difference(shared, key, entries))
    found = found or [*_one_sided(entries)]
    return f"graph {key}: " + "; ".join(found) if found else ""


def _refusals(entries: _Entries) -> Iterable[str]:
    for why, ranks in _grouped({rank: entry.refusal for rank, entry in entries.items() if entry.refusal}).items():
        yield f"{_ranks(ranks)}: {why}"


def _one_sided(entries: _Entries) -> Iterable[str]:
    """Ranks that are named and do not name back."""
    for rank, entry in entries.items():
        silent = [other for other in entry.ranks if rank not in entries[other].ranks]
        if silent:
            yield f"rank {rank} communicates with {_ranks(silent)} in it, but not the other way round"


def _difference(shared: SharedStore, key: str, entries: _Entries) -> str:
    """The first thing in which claims differ, and who says what."""
    by_claim = _grouped({rank: entry.claimed for rank, entry in entries.items() if not entry.refusal})
    try:
        claims = {f"on {_ranks(ranks)}": read_claim(shared, key, entries[ranks[0]]) for ranks in by_claim.values()}
    except AgreementError as error:  # it is no, with or without the details
        return f"claims differ on {' and on '.join(map(_ranks, by_claim.values()))}; in what cannot be told: {error}"
    damaged = [who for who, claim in claims.items() if claim is None]
    if damaged:
        return f"claims differ {' and '.join(claims)}; what is claimed {' and '.join(damaged)} is damaged in the store"
    return _first_difference({who: claim for who, claim in claims.items() if claim is not None})


def _first_difference(claims: Mapping[str, Claim]) -> str:
    """Where claims part, and who says what there, in the words that they go by; nothing if they say the same."""
    headers = zip_longest(*(claim.header for claim in claims.values()))
    lines = zip_longest(*(claim.lines for claim in claims.values()))
    places = [("", said) for said in headers] + [
        (f"collective {number} is ", said) for number, said in enumerate(lines)
    ]
    for place, said in places:
        if len({*said}) > 1:
            who = _grouped(dict(zip(claims, said, strict=True)))
            return place + ", ".join(f"{_quoted(line)} {' and '.join(names)}" for line, names in who.items())
    return ""


def _grouped(values: Mapping[_K, _V]) -> dict[_V, list[_K]]:
    """Who has which value, in the order in which values come first."""
    found: dict[_V, list[_K]] = {}
    for who, value in values.items():
        found.setdefault(value, []).append(who)
    return found


def _ranks(ranks: Iterable[int]) -> str:
    which = tuple(sorted(ranks))
    return f"rank{'s' if len(which) > 1 else ''} {print_ranks(which)}"


def _quoted(line: str | None) -> str:
    if line is None:
        return "nothing"
    return f'"{visible(line[:_SHOWN])}{"…" if len(line) > _SHOWN else ""}"'
