"""Which ops share a kernel, on programs so small that it can be seen."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.orders import reordered
from tests.programs import programs
from weft.analysis import ancestors, dependencies
from weft.analysis.fusion import fusion
from weft.analysis.kernels import DIMS, INDEXED, KERNELS, RELAYOUTS, UNREAD, Kernel
from weft.errors import GraphError
from weft.fx.names import resolve
from weft.ir import Program


def regions(ops: str) -> list[str]:
    """The names of the ops of each region, in the order of their first."""
    return named(program(ops))


def named(subject: Program) -> list[str]:
    return [" ".join(subject.ops[place].name for place in members) for members in fusion(subject).members]


def test_a_chain_is_one_kernel_through_its_views() -> None:
    assert regions("""
        %x: f32[4,6] = input()
        %a: f32[4,6] = aten.neg.default(%x)
        %v: f32[24] = aten.view.default(%a, [24])
        %b: f32[24] = aten.relu.default(%v)
        %c: bf16[24] = prims.convert_element_type.default(%b, bf16)
    """) == ["a b c"]


def test_users_of_one_result_are_one_kernel_and_users_of_one_input_are_not() -> None:
    assert regions("""
        %x: f32[4] = input()
        %a: f32[4] = aten.neg.default(%x)
        %b: f32[4] = aten.relu.default(%a)
        %c: f32[4] = aten.exp.default(%a)
        %d: f32[4] = aten.sin.default(%x)
    """) == ["a b c", "d"]


def test_a_norm_written_out_is_one_kernel() -> None:
    assert regions("""
        %x: f32[8,16] = input()
        %w: f32[16] = input()
        %square: f32[8,16] = aten.pow.Tensor_Scalar(%x, 2)
        %mean: f32[8,1] = aten.mean.dim(%square, [-1], True)
        %plus: f32[8,1] = aten.add.Scalar(%mean, 1e-06)
        %root: f32[8,1] = aten.rsqrt.default(%plus)
        %wide: f32[8,16;1,0] = aten.expand.default(%root, [8, 16])
        %unit: f32[8,16] = aten.mul.Tensor(%x, %wide)
        %out: f32[8,16] = aten.mul.Tensor(%unit, %w)
    """) == ["square mean plus root unit out"]


def test_a_softmax_written_out_is_one_kernel_and_so_is_one_that_is_not() -> None:
    assert regions("""
        %x: f32[8,16] = input()
        %most: f32[8,1] = aten.amax.default(%x, [1], True)
        %less: f32[8,16] = aten.sub.Tensor(%x, %most)
        %raised: f32[8,16] = aten.exp.default(%less)
        %sum: f32[8,1] = aten.sum.dim_IntList(%raised, [1], True)
        %parts: f32[8,16] = aten.div.Tensor(%raised, %sum)
    """) == ["most less raised sum parts"]
    assert regions("""
        %x: f32[8,16] = input()
        %a: f32[8,16] = aten.neg.default(%x)
        %parts: f32[8,16] = aten._softmax.default(%a, -1, False)
        %b: bf16[8,16] = prims.convert_element_type.default(%parts, bf16)
    """) == ["a parts b"]


@pytest.mark.parametrize("dims", ["[0]", "[0, 1]", "[]"])
def test_what_all_blocks_have_to_meet_for_ends_a_kernel(dims: str) -> None:
    size = {"[0]": "1,16", "[0, 1]": "1,1", "[]": "1,1"}[dims]
    assert regions(f"""
        %x: f32[8,16] = input()
        %a: f32[8,16] = aten.neg.default(%x)
        %sum: f32[{size}] = aten.sum.dim_IntList(%a, {dims}, True)
        %half: f32[{size}] = aten.mul.Scalar(%sum, 0.5)
        %b: f32[8,16] = aten.sub.Tensor(%a, %half)
    """) == ["a sum half", "b"]


def test_other_sizes_are_other_kernels() -> None:
    assert regions("""
        %x: f32[16] = input()
        %y: f32[8,16] = input()
        %a: f32[16] = aten.neg.default(%x)
        %b: f32[8,16] = aten.mul.Tensor(%y, %a)
        %s: f32[4,16] = aten.slice.Tensor(%b, 0, 0, 4)
        %c: f32[4,16] = aten.neg.default(%s)
    """) == ["a", "b", "c"]


def test_rows_of_another_length_are_another_kernel() -> None:
    assert regions("""
        %x: f32[8,16] = input()
        %y: f32[8,32] = input()
        %short: f32[8] = aten.sum.dim_IntList(%x, [1])
        %long: f32[8] = aten.sum.dim_IntList(%y, [1])
        %both: f32[8] = aten.add.Tensor(%short, %long)
    """) == ["short", "long both"]


@pytest.mark.parametrize(
    "between",
    [
        "%m: f32[4,4] = aten.mm.default(%a, %a)",
        "%m: f32[4,4] = aten.cumsum.default(%a, 0)",
        "%m: f32[4,4] = vendor.mystery.default(%a) {pure}",
        "%s: f32[4,4] = all_reduce.start(%a) sum over g\n%m: f32[4,4] = wait(%s)",
    ],
)
def test_a_kernel_does_not_reach_around_another(between: str) -> None:
    found = regions(
        f"%x: f32[4,4] = input()\n%a: f32[4,4] = aten.neg.default(%x)\n{between}\n"
        "%b: f32[4,4] = aten.relu.default(%m)\n%c: f32[4,4] = aten.add.Tensor(%a, %b)\n"
    )
    assert found == ["a", "b c"]


def test_a_collective_s_result_is_read_behind_its_wait_and_not_in_the_kernel_of_what_was_sent() -> None:
    assert regions("""
        %x: f32[4] = input()
        %a: f32[4] = aten.neg.default(%x)
        %s: f32[4] = all_reduce.start(%a) sum over g
        %b: f32[4] = aten.relu.default(%a)
        %f: f32[4] = wait(%s)
        %c: f32[4] = aten.add.Tensor(%b, %f)
        %d: f32[4] = aten.exp.default(%c)
    """) == ["a", "b c d"]


def test_what_comes_early_joins_its_only_user() -> None:
    assert regions("""
        %w: f32[4,4] = input()
        %x: f32[4,4] = input()
        %cast: bf16[4,4] = prims.convert_element_type.default(%w, bf16)
        %detached: bf16[4,4] = aten.detach.default(%cast)
        %unused: bf16[4,4] = aten.detach.default(%cast)
        %m: f32[4,4] = aten.mm.default(%x, %x)
        %sum: f32[4,4] = aten.add.Tensor(%m, %detached)
    """) == ["cast sum"]


def test_what_a_matmul_reads_stays_where_it_is_made() -> None:
    assert regions("""
        %x: f32[4,4] = input()
        %a: f32[4,4] = aten.neg.default(%x)
        %b: f32[4,4] = aten.relu.default(%a)
        %t: f32[4,4;1,4] = aten.t.default(%b)
        %m: f32[4,4] = aten.mm.default(%x, %x)
        %n: f32[4,4] = aten.mm.default(%m, %t)
        %o: f32[4,4] = aten.mm.default(%n, %a)
    """) == ["a b"]


def test_a_reduction_stays_with_what_it_reads() -> None:
    assert regions("""
        %x: f32[4,4] = input()
        %a: f32[4,4] = aten.neg.default(%x)
        %sum: f32[4] = aten.sum.dim_IntList(%a, [1])
        %m: f32[4,4] = aten.mm.default(%a, %x)
        %rows: f32[4] = aten.select.int(%m, 0, 0)
        %late: f32[4] = aten.add.Tensor(%sum, %rows)
    """) == ["a sum", "late"]


def test_an_optimiser_that_writes_in_place_is_one_kernel() -> None:
    assert regions("""
        %w: f32[4] = input()
        %m: f32[4] = input()
        %v: f32[4] = input()
        %g: f32[4] = input()
        %decayed: f32[4] = aten.mul_.Tensor(%w, 0.99)
        %mean: f32[4] = aten.lerp_.Scalar(%m, %g, 0.1)
        %less: f32[4] = aten.mul_.Tensor(%v, 0.9)
        %square: f32[4] = aten.addcmul_.default(%less, %g, %g, value=0.1)
        %root: f32[4] = aten.sqrt.default(%square)
        %safe: f32[4] = aten.add_.Scalar(%root, 1e-08)
        %new: f32[4] = aten.addcdiv_.default(%decayed, %mean, %safe, value=-0.1)
    """) == ["decayed less mean square root safe new"]


def test_memory_that_is_written_and_read_under_another_name_is_a_break() -> None:
    assert regions("""
        %x: f32[4] = input()
        %y: f32[4] = input()
        %w: f32[4] = aten.add_.Tensor(%x, %y)
        %r: f32[4] = aten.neg.default(%x)
    """) == ["w", "r"]


def test_random_numbers_keep_their_order_in_kernels_of_their_own() -> None:
    assert regions("""
        %x: f32[4] = input()
        %r: f32[4] = aten.rand_like.default(%x)
        %a: f32[4] = aten.mul.Tensor(%x, %r)
        %q: f32[4] = aten.rand_like.default(%x)
        %b: f32[4] = aten.mul.Tensor(%a, %q)
    """) == ["r", "a q b"]


def test_nothing_fuses_across_a_barrier() -> None:
    assert regions("""
        %x: f32[4] = input()
        %a: f32[4] = aten.neg.default(%x)
        %stop: () = vendor.mystery.default()
        %b: f32[4] = aten.neg.default(%a)
    """) == ["a", "b"]


def test_a_gather_begins_a_kernel() -> None:
    assert regions("""
        %table: f32[4,4] = input()
        %i: i64[4] = input()
        %a: f32[4,4] = aten.neg.default(%table)
        %j: i64[4] = aten.add.Scalar(%i, 1)
        %b: f32[4,4] = aten.index_select.default(%a, 0, %j)
        %c: f32[4,4] = aten.neg.default(%b)
    """) == ["a", "j", "b c"]


def test_generated_numbers_take_a_kernel_only_for_those_who_cannot_make_them() -> None:
    assert regions("""
        %x: f32[4,4] = input()
        %a: f32[4,4] = aten.neg.default(%x)
        %inlined: f32[4,4] = aten.zeros_like.default(%a)
        %b: f32[4,4] = aten.maximum.default(%a, %inlined)
        %ones: f32[4,4] = aten.ones.default([4, 4])
        %m: f32[4,4] = aten.mm.default(%ones, %b)
        %sent: f32[4] = aten.zeros.default([4])
        %s: f32[4] = all_reduce.start(%sent) sum over g
        %f: f32[4] = wait(%s)
        %back: f32[4] = aten.full.default([4], 2)
        return %back
    """) == ["a b", "ones", "sent", "back"]


def test_copies_that_a_layout_makes_unnecessary_are_views() -> None:
    subject = program("""
        %x: f32[4,2] = input()
        %t: f32[2,4;1,2] = aten.t.default(%x)
        %same: f32[8] = aten.reshape.default(%x, [8])
        %copy: f32[8] = aten.reshape.default(%t, [8])
        %kept: f32[4,2] = aten.to.dtype(%x, f32)
        %cast: bf16[4,2] = aten.to.dtype(%x, bf16)
    """)
    kinds = {op.name: kind for op, kind in zip(subject.ops, fusion(subject).kinds, strict=True)}
    assert {name for name, kind in kinds.items() if kind is Kernel.FREE} == {"x", "t", "same", "kept"}


def test_names_that_are_not_defined_disturb_nothing() -> None:
    assert regions("%a: f32[4] = aten.neg.default(%nowhere)\n%v: f32[4] = aten.view.default(%none, [4])") == ["a"]


# Every program


@given(programs(mutate_inputs=True, random=True, barriers=True))
def test_no_path_leaves_a_region_and_comes_back(subject: Program) -> None:
    found, before = fusion(subject), ancestors(subject)
    views = {place for place, op in enumerate(subject.ops) if op.traits.is_view and not op.is_wait}
    for number, members in enumerate(found.members):
        outside = [p for p in range(len(subject)) if found.region[p] != number and p not in views]
        for place in outside:
            assert not (any(before(one, place) for one in members) and any(before(place, one) for one in members))


@given(programs(mutate_inputs=True, random=True, barriers=True))
def test_regions_do_not_wait_for_each_other(subject: Program) -> None:
    found = fusion(subject)
    kernel_of = [number if number >= 0 else -2 - place for place, number in enumerate(found.region)]
    edges = {
        (kernel_of[other], kernel_of[place])
        for place, before in enumerate(dependencies(subject).before)
        for other in before
        if kernel_of[other] != kernel_of[place]
    }
    # A view belongs to whoever reads it, and is no kernel: a region may reach around one.
    views = {-2 - place for place, op in enumerate(subject.ops) if op.traits.is_view and not op.is_wait}
    for view in views:
        into, out = {a for a, b in edges if b == view}, {b for a, b in edges if a == view}
        edges = {edge for edge in edges if view not in edge} | {(a, b) for a in into for b in out if a != b}
    kernels = set(kernel_of) - views
    while kernels:
        free = kernels - {b for a, b in edges if a in kernels}
        assert free, "the kernels that are left wait for each other"
        kernels -= free


@given(programs(mutate_inputs=True, random=True, barriers=True), st.randoms(use_true_random=False))
def test_the_order_of_the_program_does_not_matter(subject: Program, random: Random) -> None:
    assert sorted(named(reordered(subject, random))) == sorted(named(subject))


# The tables


def test_torch_has_every_target_of_the_tables() -> None:
    import_module("torch._inductor.inductor_prims")  # it defines some of them
    for target in KERNELS:
        if target.startswith(("aten.", "prims.")):
            resolve(target)
    assert {*UNREAD, *INDEXED, *DIMS, *RELAYOUTS} <= KERNELS.keys()


def test_what_torch_calls_pointwise_is_in_the_table() -> None:
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        target = f"aten.{packet}.{overload or 'default'}"
        if name.startswith("aten::") and not packet.startswith("special_"):
            try:
                operator = resolve(target)
            except GraphError:
                continue
            is_variant = "out" in overload.lower() or overload == "grad_input"
            if not is_variant and torch.Tag.pointwise in getattr(operator, "tags", ()):
                missing += [target] if KERNELS.get(target) is not Kernel.POINTWISE else []
    assert missing == ["aten.equal.default"], "which gives a number to the host"
