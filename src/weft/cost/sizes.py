"""How many bytes of device memory ops touch."""

from __future__ import annotations

from collections.abc import Iterable

from weft.analysis.kernels import INDEXED, UNREAD
from weft.ir.dims import hint
from weft.ir.program import Op
from weft.ir.specs import DTYPES, Spec, TensorSpec


def touched_bytes(spec: Spec) -> int:
    """The bytes that a value's elements occupy: those of an expanded dimension are the same ones again.

    What lies on the host, or is no tensor, takes none.
    """
    if not isinstance(spec, TensorSpec) or spec.device:
        return 0
    if spec.strides is None:
        return spec.nbytes
    count = 1
    for size, stride in zip(spec.shape, spec.strides, strict=True):
        count *= hint(size) if stride != 0 or size == 0 else 1
    return count * DTYPES[spec.dtype]


def total(specs: Iterable[Spec]) -> int:
    """The bytes of several values."""
    return sum(map(touched_bytes, specs))


def read_bytes(op: Op, inputs: tuple[TensorSpec, ...]) -> int:
    """The bytes that an op reads of its tensor arguments: of a table, no more than it takes out of it."""
    unread = UNREAD.get(op.target, ())
    return sum(looked_up(op, place, spec) for place, spec in enumerate(inputs) if place not in unread)


def looked_up(op: Op, place: int, spec: TensorSpec) -> int:
    """The bytes that an op reads of its tensor argument number `place`."""
    if INDEXED.get(op.target) == place:
        return min(touched_bytes(spec), total(op.out))
    return touched_bytes(spec)
