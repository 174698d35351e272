"""Collectives inside matmuls: the ops that are made, what is refused, and the same results on virtual ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

import weft
from bench.capture import captured_on
from bench.workloads import WORKLOADS
from tests.analysis.texts import program
from weft.cli import llama
from weft.cost import Machine
from weft.errors import PlanError, VerifyError
from weft.fx.exporter import lower
from weft.ir import Program
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.run.virtual import virtual
from weft.sim import simulate

GATHER = program("""
    %x: f32[3,4] = input()
    %w: f32[4,5] = input()
    %v: f32[4,6] = input()
    %ag: f32[6,4] = all_gather.start(%x) over g
    %a: f32[6,4] = wait(%ag)
    %y: f32[6,5] = aten.mm.default(%a, %w)
    %turned: f32[4,6] = aten.neg.default(%v)
    %z: f32[6,6] = aten.mm.default(%a, %turned)
    return %y, %z
""")
SCATTER = program("""
    %x: f32[6,4] = input()
    %w: f32[4,5] = input()
    %y: f32[6,5] = aten.mm.default(%x, %w)
    %rs: f32[3,5] = reduce_scatter.start(%y) avg over g
    %s: f32[3,5] = wait(%rs)
    return %s
""")
JOINED = program("""
    %x: f32[2,3,4] = input()
    %w: f32[5,4] = input()
    %ag: f32[4,3,4] = all_gather.start(%x) over g
    %a: f32[4,3,4] = wait(%ag)
    %parts: (f32[2,3,4], f32[2,3,4]) = aten.split.Tensor(%a, 2)
    %p: f32[2,3,4] = getitem(%parts, 0)
    %q: f32[2,3,4] = getitem(%parts, 1)
    %whole: f32[2,6,4] = aten.cat.default([%p, %q], 1)
    %y: f32[2,6,5] = aten.linear.default(%whole, %w)
    %back: f32[2,6,4] = aten.neg.default(%whole)
    return %y, %back
""")
SCATTERED_INSIDE = program("""
    %x: f32[2,6,4] = input()
    %w: f32[4,5] = input()
    %rows: f32[12,4] = aten.view.default(%x, [12, 4])
    %mm: f32[12,5] = aten.mm.default(%rows, %w)
    %y: f32[2,6,5] = aten.view.default(%mm, [2, 6, 5])
    %p: f32[2,3,5;30,5,1] = aten.slice.Tensor(%y, 1, 0, 3)
    %q: f32[2,3,5;30,5,1] = aten.slice.Tensor(%y, 1, 3, 6)
    %sent: f32[4,3,5] = aten.cat.default([%p, %q])
    %rs: f32[2,3,5] = reduce_scatter.start(%sent) sum over g
    %s: f32[2,3,5] = wait(%rs)
    return %s
""")


def matched(before: Program, start: str) -> Match:
    found = find_fused(before, start)
    assert isinstance(found, Match), found
    return found


def fused(before: Program, joined: bool = False) -> Program:
    found = [one for op in before.starts if isinstance(one := find_fused(before, op.name), Match)]
    matches = [one.joined() if joined and one.can_be_joined else one for one in found]
    after = apply_fused(before, matches, "fused")
    weft.verify(before, after)
    assert weft.parse(str(after)) == after
    return after


def body(subject: Program) -> str:
    return "\n".join(line for line in str(subject).split("\n\n")[1].splitlines() if "= input()" not in line)


def inputs(subject: Program, ranks: int) -> list[list[torch.Tensor]]:
    made = torch.Generator().manual_seed(0)

    def one(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        if dtype.startswith("i"):
            return torch.randint(0, 20, shape, generator=made)
        return torch.randn(shape, generator=made) * 0.3

    specs = [op.out[0] for op in subject.inputs]
    return [[one(spec.dtype, spec.shape) for spec in specs] for _ in range(ranks)]  # type: ignore[arg-type]


def assert_same(before: Program, after: Program, ranks: int = 2, tolerance: float = 0.0) -> None:
    given = inputs(before, ranks)
    results = [virtual(one, [[tensor.clone() for tensor in rank] for rank in given]) for one in (before, after)]
    leaves = [tree_leaves(found) for found in results]
    assert len(leaves[0]) == len(leaves[1]) > 0
    for expected, found in zip(*leaves, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        assert not expected.isnan().any()


def test_an_all_gather_and_its_matmuls() -> None:
    assert body(fused(GATHER)) == (
        "%turned: f32[4,6] = aten.neg.default(%v)\n"
        "%fused: (none, f32[6,5], f32[6,6]) = all_gather_matmul.fused(%x, [%w, %turned], 0, return_A=False) over g "
        "from %ag, %y, %z\n"
        "%part: f32[6,5] = getitem(%fused, 1) from %y\n"
        "%part_w1: f32[6,6] = getitem(%fused, 2) from %z\n"
        "return %part, %part_w1"
    )
    assert_same(GATHER, fused(GATHER))


def test_an_all_gather_and_one_matmul_for_all_of_its_matmuls() -> None:
    assert body(fused(GATHER, joined=True)) == (
        "%turned: f32[4,6] = aten.neg.default(%v)\n"
        "%right: f32[4,11] = aten.cat.default([%w, %turned], 1)\n"
        "%fused: (none, f32[6,11]) = all_gather_matmul.fused(%x, [%right], 0, return_A=False) over g from %ag, %y, %z\n"
        "%part: f32[6,11] = getitem(%fused, 1)\n"
        "%part_w1: f32[6,5;11,1] = aten.slice.Tensor(%part, 1, 0, 5) from %y\n"
        "%shaped: f32[6,5] = aten.contiguous.default(%part_w1) from %y\n"
        "%part_w2: f32[6,6;11,1] = aten.slice.Tensor(%part, 1, 5, 11) from %z\n"
        "%shaped_w1: f32[6,6] = aten.contiguous.default(%part_w2) from %z\n"
        "return %shaped, %shaped_w1"
    )
    assert_same(GATHER, fused(GATHER, joined=True), tolerance=1e-6)


def test_weights_that_lie_column_by_column_are_joined_as_they_lie() -> None:
    text = """
        %x: f32[2,3,4] = input()
        %w: f32[5,4] = input()
        %v: f32[6,4] = input()
        %ag: f32[4,3,4] = all_gather.start(%x) over g
        %a: f32[4,3,4] = wait(%ag)
        %y: f32[4,3,5] = aten.linear.default(%a, %w)
        %rows: f32[12,4] = aten.view.default(%a, [12, 4])
        %t: f32[4,6;1,4] = aten.t.default(%v)
        %z: f32[12,6] = aten.mm.default(%rows, %t)
        return %y, %z, %a
    """
    after = fused(program(text), joined=True)
    assert body(after).startswith(
        "%t: f32[4,6;1,4] = aten.t.default(%v)\n"
        "%left: f32[6,4] = aten.view.default(%x, [6, 4])\n"
        "%right: f32[6,4] = aten.t.default(%t)\n"
        "%right_w1: f32[11,4] = aten.cat.default([%w, %right], 0)\n"
        "%right_w2: f32[4,11;1,4] = aten.t.default(%right_w1)\n"
        "%fused: (f32[12,4], f32[12,11]) = all_gather_matmul.fused(%left, [%right_w2], 0) over g from %ag, %y, %z\n"
    )
    assert_same(program(text), after, tolerance=1e-6)


def test_parts_of_a_product_stay_where_they_are_for_those_who_do_not_mind() -> None:
    text = """
        %x: f32[3,4] = input()
        %w: f32[4,8] = input()
        %v: f32[4,8] = input()
        %ag: f32[6,4] = all_gather.start(%x) over g
        %a: f32[6,4] = wait(%ag)
        %y: f32[6,8] = aten.mm.default(%a, %w)
        %gate: f32[2,3,8] = aten._unsafe_view.default(%y, [2, 3, 8])
        %silu: f32[2,3,8] = aten.silu.default(%gate)
        %z: f32[6,8] = aten.mm.default(%a, %v)
        %up: f32[2,3,8] = aten._unsafe_view.default(%z, [2, 3, 8])
        %h: f32[2,3,8] = aten.mul.Tensor(%silu, %up)
        return %h
    """
    after = fused(program(text), joined=True)
    assert body(after) == (
        "%right: f32[4,16] = aten.cat.default([%w, %v], 1)\n"
        "%fused: (none, f32[6,16]) = all_gather_matmul.fused(%x, [%right], 0, return_A=False) over g from %ag, %y, %z\n"
        "%part: f32[6,16] = getitem(%fused, 1)\n"
        "%part_w1: f32[6,8;16,1] = aten.slice.Tensor(%part, 1, 0, 8) from %y\n"
        "%part_w2: f32[6,8;16,1] = aten.slice.Tensor(%part, 1, 8, 16) from %z\n"
        "%gate: f32[2,3,8;48,16,1] = aten._unsafe_view.default(%part_w1, [2, 3, 8])\n"
        "%silu: f32[2,3,8] = aten.silu.default(%gate)\n"
        "%up: f32[2,3,8;48,16,1] = aten._unsafe_view.default(%part_w2, [2, 3, 8])\n"
        "%h: f32[2,3,8] = aten.mul.Tensor(%silu, %up)\n"
        "return %h"
    )
    assert_same(program(text), after, tolerance=1e-6)


def test_values_may_be_called_as_factors_are() -> None:
    text = str(GATHER).replace("%w", "%left").replace("%v", "%right")
    assert_same(weft.parse(text), fused(weft.parse(text)))
    assert_same(weft.parse(text), fused(weft.parse(text), joined=True), tolerance=1e-6)


def test_one_matmul_is_not_joined() -> None:
    assert find_fused(JOINED, "ag", joined=True) == "there are no matmuls that one could do for all"
    assert find_fused(SCALED, "ag", joined=True) == "there are no matmuls that one could do for all"


def test_a_matmul_and_its_reduce_scatter() -> None:
    assert body(fused(SCATTER)) == (
        "%fused: f32[3,5] = matmul_reduce_scatter.fused(%x, %w, 0) avg over g from %rs, %s\nreturn %fused"
    )
    assert_same(SCATTER, fused(SCATTER))


def test_a_gather_along_another_dimension_whose_result_is_also_used_otherwise() -> None:
    assert body(fused(JOINED)) == (
        "%right: f32[4,5;1,4] = aten.t.default(%w)\n"
        "%fused: (f32[2,6,4;4,8,1], f32[2,6,5;5,10,1]) = all_gather_matmul.fused(%x, [%right], 1) over g from %ag, %y\n"
        "%part: f32[2,6,5;5,10,1] = getitem(%fused, 1) from %y\n"
        "%shaped: f32[2,6,5] = aten.contiguous.default(%part) from %y\n"
        "%part_w1: f32[2,6,4;4,8,1] = getitem(%fused, 0) from %whole\n"
        "%shaped_w1: f32[2,6,4] = aten.contiguous.default(%part_w1) from %whole\n"
        "%back: f32[2,6,4] = aten.neg.default(%shaped_w1)\n"
        "return %shaped, %back"
    )
    assert_same(JOINED, fused(JOINED))


SUMMED = program("""
    %x: f32[1,6,4] = input()
    %u: f32[6,3] = input()
    %w: f32[4,5] = input()
    %v: f32[5,3] = input()
    %rows: f32[6,4] = aten.view.default(%x, [6, 4])
    %y: f32[6,5] = aten.mm.default(%rows, %w)
    %z: f32[6,5] = aten.linear.default(%u, %v)
    %three: f32[1,6,5] = aten.view.default(%z, [1, 6, 5])
    %one: f32[1,6,5] = aten.view.default(%y, [1, 6, 5])
    %sum: f32[1,6,5] = aten.add.Tensor(%one, %three)
    %sent: f32[6,5] = aten.view.default(%sum, [6, 5])
    %rs: f32[3,5] = reduce_scatter.start(%sent) sum over g
    %s: f32[3,5] = wait(%rs)
    return %s
""")


def test_products_that_are_added_up_and_scattered_are_one() -> None:
    assert body(fused(SUMMED)) == (
        "%rows: f32[6,4] = aten.view.default(%x, [6, 4])\n"
        "%left: f32[6,7] = aten.cat.default([%rows, %u], 1)\n"
        "%right: f32[3,5;1,3] = aten.t.default(%v)\n"
        "%right_w1: f32[7,5] = aten.cat.default([%w, %right], 0)\n"
        "%fused: f32[3,5] = matmul_reduce_scatter.fused(%left, %right_w1, 0) sum over g from %rs, %s\n"
        "return %fused"
    )
    assert_same(SUMMED, fused(SUMMED), tolerance=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%one, %three)", "%one, %three, alpha=2)", "%sum is a sum, of %y among others, and not one matmul"),
        ("return %s", "return %s, %z", "the product %z is returned unscattered"),
        ("    %rs:", "    %d: f32[5,3] = aten.add_.Tensor(%v, %v)\n    %rs:", "%d writes to a factor of %z"),
        (
            "aten.linear.default(%u, %v)",
            "aten.neg.default(%y)",
            "%sum is a sum, of %y among others, and not one matmul",
        ),
    ],
)
def test_sums_that_are_refused(old: str, new: str, reason: str) -> None:
    more = str(SUMMED).replace("%rows:", "%u2: f32[3,3] = input()\n%w2: f32[5,6] = input()\n%rows:")
    assert isinstance(find_fused(weft.parse(more), "rs"), Match)
    assert old.strip() in more
    assert find_fused(weft.parse(more.replace(old.strip(), new.strip())), "rs") == reason


def test_a_sum_of_scaled_products_is_refused() -> None:
    product = next(line for line in str(SCALED_SCATTER).splitlines() if line.startswith("%y:"))
    added = f"{product.replace('%y:', '%z:')}\n%sum: bf16[32,16] = aten.add.Tensor(%y, %z)\n%rs:"
    scaled = weft.parse(str(SCALED_SCATTER).replace("%rs:", added).replace("start(%y)", "start(%sum)"))
    assert find_fused(scaled, "rs") == "%sum is a sum of scaled products"


def test_a_sum_without_one_of_its_products_is_no_equal() -> None:
    wrong = str(fused(SUMMED)).replace(
        "%left: f32[6,7] = aten.cat.default([%rows, %u], 1)", "%left: f32[6,4] = aten.view.default(%rows, [6, 4])"
    )
    lost = wrong.replace(
        "%right_w1: f32[7,5] = aten.cat.default([%w, %right], 0)", "%right_w1: f32[4,5] = aten.clone.default(%w)"
    )
    with pytest.raises(VerifyError):
        weft.verify(SUMMED, weft.parse(lost))


def test_a_scatter_along_another_dimension() -> None:
    assert body(fused(SCATTERED_INSIDE)) == (
        "%rows: f32[12,4] = aten.view.default(%x, [12, 4])\n"
        "%left: f32[2,6,4] = aten.view.default(%rows, [2, 6, 4])\n"
        "%fused: f32[2,3,5] = matmul_reduce_scatter.fused(%left, %w, 1) sum over g from %rs, %s\n"
        "return %fused"
    )
    assert_same(SCATTERED_INSIDE, fused(SCATTERED_INSIDE))


@pytest.mark.parametrize(
    ("old", "new", "start", "reason"),
    [
        ("%a, %w", "%w, %a", "ag", "%y contracts the dimension that is gathered"),
        ("aten.mm.default(%a, %w)", "aten.neg.default(%a)", "ag", "no matmul multiplies what it gathers"),
    ],
)
def test_gathers_that_are_refused(old: str, new: str, start: str, reason: str) -> None:
    text = """
        %x: f32[2,4] = input()
        %w: f32[4,4] = input()
        %ag: f32[4,4] = all_gather.start(%x) over g
        %a: f32[4,4] = wait(%ag)
        %y: f32[4,4] = aten.mm.default(%a, %w)
        return %y
    """
    assert isinstance(find_fused(program(text), start), Match)
    assert find_fused(program(text.replace(old, new)), start) == reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("avg over", "max over", "a fused op reduces by sum or avg, not by max"),
        ("return %s", "return %s, %y", "the product %y is returned unscattered"),
        ("return %s", "%n: f32[6,5] = aten.neg.default(%y)\n    return %s", "%n uses the product %y unscattered"),
        ("aten.mm.default(%x, %w)", "aten.neg.default(%o)", "%y (aten.neg.default) is no matmul"),
        (
            "aten.mm.default(%x, %w)",
            "aten.addmm.default(%o, %x, %w)",
            "%y (aten.addmm.default) adds to its product, which a fused op does not",
        ),
        (
            "reduce_scatter.start(%y)",
            "reduce_scatter.start(%sum)",
            "%sum is a sum, of %y among others, and not one matmul",
        ),
        ("    %rs:", "    %d: f32[6,4] = aten.add_.Tensor(%x, %x)\n    %rs:", "%d writes to a factor of %y"),
    ],
)
def test_scatters_that_are_refused(old: str, new: str, reason: str) -> None:
    text = """
    %x: f32[6,4] = input()
    %w: f32[4,5] = input()
    %o: f32[6,5] = input()
    %y: f32[6,5] = aten.mm.default(%x, %w)
    %sum: f32[6,5] = aten.add.Tensor(%y, %o)
    %rs: f32[3,5] = reduce_scatter.start(%y) avg over g
    %s: f32[3,5] = wait(%rs)
    return %s
    """
    if "unscattered" in reason or "add_" in new or "max" in new:
        text = text.replace("    %sum: f32[6,5] = aten.add.Tensor(%y, %o)\n", "")
    assert find_fused(program(text.replace(old, new)), "rs") == reason


def test_a_group_of_one_is_refused() -> None:
    lonely = weft.parse(str(SCATTER).replace("group g = 0, 1", "group g = 0"))
    assert find_fused(lonely, "rs") == "its group has one rank"


def test_a_factor_that_is_made_by_another_matmul_behind_the_wait_stays_out() -> None:
    text = str(GATHER).replace("aten.neg.default(%v)", "aten.mm.default(%u, %v)")
    chained = weft.parse(text.replace("%v: f32[4,6] = input()", "%v: f32[4,6] = input()\n%u: f32[4,4] = input()"))
    assert matched(chained, "ag").matmuls == ("y",)
    after = fused(chained)
    assert after["z"].args == (weft.ir.Ref("part_w1"), weft.ir.Ref("turned"))
    assert_same(chained, after)


def test_a_match_is_carried_out_once() -> None:
    with pytest.raises(PlanError, match="%rs has part in another change"):
        apply_fused(SCATTER, [matched(SCATTER, "rs")] * 2, "fused")


def test_a_machine_prices_and_simulates_it() -> None:
    machine = Machine.load("h100-ib400")
    match = matched(GATHER, "ag")
    priced = machine.op_us(match.op, match.inputs)
    assert simulate(fused(GATHER), machine).compute_us >= priced
    assert simulate(fused(GATHER), machine).exposed_us == 0


SCALED = program("""
    %x: f8e4m3fn[16,16] = input()
    %w: f8e4m3fn[16,16;1,16] = input()
    %sx: f32[32,1] = input()
    %sw: f32[1,16] = input()
    %ag: f8e4m3fn[32,16] = all_gather.start(%x) over g
    %a: f8e4m3fn[32,16] = wait(%ag)
    %y: bf16[32,16] = aten._scaled_mm.default(%a, %w, %sx, %sw, None, None, bf16)
    return %y
""")


SCALED_SCATTER = program("""
    %x: f8e4m3fn[32,16] = input()
    %w: f8e4m3fn[16,16;1,16] = input()
    %sx: f32[] = input()
    %sw: f32[] = input()
    %y: bf16[32,16] = aten._scaled_mm.default(%x, %w, %sx, %sw, out_dtype=bf16, use_fast_accum=True)
    %rs: bf16[16,16] = reduce_scatter.start(%y) sum over g
    %s: bf16[16,16] = wait(%rs)
    return %s
""")


def scaled_inputs(subject: Program) -> list[list[torch.Tensor]]:
    """Small whole numbers, which every type here holds, and the layout that the right factor must have."""
    made = torch.Generator().manual_seed(0)
    given: list[list[torch.Tensor]] = []
    for _ in range(2):
        given.append([])
        for op in subject.inputs:
            spec = op.out[0]
            shape = [size for size in spec.shape if isinstance(size, int)]
            whole = torch.randint(1, 4, shape, generator=made).float()
            small = whole.to(torch.float8_e4m3fn) if spec.dtype == "f8e4m3fn" else whole
            given[-1].append(small.t().contiguous().t() if op.name == "w" else small)
    return given


def test_a_scaled_matmul_with_a_scale_for_each_row() -> None:
    after = fused(SCALED)
    assert body(after).startswith(
        "%fused: (f8e4m3fn[32,16], bf16[32,16]) = all_gather_scaled_matmul.fused(%x, [%w], %sx, [%sw], 0, [None], "
        "[None], [bf16], [False]) over g from %ag, %y\n"
    )
    assert matched(SCALED, "ag").inputs[2].shape == (32, 1)


@pytest.mark.parametrize("before", [SCALED, SCALED_SCATTER], ids=["gather", "scatter"])
def test_scaled_matmuls_compute_the_same(before: Program) -> None:
    if before is SCALED:  # torch multiplies by scales of rows on a GPU only
        before = weft.parse(str(before).replace("f32[32,1]", "f32[]").replace("f32[1,16]", "f32[]"))
    given = scaled_inputs(before)
    (one, other), (first, second) = (virtual(subject, given) for subject in (before, fused(before)))
    assert torch.equal(tree_leaves(one)[0], tree_leaves(first)[0])
    assert torch.equal(tree_leaves(other)[0], tree_leaves(second)[0])


def test_a_scaled_matmul_that_is_scattered() -> None:
    assert body(fused(SCALED_SCATTER)) == (
        "%fused: bf16[16,16] = scaled_matmul_reduce_scatter.fused(%x, %w, %sx, %sw, 0, 0, [32, 16], None, None, bf16, "
        "True) sum over g from %rs, %s\n"
        "return %fused"
    )


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_tensor_parallel_llama_forward_and_backward(samples: int, joined: bool) -> None:
    workload = replace(
        WORKLOADS["llama3_8b_tp8_sp"],
        mesh=(("tensor", 2),),
        config=llama.llama_tiny(),
        micro_batch=samples,
        dtype=torch.float32,
    )
    with weft.planning(dict(workload.mesh)) as mesh:
        before = captured_on(mesh, workload)
        after = fused(before, joined)
        lower(after)  # torch's own implementations find the same shapes and strides
    made = Counter(op.target for op in after.ops if op.inside is not None)
    assert made == {"all_gather_matmul.fused": 9, "matmul_reduce_scatter.fused": 9}
    assert Counter(op.comm.kind for op in after.starts if op.comm) == {
        "all_gather": 2,
        "reduce_scatter": 1,
        "all_reduce": 5,
    }
    factors = [op.args[1] for op in after.ops if op.target == "all_gather_matmul.fused"]
    assert sum(isinstance(rights, tuple) and len(rights) > 1 for rights in factors) == (0 if joined else 4)
    assert_same(before, after, tolerance=1e-5)
