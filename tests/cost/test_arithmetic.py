from __future__ import annotations

import pytest

from weft.cost.arithmetic import matmul_flops
from weft.ir import parse


@pytest.mark.parametrize(
    ("ops", "flops"),
    [
        ("%r: f32[4,6] = aten.mm.default(%a, %b)", 2 * 4 * 5 * 6),
        ("%r: f32[4,6] = aten.addmm.default(%c, %a, %b)", 2 * 4 * 5 * 6),
        ("%m: f32[4,6] = aten.mm.default(%a, %b)\n%r: f32[4,6] = aten.relu.default(%m)", 2 * 4 * 5 * 6),
        ("%m: f32[4,6] = aten.mm.default(%a, %b)\n%r: f32[4,4] = aten.mm.default(%m, %d)", 240 + 2 * 4 * 6 * 4),
        ("%r: f32[6] = aten.neg.default(%c)", 0),
        ("%s: f32[8,5] = all_gather.start(%a) over g\n%r: f32[8,5] = wait(%s)", 0),
    ],
)  # fmt: skip
def test_only_products_count(ops: str, flops: int) -> None:
    inputs = "%a: f32[4,5] = input()\n%b: f32[5,6] = input()\n%c: f32[6] = input()\n%d: f32[6,4] = input()"
    program = parse(f"weft 1\ngroup g = 0, 1\n{inputs}\n{ops}\nreturn %r\n")
    assert matmul_flops(program) == flops
