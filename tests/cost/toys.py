"""Machines with round numbers."""

from __future__ import annotations

from collections.abc import Mapping

from weft.cost import compute
from weft.ir import Collective, Op, TensorSpec


class Toy:
    """A byte a microsecond, a multiplication a microsecond, and 100 microseconds for every launch."""

    launch_us = 100.0
    compute_slowdown = 1.25
    attention_efficiency = 1.0

    def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        return None

    def moved_us(self, nbytes: int) -> float:
        return float(nbytes)

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        assert 0 not in (b, m, n, k)
        return 100.0 + b * m * n * k

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        return compute.op_us(self, op, inputs)

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        return 10.0 + total_bytes * collective.group.size

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        return {"nic": float(total_bytes)}
