"""Which collectives a matmul might carry out, and what lies between."""

from __future__ import annotations

from weft import parse
from weft.analysis.insides import insides

STEP = """weft 1
group tp = 0..1

%x: bf16[4,8] = input()
%w: bf16[2,8] = input()
%q: bf16[8,8] = input()
%k: bf16[8,8] = input()
%gathered: bf16[8,8] = all_gather.start(%x) over tp
%whole: bf16[8,8] = wait(%gathered)
%rows: bf16[1,8,8] = aten.view.default(%whole, [1, 8, 8])
%flat: bf16[8,8] = aten.view.default(%rows, [8, 8])
%a: bf16[8,8] = aten.mm.default(%flat, %q)
%b: bf16[8,8] = aten.mm.default(%whole, %k)
%turned: bf16[8,8] = aten.t.default(%whole)
%weight: bf16[8,8] = aten.mm.default(%turned, %a)
%sum: bf16[8,8] = aten.add.Tensor(%a, %b)
%copy: bf16[8,8] = aten.clone.default(%sum)
%scattered: bf16[4,8] = reduce_scatter.start(%copy) sum over tp
%own: bf16[4,8] = wait(%scattered)
%sharded: bf16[4,8] = all_gather.start(%w) over tp
%parameter: bf16[4,8] = wait(%sharded)
%linear: bf16[4,4] = aten.linear.default(%own, %parameter)
%long: f32[8,8] = aten._to_copy.default(%weight, dtype=f32)
%reduced: f32[8,8] = all_reduce.start(%long) sum over tp
%gradient: f32[8,8] = wait(%reduced)
return %linear, %gradient
"""


def test_what_is_gathered_is_a_left_factor_and_what_is_scattered_is_made_of_products() -> None:
    program = parse(STEP)
    named = {
        program.ops[place].name: [
            tuple(tuple(program.ops[one].name for one in places) for places in (way.matmuls, way.between))
            for way in ways
        ]
        for place, ways in insides(program).items()
    }
    assert named == {
        # Rows that are turned are summed over, which no fused op does.
        "gathered": [(("a", "b"), ("whole", "rows", "flat"))],
        "scattered": [(("a", "b"), ("sum", "copy"))],
        # A parameter is a right factor, and the gradient was cast on its way.
    }


def test_an_all_reduce_may_be_inside_the_matmul_before_and_the_one_behind() -> None:
    program = parse("""weft 1
group tp = 0..1

%x: bf16[8,8] = input()
%q: bf16[8,8] = input()
%a: bf16[8,8] = aten.mm.default(%x, %q)
%r: bf16[8,8] = all_reduce.start(%a) sum over tp
%f: bf16[8,8] = wait(%r)
%b: bf16[8,8] = aten.mm.default(%f, %q)
return %b
""")
    (ways,) = insides(program).values()
    assert [[program.ops[one].name for one in way.matmuls] for way in ways] == [["b"], ["a"]]
