"""How many bytes a collective is about."""

from __future__ import annotations

from weft.ir.program import Collective, Op


def total_bytes(op: Op) -> int:
    """The whole tensor of a start: the output of an all-gather, the input of a reduce-scatter or an all-reduce."""
    assert op.comm is not None, f"%{op.name} communicates nothing"
    return whole_bytes(op.comm, sum(spec.nbytes for spec in op.out))


def whole_bytes(comm: Collective, received: int) -> int:
    """The whole of which a collective leaves so many bytes with a rank."""
    return received * comm.group.size if comm.kind == "reduce_scatter" else received
