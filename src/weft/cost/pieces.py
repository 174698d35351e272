"""A device on which matmuls take something else: what ops would take there is a part of the lower bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.cost.compute import op_us
from weft.cost.products import Device, Inputs
from weft.ir.program import Op

Product = tuple[str, int, int, int, int]  # the dtype of the factors, and b, m, n, k of b matmuls m×k by k×n


@dataclass(frozen=True)
class OtherMatmuls:
    """What is not a matmul takes what it takes on `device`: its launch and its bytes, of which pieces have no fewer.

    `us` says how long b products of m×k by k×n take, of factors of a dtype. A program has few different ones, and many
    of each, so it is asked once for each.
    """

    device: Device
    us: Callable[[str, int, int, int, int], float]
    _asked: dict[Product, float] = field(default_factory=dict)

    @property
    def launch_us(self) -> float:
        """What a kernel takes even if it does nothing."""
        return self.device.launch_us

    @property
    def attention_efficiency(self) -> float:
        """The rate of fused attention, as a part of that of a matmul with as much arithmetic."""
        return self.device.attention_efficiency

    def moved_us(self, nbytes: int) -> float:
        """How long it takes to read and write so many bytes, without the launch."""
        return self.device.moved_us(nbytes)

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """How long these products take."""
        sizes = dtype, b, m, n, k
        found = self._asked.get(sizes)
        if found is None:
            found = self._asked[sizes] = self.us(*sizes)
        return found


def products_of(device: Device, op: Op, inputs: Inputs) -> list[Product]:
    """What an op multiplies on a device."""
    found: list[Product] = []

    def noted(dtype: str, b: int, m: int, n: int, k: int) -> float:
        found.append((dtype, b, m, n, k))
        return 0.0

    op_us(OtherMatmuls(device, noted), op, inputs)
    return found
