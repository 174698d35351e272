"""What programs are run on, and whether two of them compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.programs import world_of
from weft.fx.values import TO_TORCH
from weft.ir import Program, TensorSpec
from weft.run import virtual


def inputs(program: Program) -> list[list[torch.Tensor]]:
    """Other numbers on every rank, the same each time."""
    random = torch.Generator().manual_seed(0)

    def tensor(spec: Any) -> torch.Tensor:
        assert isinstance(spec, TensorSpec)
        return torch.randn([int(str(size)) for size in spec.shape], generator=random).to(TO_TORCH[spec.dtype])

    return [[tensor(op.out[0]) for op in program.inputs] for _ in range(world_of(program))]


def bits(results: Sequence[Any]) -> list[Any]:
    """Something that is equal only if all bits are; NaN is a number like any other."""
    return [[_bits(value) for value in rank if value is not None] for rank in results]


def _bits(value: torch.Tensor) -> tuple[Any, ...]:
    flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1))
    return value.dtype, value.shape, flat.view(torch.uint8).tolist()


def assert_computes_the_same(before: Program, after: Program) -> None:
    """Whenever collectives look at their inputs: the same results, and the same is left in what was given."""
    given_before = inputs(before)
    expected = bits(virtual(before, given_before))
    for reads in ("early", "late"):
        given_after = inputs(before)
        assert bits(virtual(after, given_after, reads=reads)) == expected
        assert bits(given_after) == bits(given_before)
