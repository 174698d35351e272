"""The price of single ops on a machine with round numbers: a byte and a multiplication take 1, a launch takes 100."""

from __future__ import annotations

import pytest
import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401  defines fsdp.*
from torch._higher_order_ops import flex_attention  # noqa: F401  defines higher_order.flex_attention*

from tests.analysis.texts import program
from tests.cost.toys import Toy
from weft.analysis.kernels import KERNELS, input_specs
from weft.cost.compute import ESTIMATES, known, op_us
from weft.fx.names import resolve
from weft.ir.targets import FUSED, STARTS, TARGETS

INPUTS = """
%a: bf16[2,3] = input()
%b: bf16[3,5] = input()
%a4: bf16[7,2,3] = input()
%b4: bf16[7,3,5] = input()
%k: bf16[3] = input()
%w: bf16[5,3] = input()
%bias: bf16[5] = input()
%none: bf16[0,3] = input()
%f8: f8e4m3fn[2,3] = input()
%offs: i32[2] = input()
%i: i64[4] = input()
%f: f32[8,4] = input()
%q: bf16[1,2,8,4] = input()
%kv: bf16[1,2,6,4] = input()
%lse: f32[1,2,8] = input()
%image: f32[2,4,6,6] = input()
%filter: f32[8,4,3,3] = input()
%half: f32[8,2,3,3] = input()
%up: f32[4,5,3,3] = input()
%made: f32[2,8,4,4] = input()
"""


def price(line: str) -> float:
    """What the op `%o` takes alone, without its launch."""
    subject = program(f"{INPUTS}%o: {line}")
    op = subject["o"]
    return op_us(Toy(), op, input_specs(subject, op)) - Toy.launch_us


@pytest.mark.parametrize(
    ("line", "products"),
    [
        ("bf16[2,5] = aten.mm.default(%a, %b)", 2 * 3 * 5),
        ("bf16[2,5] = aten.addmm.default(%bias, %a, %b)", 2 * 3 * 5),
        ("bf16[7,2,5] = aten.bmm.default(%a4, %b4)", 7 * 2 * 3 * 5),
        ("bf16[7,2,5] = aten.baddbmm.default(%bias, %a4, %b4)", 7 * 2 * 3 * 5),
        ("bf16[7,2,5] = aten.linear.default(%a4, %w, %bias)", 7 * 2 * 3 * 5),
        ("bf16[7,2,5] = aten.matmul.default(%a4, %b)", 7 * 2 * 3 * 5),
        ("bf16[7,2,5] = aten.matmul.default(%a, %b4)", 7 * 2 * 3 * 5),
        ("bf16[5] = aten.matmul.default(%k, %b)", 3 * 5),
        ("bf16[2] = aten.matmul.default(%a, %k)", 2 * 3),
        ("bf16[] = aten.matmul.default(%k, %k)", 3),
        ("bf16[2,5] = aten._scaled_mm.default(%f8, %b, %bias, %bias)", 2 * 3 * 5),
        ("bf16[2,5] = aten._grouped_mm.default(%a, %b4, %offs)", 7 * 1 * 3 * 5),
        ("bf16[7,2,5] = aten._grouped_mm.default(%a4, %b4)", 7 * 2 * 3 * 5),
        ("bf16[2,5] = aten._grouped_mm.default(%a4, %b, %offs)", 7 * 2 * 3 * 1),
        ("bf16[2,2,5] = aten._grouped_mm.default(%a, %b, %offs)", 2 * 2 * 2 * 5),
    ],
)
def test_matmuls_are_priced_by_their_shapes(line: str, products: int) -> None:
    assert price(line) == products


def test_an_empty_matmul_fills_its_result() -> None:
    assert price("bf16[0,5] = aten.mm.default(%none, %b)") == 0


def test_a_matmul_without_its_arguments_is_priced_by_its_bytes() -> None:
    assert price("bf16[2,5] = aten.mm.default(%a)") == 12 + 20


CPU = "aten._scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize(
    ("line", "products"),
    [
        (f"(bf16[1,2,8,4], f32[1,2,8]) = {CPU}.default(%q, %kv, %kv, 0.0, False)", 2 * 8 * 6 * 8),
        (f"(bf16[1,2,8,4], f32[1,2,8]) = {CPU}.default(%q, %kv, %kv, 0.0, True)", 2 * 8 * 6 * 8 / 2),
        (f"(bf16[1,2,8,4], f32[1,2,8]) = {CPU}.default(%q, %kv, %kv, is_causal=True)", 2 * 8 * 6 * 8 / 2),
        ("(bf16[1,2,8,4], f32[1,2,8]) = higher_order.flex_attention(%q, %kv, %kv)", 2 * 8 * 6 * 8),
        (
            "(bf16[1,2,8,4], bf16[1,2,6,4], bf16[1,2,6,4]) = "
            f"{CPU}_backward.default(%q, %q, %kv, %kv, %q, %lse, 0.0, False)",
            2 * 8 * 6 * 20,
        ),
    ],
)
def test_attention_is_as_many_multiplications_in_a_cube_and_never_less_than_its_bytes(line: str, products: int) -> None:
    subject = program(f"{INPUTS}%o: {line} {{pure}}")
    op, inputs = subject["o"], input_specs(subject, subject["o"])
    side = round(products ** (1 / 3))
    moved = sum(spec.nbytes for spec in (*inputs, *op.out))
    assert op_us(Toy(), op, inputs) == pytest.approx(max((100 + side**3) * products / side**3, 100 + moved))


REST = "[1, 1], [0, 0], [1, 1]"


@pytest.mark.parametrize(
    ("line", "products"),
    [
        (f"f32[2,8,4,4] = aten.convolution.default(%image, %filter, None, {REST}, False, [0, 0], 1)", 32 * 8 * 36),
        (f"f32[2,8,4,4] = aten.convolution.default(%image, %half, None, {REST}, False, [0, 0], 2)", 2 * 32 * 4 * 18),
        (f"f32[2,5,8,8] = aten.convolution.default(%image, %up, None, {REST}, True, [0, 0], 1)", 72 * 45 * 4),
    ],
)
def test_convolutions_are_unrolled(line: str, products: int) -> None:
    assert price(line) == products


def test_a_convolution_s_backward_costs_a_product_for_each_gradient_that_is_asked_for() -> None:
    target = f"aten.convolution_backward.default(%made, %image, %filter, None, {REST}, False, [0, 0], 1)"
    one = 32 * 8 * 36
    assert price(f"(f32[2,4,6,6], f32[8,4,3,3], none) = {target}") == 100 + 2 * one
    assert price(f"(none, f32[8,4,3,3], none) = {target}") == one


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("f32[8,4] = aten.neg.default(%f)", 128 + 128),
        ("f32[8,4] = aten.add.Tensor(%f, %f)", 3 * 128),
        ("bf16[8,4] = prims.convert_element_type.default(%f, bf16)", 128 + 64),
        ("f32[8] = aten.sum.dim_IntList(%f, [1])", 128 + 32),
        ("f32[8,4] = aten._softmax.default(%f, -1, False)", 128 + 128),
        ("f32[16,4] = aten.cat.default([%f, %f])", 256 + 256),
        ("f32[4,4] = aten.embedding.default(%f, %i)", 64 + 32 + 64),
        ("f32[8,4] = aten.embedding_dense_backward.default(%f, %i, 8, -1, False)", 128 + 128 + 32 + 2 * 128),
        ("f32[8,4] = aten.copy_.default(%f, %f)", 128 + 128),
        ("f32[8,4] = aten.zero_.default(%f)", 128),
        ("f32[8,4] = aten.zeros.default([8, 4])", 128),
        ("f32[8,4] = aten.rand_like.default(%f)", 128),
        ("f32[8,4] = aten.index_put_.default(%f, [%i], %a)", 3 * (32 + 12)),
        ("f32[8,4] = aten.cumsum.default(%f, 0)", 128 + 128),
        ("() = aten._foreach_add_.Scalar([%f, %lse], 1)", 2 * (128 + 64)),
        ("() = aten._foreach_copy_.default([%f], [%f])", 2 * 128),
        ("() = aten._fused_adamw_.default([%f], [%f], [%f], [%f], [], [%lse]) {mutates(0)}", 4 * 128 + 64 + 3 * 128),
        ("f32[8,4] = vendor.mystery.default(%f)", 128 + 128),
    ],
)
def test_everything_else_is_priced_by_the_bytes_that_it_moves(line: str, moved: int) -> None:
    assert price(line) == moved


def test_sorting_takes_a_pass_for_each_byte_of_the_key_and_each_pass_a_launch() -> None:
    assert price("(f32[8,4], i64[8,4]) = aten.sort.default(%f)") == 4 * (100 + 128 + 128 + 256) - 100


@pytest.mark.parametrize(
    "line",
    [
        "f32[4,8;1,4] = aten.t.default(%f)",
        "f32[32] = aten.reshape.default(%f, [32])",
        "f32[8,4] = aten.to.dtype(%f, f32)",
        "int = aten.sym_size.int(%f, 0)",
        "int = operator.mul(2, 3) {pure}",
        "f32[8,4] = aten.empty.memory_format([8, 4])",
        "f32[8,4] = all_reduce.start(%f) sum over g",
    ],
)
def test_what_runs_no_kernel_is_free(line: str) -> None:
    assert price(line) == -Toy.launch_us


def test_elements_that_are_the_same_memory_are_read_once_and_host_memory_never() -> None:
    subject = program("""
        %x: f32[4,8;1,0] = input()
        %h: f32[8]@cpu = input()
        %o: f32[4,8] = aten.add.Tensor(%x, %h)
    """)
    assert op_us(Toy(), subject["o"], input_specs(subject, subject["o"])) == 100 + 16 + 128


def test_symbolic_sizes_count_by_their_hints() -> None:
    text = "%x: bf16[n,3] = input()\n%y: bf16[3,n] = input()\n%o: bf16[n,n] = aten.mm.default(%x, %y)"
    subject = program(text, "symbol n = 7\n")
    assert op_us(Toy(), subject["o"], input_specs(subject, subject["o"])) == 100 + 7 * 7 * 3


# The tables


def test_torch_has_every_target_of_the_table_and_no_target_is_in_two() -> None:
    for target in ESTIMATES:
        resolve(target)
    assert not ESTIMATES.keys() & KERNELS.keys()


def test_every_target_that_weft_lists_has_an_estimate() -> None:
    plain = [target for target in TARGETS if target not in STARTS and target not in FUSED]
    subject = {target: program(f"%o: f32[1] = {target}()")["o"] for target in plain}
    subject |= {target: program(f"%o: f32[1] = {target}() over g")["o"] for target in FUSED}
    assert [target for target, op in subject.items() if not known(op)] == []


def test_every_matmul_that_weft_lists_is_priced_as_one() -> None:
    matmuls = [target for target, traits in TARGETS.items() if traits.matmul and target not in FUSED]
    assert [target for target in matmuls if ESTIMATES[target].least < 2] == []


def test_an_op_that_is_in_no_table_is_not_known() -> None:
    assert not known(program("%o: f32[1] = vendor.mystery.default()")["o"])
