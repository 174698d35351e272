"""Whether a decision is carried out: only if all ranks that the graph talks to have decided the same."""

from __future__ import annotations

import warnings

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


def consent(launches: Launches, settings: Settings) -> Verdict:
    """What the other ranks say. If they do not agree, there is a WeftWarning, or an AgreementError if that was wanted.

    A verdict may be that others launch something else already, under its `terms`: the graph must follow those then.
    """
    if alone() or len(launches.ranks) < 2:
        return Verdict(agreed=True)
    key = SESSION.told_apart(launches.key, launches.ranks)
    claim = Claim(key, settings.header, launches.lines, launches.ranks)
    again = SESSION.claims(key)
    verdict = agree(_get_default_store(), this_rank(), claim, timeout_s=settings.agreement_timeout_s, again=again)
    if not verdict.agreed and verdict.terms is None:
        if settings.on_disagreement == "error":
            raise AgreementError(verdict.why)
        warnings.warn(f"weft: this graph runs as it was, on all ranks: {verdict.why}", WeftWarning, stacklevel=2)
    return verdict
