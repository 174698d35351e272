"""What comes along with a collective that is moved."""

from __future__ import annotations

from weft.analysis.windows import windows
from weft.ir import parse

PACKED = parse("""weft 1
group dp = 0..1

%a: f32[4] = input()
%b: f32[2,3] = input()
%n: f32[4] = aten.neg.default(%a)
%packed: bf16[10] = weft.pack.default([%a, %b], bf16, 1)
%one: bf16[4] = aten.slice.Tensor(%packed, 0, 0, 4)
%other: bf16[6] = aten.slice.Tensor(%packed, 0, 4, 10)
%shaped: bf16[2,3] = aten.view.default(%other, [2, 3])
%s: (bf16[8], bf16[4,3]) = all_gather.start([%one, %shaped]) over dp
%p0: bf16[8] = getitem(%s, 0)
%p1: bf16[4,3] = getitem(%s, 1)
%w0: bf16[8] = wait(%p0)
%w1: bf16[4,3] = wait(%p1)
return %w0, %w1, %n
""")


def test_a_pack_comes_along_with_the_collective_that_sends_all_its_parts() -> None:
    window = windows(PACKED)["s"]
    assert [PACKED.ops[place].name for place in window.prelude] == ["packed", "one", "other", "shaped"]
    assert PACKED.ops[window.ready].name == "b"  # so it may be launched before %n
