"""How many bytes a collective is about."""

from __future__ import annotations

from weft.ir.program import Op


def total_bytes(op: Op) -> int:
    """The whole tensor of a start: the output of an all-gather, the input of a reduce-scatter or an all-reduce."""
    assert op.comm is not None, f"%{op.name} communicates nothing"
    received = sum(spec.nbytes for spec in op.out)
    return received * op.comm.group.size if op.comm.kind == "reduce_scatter" else received
