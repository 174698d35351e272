"""Whether a decision is carried out: only if all ranks that the graph talks to have decided the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _world

from weft.errors import AgreementError, WeftWarning
from weft.run.agreement import Verdict, agree
from weft.run.claims import Launches
from weft.run.entries import Claim
from weft.run.session import SESSION
from weft.run.settings import Settings


def this_rank() -> int:
    """The rank of this process; 0 where there is only one."""
    return dist.get_rank() if dist.is_initialized() else 0


def alone() -> bool:
    """Whether there is nobody to agree with: one process, or ranks that are only made believe."""
    return not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake"


def group_lines() -> list[str]:
    """The groups that this process is in, and their ranks."""
    if not dist.is_initialized():
        return []
    # For the groups of others there is only a number.
    own = ((group, ranks) for group, ranks in _world.pg_group_ranks.items() if isinstance(group, dist.ProcessGroup))
    return sorted(f"{group.group_name}: {sorted(ranks)}" for group, ranks in own)


# Makes the graph launch what it is given, if it can, and tells what it launches then. AgreementError if it cannot.
Follow = Callable[[Sequence[str]], Launches]


def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
    """What the other ranks say. If they do not agree, there is a WeftWarning, or an AgreementError if that was wanted.

    A rank is asked to `follow`, and has to use what comes of that, in two cases: ranks differ only in what they launch,
    and all can launch what the lowest of them would; or others launch what was agreed upon before, whatever this rank
    says now. If it cannot do the latter there is an AgreementError.
    """
    if alone() or len(launches.ranks) < 2:
        return Verdict(agreed=True)
    key = SESSION.told_apart(launches.key, launches.ranks)
    claim = Claim(key, settings.header, launches.lines, launches.ranks)
    verdict = _asked(claim, settings)
    if verdict.proposal is not None:
        verdict = _as_proposed(claim, verdict.why, verdict.proposal.lines, settings, follow)
    if verdict.agreed:
        return verdict
    if verdict.terms is not None:
        _must_follow(follow, verdict.lines)
        return replace(verdict, agreed=True)
    if settings.on_disagreement == "error":
        raise AgreementError(verdict.why)
    warnings.warn(f"weft: this graph runs as it was, on all ranks: {verdict.why}", WeftWarning, stacklevel=2)
    return verdict


def _must_follow(follow: Follow, lines: Sequence[str]) -> None:
    try:
        follow(lines)
    except AgreementError as error:
        raise AgreementError(
            f"this rank compiled a graph anew, and the others go on with what all agreed upon before: {error}. So they "
            "would hang. Compile with dynamic=True, or mark what changes with torch._dynamo.mark_dynamic before the "
            "first step, so that no rank compiles alone"
        ) from error


def _as_proposed(claim: Claim, why: str, proposed: Sequence[str], settings: Settings, follow: Follow) -> Verdict:
    """The verdict on launching what was proposed; `why` is what ranks differed in before."""
    lines = claim.lines
    if lines != proposed:
        try:
            lines = follow(proposed).lines
        except AgreementError as error:
            lines = (f"nothing of it, since {error}",)
    verdict = _asked(replace(claim, key=f"{claim.key} as proposed", lines=lines), settings)
    if verdict.agreed or verdict.terms is not None:
        return verdict
    return Verdict(False, f"{why}; and they cannot all launch the same: {verdict.why}")


def _asked(claim: Claim, settings: Settings) -> Verdict:
    again = SESSION.claims(claim.key)
    return agree(_get_default_store(), this_rank(), claim, timeout_s=settings.agreement_timeout_s, again=again)
