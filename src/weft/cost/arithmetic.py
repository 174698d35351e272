"""How much arithmetic a step does: the same on every machine, and what scaling is measured by."""

from __future__ import annotations

from weft.analysis.kernels import input_specs
from weft.cost.compute import op_us
from weft.ir.program import Program


def matmul_flops(program: Program) -> float:
    """The multiplications and additions of one rank's matmuls, attention and convolutions.

    They are counted where they are ops of their own: in a program as it was captured.
    """
    counter = _Counter()
    return sum(op_us(counter, op, input_specs(program, op)) for op in program.ops if op.comm is None)


class _Counter:
    """A device on which bytes are free and an operation takes a unit of time, so that the time is the arithmetic."""

    launch_us = 0.0
    attention_efficiency = 1.0

    def moved_us(self, nbytes: int) -> float:
        return 0.0

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        return 2.0 * b * m * n * k
