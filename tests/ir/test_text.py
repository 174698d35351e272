from __future__ import annotations

import math

import pytest
from hypothesis import given

from tests.programs import arbitrary_programs, programs
from weft.ir import Op, Program, Ref, ScalarSpec, TensorSpec, Traits, parse, print_op, print_program, print_spec
from weft.ir.args import Arg, Const, Device, Dict, Dtype, Function, Opaque, Slice, Tuple
from weft.ir.program import Group
from weft.ir.targets import traits_of

EXAMPLE = """\
weft 1
history "bucket{cap_mb=25}"
group dp = 0..7
group "tensor parallel" = 0..56 by 8, 3, 5
symbol s0 = 4096

%x: bf16[s0,512] = input()
%w: bf16[64,512] = input()
%ag: bf16[512,512] = all_gather.start(%w) over dp  # layers.0.up model.py:12
%full: bf16[512,512] = wait(%ag)
%turned: bf16[512,512;1,512] = aten.t.default(%full)
%y: bf16[s0,512] = aten.mm.default(%x, %turned)
%loss: f32[] = aten.mean.default(%y)
%ar: (f32[], bf16[s0,512]) = all_reduce.start([%loss, %y]) sum over "tensor parallel" from %a, %"b c"
%"0": f32[]@cpu = getitem(%ar, 0)  # "two\\nlines"
%done: f32[]@cpu = wait(%"0")
%rows: int(2*s0 + 1) = aten.sym_size.int(%y, 0) {barrier}
%nothing: () = "my op"(%y, [1, -2.5, None], dtype=bf16, "a b"=slice(0, %rows, None)) {views(0), mutates(out), random}
return %done, [%y, (%x,)], None, s0//2
"""


def _assert_round_trips(program: Program) -> None:
    again = parse(print_program(program))
    assert again == program
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0; as text they are not.
    assert repr(again) == repr(program)


@given(programs(random=True, barriers=True, mutate_inputs=True))
def test_valid_programs_round_trip(program: Program) -> None:
    _assert_round_trips(program)


@given(arbitrary_programs())
def test_arbitrary_programs_round_trip(program: Program) -> None:
    _assert_round_trips(program)


@given(arbitrary_programs())
def test_every_op_is_one_line(program: Program) -> None:
    for op in program.ops:
        assert len(print_op(op).splitlines()) == 1


@given(programs())
def test_printing_is_a_function_of_the_text(program: Program) -> None:
    text = str(program)
    assert str(parse(text)) == text


def test_the_text_form() -> None:
    program = parse(EXAMPLE)
    assert print_program(program) == EXAMPLE
    assert program.history == ("bucket{cap_mb=25}",)
    assert program.groups[1] == Group("tensor parallel", (0, 8, 16, 24, 32, 40, 48, 56, 3, 5))
    assert program["turned"].out == (TensorSpec((512, 512), "bf16", (1, 512)),)
    assert program["ag"].traits == traits_of("all_gather.start")
    assert program["ag"].origin == "layers.0.up model.py:12"
    assert program["ar"].sources == ("a", "b c")
    assert program["0"].origin == "two\nlines"
    assert program["nothing"].traits == Traits(views=(0,), mutates=("out",), random=True)
    assert program["nothing"].kwargs == {"dtype": Dtype("bf16"), "a b": Slice(0, Ref("rows"), None)}
    assert program.outputs[1] == (Ref("y"), Tuple((Ref("x"),)))


def test_comments_blank_lines_and_windows_line_ends_are_read() -> None:
    text = "# a file\r\n\r\nweft 1\r\n  %x: f32[2] = input()   # here\r\n\treturn\t%x # there\r\n\r\n"
    assert print_program(parse(text)) == "weft 1\n\n%x: f32[2] = input()  # here\nreturn %x\n"


def test_a_quoted_string_may_hold_tabs_and_any_letter() -> None:
    assert parse('weft 1\nreturn "a\tb\x01", "größe", %"größe"').outputs == ("a\tb\x01", "größe", Ref("größe"))


@pytest.mark.parametrize(
    ("arg", "text"),
    [
        (True, "True"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (-math.inf, "-inf"),
        (1e-30, "1e-30"),
        (2**200, str(2**200)),
        (complex(-0.0, math.inf), "complex(-0.0, inf)"),
        ('%x # "\\\n\u2028', r'"%x # \"\\\n\u2028"'),
        (Dtype("f8e4m3fn"), "f8e4m3fn"),
        (Device("cuda:0"), "@cuda:0"),
        (Const("torch.strided"), "torch.strided"),
        (Function("aten.mm.default"), "&aten.mm.default"),
        (Opaque("k", 'a "b"'), r'opaque("k", "a \"b\"")'),
        ((), "[]"),
        (Tuple(()), "()"),
        (Tuple((1,)), "(1,)"),
        ((Tuple((1, 2)), (3,)), "[(1, 2), [3]]"),
        (Slice(None, -1, Ref("n")), "slice(None, -1, %n)"),
        (Dict((("a", 1), ("", Dict(())))), '{"a": 1, "": {}}'),
        (Ref("a.b"), '%"a.b"'),
    ],
    ids=str,
)
def test_an_argument_and_its_text(arg: Arg, text: str) -> None:
    program = Program((), (arg,))
    assert print_program(program) == f"weft 1\n\nreturn {text}\n"
    _assert_round_trips(program)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec((), "f32"), "f32[]"),
        (TensorSpec((), "f32", ()), "f32[;]"),
        (TensorSpec((2, 3), "bf16", (1, 2), "cuda:0"), "bf16[2,3;1,2]@cuda:0"),
        (ScalarSpec("bool"), "bool"),
        (ScalarSpec("int", 0), "int(0)"),
    ],
    ids=str,
)
def test_a_spec_and_its_text(spec: TensorSpec | ScalarSpec, text: str) -> None:
    assert print_spec(spec) == text
    _assert_round_trips(Program((Op("x", "input", out=(spec,)),)))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((5,), "5"),
        ((0, 1), "0, 1"),
        ((0, 1, 2), "0..2"),
        ((0, 8, 16), "0..16 by 8"),
        ((3, 2, 1, 0), "3, 2, 1, 0"),
        ((4, 4, 4), "4, 4, 4"),
        ((0, 1, 2, 4, 6, 8), "0..2, 4..8 by 2"),
        ((0, 2, 3, 4), "0, 2..4"),
    ],
)
def test_the_ranks_of_a_group_and_their_text(ranks: tuple[int, ...], text: str) -> None:
    source = f"weft 1\ngroup g = {text}\n\n%x: f32[1] = all_reduce.start(%y) sum over g\nreturn\n"
    assert parse(source).groups == (Group("g", ranks),)
    assert print_program(parse(source)) == source


@pytest.mark.parametrize(
    ("traits", "text"),
    [
        (Traits(), "{pure}"),
        (Traits(barrier=True), "{barrier}"),
        (Traits(views=(0, 1), mutates=("out",), copies=True), "{views(0, 1), mutates(out), copies}"),
        (Traits(random=True, matmul=True, communicates=True), "{random, matmul, communicates}"),
        (Traits(views=("a b", "0")), '{views("a b", "0")}'),
    ],
    ids=str,
)
def test_traits_and_their_text(traits: Traits, text: str) -> None:
    program = Program((Op("x", "aten.t.default", traits=traits),))
    assert print_op(program.ops[0]) == f"%x: () = aten.t.default() {text}"
    _assert_round_trips(program)


def test_traits_that_the_table_knows_are_not_printed() -> None:
    assert print_op(Op("x", "aten.t.default", traits=traits_of("aten.t.default"))) == "%x: () = aten.t.default()"
