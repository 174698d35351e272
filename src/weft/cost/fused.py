"""How long a matmul takes that gathers its left factor, or scatters its result, on the way.

It works in as many steps as the group has ranks: in each, one shard is multiplied while the next one travels. A shard
comes from one rank at a time, by a copy engine, so compute is not slowed down meanwhile. What other collectives do on
the same links is not taken into account.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from weft.analysis.fused import GATHERS, Fused, fused_parts
from weft.cost.products import Device, Inputs, streamed
from weft.cost.sizes import total
from weft.errors import CostError
from weft.ir.dims import hint
from weft.ir.program import Collective, Group, Op
from weft.ir.specs import DTYPES

_BARRIERS = 3  # before the shards may be written, when they are there, and when nobody reads them any more


class Symmetric(Device, Protocol):
    """A device that may reach the memory of others. A Machine is one."""

    @property
    def name(self) -> str:
        """What people call it."""

    def is_symmetric(self, group: Group) -> bool:
        """Whether the ranks of a group have symmetric memory."""

    def peer_us(self, group: Group, nbytes: int) -> float:
        """How long it takes to read so many bytes from the memory of another rank of a group."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How such a matmul goes: so many shards, each multiplied and each but the first one brought meanwhile.

    `barriers_us` is for what the ranks meet, `copies_us` for what is copied around the steps.
    """

    count: int
    shard_us: float
    travel_us: float
    barriers_us: float
    copies_us: float

    @property
    def us(self) -> float:
        """How long it takes."""
        steps_us = self.shard_us + (self.count - 1) * max(self.shard_us, self.travel_us)
        return self.barriers_us + steps_us + self.copies_us

    @property
    def held_us(self) -> float:
        """For how long it does nothing but wait for other ranks."""
        return self.barriers_us + (self.count - 1) * max(0.0, self.travel_us - self.shard_us)


def fused_us(device: Symmetric, op: Op, inputs: Inputs) -> float:
    """The time of an op with a collective inside it; `inputs` are the specs of its tensor arguments, in order."""
    return fused_steps(device, op, inputs).us


def fused_steps(device: Symmetric, op: Op, inputs: Inputs) -> Steps:
    """How it goes. One whose arguments nobody understands only reads and writes."""
    found, comm = fused_parts(op, inputs), op.inside
    if isinstance(found, str) or comm is None:
        return Steps(1, 0.0, 0.0, 0.0, streamed(device, total(inputs) + total(op.out)))
    if not device.is_symmetric(comm.group):
        raise CostError(
            f"%{op.name} ({op.target}) needs symmetric memory, and {device.name} has none among the ranks of group "
            f"{comm.group.name}; split the matmul into chunks with collectives of their own"
        )
    gathers = op.target in GATHERS
    rows = prod(map(hint, found.left.shape[:-1]))
    sent = total(inputs[:1]) if gathers else total(op.out)
    return Steps(
        count=found.ranks,
        shard_us=_shard_us(device, found, rows, gathers),
        travel_us=device.peer_us(comm.group, sent),
        barriers_us=_barriers_us(device, comm.group),
        copies_us=_copied_us(device, found.ranks, sent, gathers) + _relaid_us(device, found),
    )


def around_us(device: Symmetric, comm: Collective, nbytes: int) -> tuple[float, float]:
    """What any such op takes at least for a collective of so many bytes: to meet and to copy; and for what travels."""
    ranks, sent = comm.group.size, nbytes // comm.group.size
    fixed = _barriers_us(device, comm.group) + _copied_us(device, ranks, sent, comm.kind == "all_gather")
    return fixed, (ranks - 1) * device.peer_us(comm.group, sent)


def _barriers_us(device: Symmetric, group: Group) -> float:
    return _BARRIERS * (device.launch_us + device.peer_us(group, 0))


def _shard_us(device: Device, found: Fused, rows: int, gathers: bool) -> float:
    """The products of one shard: so many rows of it, or of the depth or the columns where the last dimension is cut."""
    depth = hint(found.left.shape[-1])
    us = 0.0
    for right in found.rights:
        columns = hint(right.shape[1])
        m, n = rows, columns
        if not gathers:
            m, n = (rows, columns // found.ranks) if found.along_last else (rows // found.ranks, columns)
        us += device.matmul_us(found.left.dtype, 1, m, n, depth) if m * n * depth else device.launch_us
    return us


def _copied_us(device: Device, ranks: int, sent: int, gathers: bool) -> float:
    """A gather puts the rank's own shard where the others find it; a scatter adds up what came from everybody."""
    return streamed(device, 2 * sent if gathers else (ranks + 1) * sent)


def _relaid_us(device: Device, found: Fused) -> float:
    """A left factor whose dimension does not come first in memory is copied so that it does."""
    if found.along_last or all(size == 1 for size in found.left.shape[: found.dim]):
        return 0.0
    return streamed(device, 2 * prod(map(hint, found.left.shape)) * DTYPES[found.left.dtype])
