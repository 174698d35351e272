"""`weft::pack`: what torch demands of an operator, that it packs as concatenation does, and the way through a graph."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.fx.pack import pack
from weft.ir.traits import PURE

CASES = {
    "one row": ([(4, 3), (5,), ()], torch.float32, 1),
    "rows of ranks": ([(4, 3), (8,), (2, 2, 2)], torch.float32, 2),
    "converted": ([(4, 3), (8,)], torch.bfloat16, 1),
    "nothing in it": ([(0,), (4, 0), (4,)], torch.float16, 4),
    "rows that end inside": ([(3, 4), (2,)], torch.float64, 2),
}


def tensors(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def concatenated(inputs: list[Tensor], dtype: torch.dtype, rows: int) -> Tensor:
    return torch.cat([one.to(dtype).reshape(rows, one.numel() // rows) for one in inputs], dim=1).flatten()


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_sound_operator(case: str) -> None:
    shapes, dtype, rows = CASES[case]
    torch.library.opcheck(torch.ops.weft.pack, (tensors(shapes), dtype, rows))


@pytest.mark.parametrize("case", CASES)
def test_it_packs_what_concatenation_does(case: str) -> None:
    shapes, dtype, rows = CASES[case]
    given = tensors(shapes)
    assert torch.equal(pack(given, dtype, rows), concatenated(given, dtype, rows))


def test_it_reads_any_layout_and_dtype() -> None:
    wide, small = torch.randn(6, 4).t(), torch.arange(8, dtype=torch.int64)[::2]
    given = [wide, small, torch.randn(2, 1).expand(2, 3)]
    for rows in (1, 2):
        assert torch.equal(pack(given, torch.bfloat16, rows), concatenated(given, torch.bfloat16, rows))


def test_what_cannot_be_cut_into_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^weft::pack: \[3\] cannot be cut into 2 equal rows$"):
        pack([torch.zeros(3)], torch.float32, 2)


def step(one: Tensor, other: Tensor) -> Tensor:
    return torch.ops.weft.pack([one, other], torch.bfloat16, 2) * 2  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_it_goes_through_a_program_and_back(mode: Literal["fake", "symbolic"]) -> None:
    given = torch.randn(4, 8), torch.randn(4, 2, 4)
    program = weft.from_fx(make_fx(step, tracing_mode=mode)(*given))
    weft.verify(program)
    (packed,) = [op for op in program.ops if op.target == "weft.pack.default"]
    assert packed.traits == PURE
    assert [op.target for op in weft.parse(str(program)).ops] == [op.target for op in program.ops]
    assert torch.equal(weft.to_fx(program)(*given), step(*given))


def test_a_symbolic_size_stays_one() -> None:
    program = weft.from_fx(make_fx(step, tracing_mode="symbolic")(torch.randn(4, 8), torch.randn(4, 2, 4)))
    others = torch.randn(6, 10), torch.randn(6, 3, 5)
    assert torch.equal(weft.to_fx(program)(*others), step(*others))
