"""A device that cuts every matmul into pieces: what ops take there is the least that their pieces take together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from weft.cost.products import Device


class Divisible(Device, Protocol):
    """A device that knows how fast the pieces of a matmul can be. A Machine is one."""

    def matmul_pieces_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """How long b products of m×k by k×n take at least, all together, if they are cut into pieces."""


@dataclass(frozen=True)
class InPieces:
    """What is not a matmul takes its launch and its bytes, which pieces have at least as many of."""

    whole: Divisible
    _asked: dict[tuple[str, int, int, int, int], float] = field(default_factory=dict)

    @property
    def launch_us(self) -> float:
        """What a kernel takes even if it does nothing."""
        return self.whole.launch_us

    @property
    def attention_efficiency(self) -> float:
        """The rate of fused attention, as a part of that of a matmul with as much arithmetic."""
        return self.whole.attention_efficiency

    def moved_us(self, nbytes: int) -> float:
        """How long it takes to read and write so many bytes, without the launch."""
        return self.whole.moved_us(nbytes)

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """The least that the pieces of these products take. A program has few different ones, and many of each."""
        sizes = dtype, b, m, n, k
        found = self._asked.get(sizes)
        if found is None:
            found = self._asked[sizes] = self.whole.matmul_pieces_us(*sizes)
        return found
