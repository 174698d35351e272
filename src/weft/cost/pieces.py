"""A device on which matmuls take something else: what ops would take there is a part of the lower bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

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


def parts_us(device: Device, product: Product, count: int) -> float:
    """How long a product takes in so many equal parts, along whichever of its sizes that is best."""
    dtype, *sizes = product
    parts = [[*sizes[:place], max(1, size // count), *sizes[place + 1 :]] for place, size in enumerate(sizes)]
    return count * min(device.matmul_us(dtype, b, m, n, k) for b, m, n, k in parts)


def multiplied_us(device: Device, matmuls: Sequence[Sequence[Product]], parts: int) -> tuple[float, float]:
    """How long the products of some matmuls take in so many equal parts: each by itself, and all of them as one."""
    apart = sum(parts_us(device, product, parts) for products in matmuls for product in products)
    return apart, min((parts_us(device, product, parts) for product in _as_one(matmuls)), default=inf)


def _as_one(matmuls: Sequence[Sequence[Product]]) -> Iterator[Product]:
    """One product for those of several matmuls: with right factors side by side if they share the left one, or with
    factors side by side and one below the other if what they make is added up."""
    if len(matmuls) < 2 or any(len(products) != 1 for products in matmuls):
        return
    sizes = [products[0] for products in matmuls]
    dtype, b, m, n, k = sizes[0]
    if all(one == (dtype, b, m, one[3], k) for one in sizes):
        yield dtype, b, m, sum(one[3] for one in sizes), k
    if all(one == (dtype, b, m, n, one[4]) for one in sizes):
        yield dtype, b, m, n, sum(one[4] for one in sizes)
