"""What a value is: `TensorSpec` for tensors, `ScalarSpec` for everything else that flows through a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from weft.ir.dims import Dim, hint, product

# Bytes of one element. Names are short in programs; `fx/` knows torch's names for them.
DTYPES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2,
    "f8e4m3fn": 1, "f8e4m3fnuz": 1, "f8e5m2": 1, "f8e5m2fnuz": 1, "f8e8m0fnu": 1, "f4e2m1fnx2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
    "c128": 16, "c64": 8, "c32": 4,
    "qi8": 1, "qu8": 1, "qi32": 4,
}  # fmt: skip

SCALARS = ("int", "float", "bool", "str", "none", "object")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's shape, dtype and layout.

    `strides` is None for row-major. `device` is empty for the device that the program runs on, whatever the
    Machine says that is; "cpu" marks a host tensor beside it.
    """

    shape: tuple[Dim, ...]
    dtype: str
    strides: tuple[Dim, ...] | None = None
    device: str = ""
    _count: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def count(self) -> int:
        """How many elements, by the hints of its symbols. It is asked for again and again, so it is kept."""
        if self._count is None:
            object.__setattr__(self, "_count", hint(self.numel))
        assert self._count is not None
        return self._count

    @property
    def numel(self) -> Dim:
        """How many elements: symbolic if the shape is."""
        return product(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, by the hints of its symbols."""
        return self.count * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A value that is no tensor and takes no device memory: a number, nothing, or an object such as a group.

    `value` is known for sizes: a `sym_size` whose result is `4*s0` says so.
    """

    dtype: str
    value: Dim | None = None

    shape: ClassVar[tuple[Dim, ...]] = ()
    nbytes: ClassVar[int] = 0


Spec: TypeAlias = TensorSpec | ScalarSpec


def row_major(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The strides of a tensor laid out row by row."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))
