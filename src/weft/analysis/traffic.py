"""How many bytes a collective is about."""

from __future__ import annotations

from weft.ir.args import refs
from weft.ir.program import Collective, Op, Program


def total_bytes(op: Op) -> int:
    """The whole tensor of a start: the output of an all-gather, the input of a reduce-scatter or an all-reduce."""
    assert op.comm is not None, f"%{op.name} communicates nothing"
    return whole_bytes(op.comm, sum(spec.nbytes for spec in op.out))


def whole_bytes(comm: Collective, received: int) -> int:
    """The whole of which a collective leaves so many bytes with a rank."""
    return received * comm.group.size if comm.kind == "reduce_scatter" else received


def inside_bytes(program: Program, op: Op) -> int:
    """The whole tensor of the collective inside a matmul: what it gathers, or the product that it scatters."""
    assert op.inside is not None, f"%{op.name} has no collective inside"
    if op.inside.kind == "reduce_scatter":
        return whole_bytes(op.inside, sum(spec.nbytes for spec in op.out))
    return op.inside.group.size * sum(spec.nbytes for ref in refs(op.args[0]) for spec in program[ref.name].out)
