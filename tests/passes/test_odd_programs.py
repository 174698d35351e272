"""Steps that are legal and unusual: no pass may fail on them, or change what they compute."""

from __future__ import annotations

import warnings

import pytest
import torch

import weft
from tests.values import bits
from weft import pipeline
from weft.analysis.windows import windows
from weft.cost import Machine
from weft.cost.prices import prices
from weft.errors import VerifyError, WeftWarning
from weft.ir import Program
from weft.optimizer import PRESETS
from weft.passes import PASSES, make_pass, parse_pipeline
from weft.passes.bucket import BucketPass
from weft.passes.listing import listed, longest_tail
from weft.run import virtual

MACHINE = Machine.load("h100-ib400")
DEFAULT = PRESETS["default"]
BUCKETS = (
    "bucket",
    "bucket{mode=custom_op}",
    "bucket{mode=coalesced}",
    "bucket{mode=coalesced_pack}",
    "bucket_auto",
    "bucket_auto{mode=default}",
)


def step(lines: str, *outputs: str, ranks: int = 2) -> Program:
    named = ", ".join(f"%{name}" for name in outputs)
    body = "\n".join(line.strip() for line in lines.strip().splitlines())
    return weft.parse(f"weft 1\ngroup dp = 0..{ranks - 1}\n\n{body}\nreturn {named}\n")


def made_by(program: Program, passes: str) -> Program:
    """What passes make of a program, each verified."""
    return pipeline.run(program, parse_pipeline(passes, PASSES), cost=MACHINE).program


def computes_the_same(program: Program, made: Program) -> bool:
    """Whether two ranks get the same bits."""

    def results(one: Program) -> list[object]:
        random = torch.Generator().manual_seed(0)
        shapes = [[int(str(size)) for size in op.out[0].shape] for op in program.inputs]
        return bits(virtual(one, [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(2)]))

    return results(made) == results(program)


def test_slices_may_be_written_with_keywords() -> None:
    program = step(
        """
        %x: f32[8,8] = input()
        %a: f32[8,4;8,1] = aten.slice.Tensor(%x, dim=1, start=0, end=4)
        %ac: f32[8,4] = aten.clone.default(%a)
        %b: f32[8,4;8,1] = aten.slice.Tensor(%x, dim=1, start=4, end=8)
        %bc: f32[8,4] = aten.clone.default(%b)
        %s1: f32[16,4] = all_gather.start(%ac) over dp
        %w1: f32[16,4] = wait(%s1)
        %n1: f32[16,4] = aten.neg.default(%w1)
        %s2: f32[16,4] = all_gather.start(%bc) over dp
        %w2: f32[16,4] = wait(%s2)
        %n2: f32[16,4] = aten.neg.default(%w2)
        """,
        *("n1", "n2"),
    )
    made = made_by(program, "dedupe")
    assert len(made.starts) == 2
    assert computes_the_same(program, made)


def test_shapes_of_ops_whose_arguments_are_keywords_are_known() -> None:
    program = step(
        """
        %x: f32[4,8] = input()
        %c: f32[4,16] = aten.cat.default([%x, %x], dim=1)
        %p: f32[8,4;1,8] = aten.permute.default(%x, dims=[1, 0])
        %h: bf16[4,8] = prims.convert_element_type.default(%x, dtype=bf16)
        """,
        *("c", "p", "h"),
    )
    weft.verify(program)


def test_a_dynamic_batch_beside_gathered_weights() -> None:
    program = weft.parse(
        """weft 1
symbol s0 = 4096
group dp = 0..7

%x: bf16[s0,4096] = input()
%w: bf16[512,4096] = input()
%g: bf16[4096,4096] = all_gather.start(%w) over dp
%d: bf16[4096,4096] = wait(%g)
%t: bf16[4096,4096;1,4096] = aten.t.default(%d)
%h: bf16[s0,4096] = aten.mm.default(%x, %t)
return %h
"""
    )
    made_by(program, DEFAULT)


@pytest.mark.parametrize("passes", [DEFAULT, "bucket_auto", "bucket{mode=coalesced}", "ddp_fuse{mode=coalesced}"])
def test_a_result_that_is_scaled_and_copied_to_where_it_came_from(passes: str) -> None:
    program = step(
        """
        %a: f32[16] = input()
        %b: f32[16] = input()
        %s1: f32[16] = all_reduce.start(%a) sum over dp
        %w1: f32[16] = wait(%s1)
        %d1: f32[16] = aten.div.Scalar(%w1, 8)
        %c1: f32[16] = aten.copy_.default(%a, %d1)
        %h: f32[16] = aten.relu.default(%b)
        %s2: f32[16] = all_reduce.start(%h) sum over dp
        %w2: f32[16] = wait(%s2)
        %d2: f32[16] = aten.div.Scalar(%w2, 8)
        """,
        "d2",
    )
    assert computes_the_same(program, made_by(program, passes))


VIEWED = """
    %a: f32[4,4] = input()
    %b: f32[4,4] = input()
    %s1: f32[4,4] = all_reduce.start(%a) sum over dp
    %v1: f32[16] = aten.view.default(%s1, [16])
    %w1: f32[16] = wait(%v1)
    %s2: f32[4,4] = all_reduce.start(%b) sum over dp
    %v2: f32[16] = aten.view.default(%s2, [16])
    %w2: f32[16] = wait(%v2)
"""


@pytest.mark.parametrize("outputs", [("w1", "w2"), ("s1", "w1", "w2")])
@pytest.mark.parametrize("passes", [DEFAULT, *BUCKETS, "halve{always=true}", "micro_pipeline{always=true}"])
def test_a_result_that_is_viewed_or_returned_in_flight_is_left_as_it_is(passes: str, outputs: tuple[str, ...]) -> None:
    program = step(VIEWED, *outputs)
    made = made_by(program, passes)
    assert [op.name for op in made.starts] == ["s1", "s2"]
    assert computes_the_same(program, made)


def test_a_result_that_is_viewed_in_flight_is_refused_with_a_reason() -> None:
    found = weft.optimize(step(VIEWED, "w1", "w2"), MACHINE, passes="bucket")
    assert "bucket: refused: %s1: something else than a wait uses its result in flight" in map(str, found.remarks)


TWICE = """
    %a: f32[4,4] = input()
    %s1: f32[4,4] = all_reduce.start(%a) sum over dp
    %w1: f32[4,4] = wait(%s1)
    %x: f32[4,4] = aten.mm.default(%w1, %a)
    %s2: f32[4,4] = all_reduce.start(%a) sum over dp
    %w2: f32[4,4] = wait(%s2)
    %y: f32[4,4] = aten.mm.default(%w2, %x)
"""


@pytest.mark.parametrize("outputs", [("y", "s2"), ("s1", "y"), ("s2", "w2", "y")])
def test_a_result_that_is_returned_in_flight_is_no_duplicate(outputs: tuple[str, ...]) -> None:
    program = step(TWICE, *outputs)
    found = weft.optimize(program, MACHINE, passes="dedupe")
    assert [op.name for op in found.program.starts] == ["s1", "s2"]
    why = "it is the same as %s1, and something else than a wait uses its result in flight"
    assert f"dedupe: refused: %s2: {why}" in map(str, found.remarks)
    assert computes_the_same(program, made_by(program, DEFAULT))


def test_what_is_cast_and_viewed_in_flight_is_cast_where_it_was() -> None:
    program = step(
        """
        %a: f32[4,4] = input()
        %s1: f32[8,4] = all_gather.start(%a) over dp
        %v1: f32[32] = aten.view.default(%s1, [32])
        %w1: f32[32] = wait(%v1)
        %c: bf16[32] = aten._to_copy.default(%w1, dtype=bf16)
        """,
        "c",
    )
    found = weft.optimize(program, MACHINE, passes="dedupe")
    why = "%c casts it from f32 to bf16, and something else than a wait uses its result in flight"
    assert f"dedupe: refused: %s1: {why}" in map(str, found.remarks)


@pytest.mark.parametrize("passes", [DEFAULT, "micro_pipeline{always=true}"])
def test_padding_that_was_trimmed_is_not_sent(passes: str) -> None:
    program = step(
        """
        %x: bf16[1024,4096] = input()
        %w1: bf16[4096,2048] = input()
        %w2: bf16[2048,4096] = input()
        %g: bf16[8192,4096] = all_gather.start(%x) over dp
        %w: bf16[8192,4096] = wait(%g)
        %cut: bf16[8190,4096] = aten.slice.Tensor(%w, 0, 0, 8190)
        %h: bf16[8190,2048] = aten.mm.default(%cut, %w1)
        %s: bf16[8190,2048] = all_reduce.start(%h) sum over dp
        %d: bf16[8190,2048] = wait(%s)
        %y: bf16[8190,4096] = aten.mm.default(%d, %w2)
        """,
        "y",
        ranks=8,
    )
    made_by(program, passes)


def test_rows_that_are_folded_before_the_next_collective_are_found_again() -> None:
    program = step(
        """
        %x: f32[4,16] = input()
        %w1: f32[16,8] = input()
        %w2: f32[8,16] = input()
        %g: f32[8,16] = all_gather.start(%x) over dp
        %w: f32[8,16] = wait(%g)
        %h: f32[8,8] = aten.mm.default(%w, %w1)
        %v: f32[16,4] = aten.view.default(%h, [16, 4])
        %s: f32[16,4] = all_reduce.start(%v) sum over dp
        %d: f32[16,4] = wait(%s)
        %b: f32[8,8] = aten.view.default(%d, [8, 8])
        %y: f32[8,16] = aten.mm.default(%b, %w2)
        """,
        "y",
    )
    made = made_by(program, "micro_pipeline{always=true}")
    assert len(made.starts) > 2


@pytest.mark.parametrize("passes", [DEFAULT, "dedupe"])
def test_a_cast_that_also_moves_to_the_host_is_not_done_before_the_gather(passes: str) -> None:
    program = step(
        """
        %a: f32[512,4096] = input()
        %s1: f32[4096,4096] = all_gather.start(%a) over dp
        %w1: f32[4096,4096] = wait(%s1)
        %c1: bf16[4096,4096]@cpu = aten._to_copy.default(%w1, dtype=bf16, device=@cpu)
        """,
        "c1",
        ranks=8,
    )
    assert made_by(program, passes)["s1"].out == program["s1"].out


@pytest.mark.parametrize("limit", ["max_memory_increase_gb=0.0", "max_in_flight_gb=0.0"])
def test_a_copy_stays_behind_those_who_read_what_it_overwrites(limit: str) -> None:
    program = step(
        """
        %x1: f32[4194304] = input()
        %x2: f32[4194304] = input()
        %a: bf16[4096,4096] = input()
        %s1: f32[4194304] = all_reduce.start(%x1) sum over dp
        %w1: f32[4194304] = wait(%s1)
        %m1: bf16[4096,4096] = aten.mm.default(%a, %a)
        %s2: bf16[4096,4096] = all_reduce.start(%m1) sum over dp
        %w2: bf16[4096,4096] = wait(%s2)
        %m2: bf16[4096,4096] = aten.mm.default(%a, %m1)
        %r: f32[4194304] = aten.neg.default(%x2)
        %c1: f32[4194304] = aten.copy_.default(%x2, %w1)
        """,
        *("r", "w2", "m2"),
        ranks=8,
    )
    made_by(program, f"schedule{{{limit}}}")


HOST = """
    %a: f32[8]@cpu = input()
    %b: f32[8] = input()
    %s1: f32[8]@cpu = all_reduce.start(%a) sum over dp
    %w1: f32[8]@cpu = wait(%s1)
    %n1: f32[8]@cpu = aten.neg.default(%w1)
    %s2: f32[8] = all_reduce.start(%b) sum over dp
    %w2: f32[8] = wait(%s2)
    %n2: f32[8] = aten.neg.default(%w2)
"""


@pytest.mark.parametrize("passes", [DEFAULT, *BUCKETS, "halve{always=true}"])
def test_tensors_of_two_devices_are_not_in_one_bucket(passes: str) -> None:
    program = step(HOST, "w1", "n1", "n2")
    assert "s1" in made_by(program, passes)


@pytest.mark.parametrize("passes", [DEFAULT, *BUCKETS, "halve{always=true}"])
def test_results_that_do_not_lie_row_by_row_are_returned_as_they_were(passes: str) -> None:
    program = step(
        """
        %a: f32[8,4] = input()
        %b: f32[8,4] = input()
        %t1: f32[4,8;1,4] = aten.t.default(%a)
        %s1: f32[4,8;1,4] = all_reduce.start(%t1) sum over dp
        %w1: f32[4,8;1,4] = wait(%s1)
        %t2: f32[4,8;1,4] = aten.t.default(%b)
        %s2: f32[4,8;1,4] = all_reduce.start(%t2) sum over dp
        %w2: f32[4,8;1,4] = wait(%s2)
        """,
        *("w1", "w2"),
    )
    made_by(program, passes)


def test_a_sum_behind_a_barrier_is_not_taken_for_the_barrier() -> None:
    program = step(
        """
        %a: f32[8] = input()
        %b: f32[8] = input()
        %z: f32[8] = input()
        %s1: f32[8] = all_reduce.start(%a) sum over dp
        %w1: f32[8] = wait(%s1)
        %s2: f32[8] = all_reduce.start(%b) sum over dp
        %w2: f32[8] = wait(%s2)
        %q: f32[8] = aten.zero_.default(%a)
        %sum: f32[8] = aten.add.Tensor(%w1, %w2)
        """,
        *("sum", "z"),
    )
    assert computes_the_same(program, made_by(program, "merge_sums"))


FUSED = """
    %x: bf16[2048,8192] = input()
    %w: bf16[8192,8192] = input()
    %p: bf16[1024,8192] = input()
    %f: (none, bf16[16384,8192]) = all_gather_matmul.fused(%x, [%w], 0, return_A=False) over dp
    %y: bf16[16384,8192] = getitem(%f, 1)
    %s: bf16[8192,8192] = all_gather.start(%p) over dp
    %d: bf16[8192,8192] = wait(%s)
    %z: bf16[16384,8192] = aten.mm.default(%y, %d)
"""


@pytest.mark.parametrize("passes", ["hoist_starts", "schedule{keep_order=true}"])
def test_a_collective_inside_a_matmul_is_one_of_its_group(passes: str) -> None:
    made = made_by(step(FUSED, "z", ranks=8), passes)
    assert made.index["f"] < made.index["s"]


@pytest.mark.parametrize("passes", [*BUCKETS, DEFAULT])
def test_a_reduced_gradient_that_is_split_shares_a_bucket(passes: str) -> None:
    program = step(
        """
        %a: f32[8,4] = input()
        %b: f32[8,4] = input()
        %sa: f32[4,4] = reduce_scatter.start(%a) sum over dp
        %wa: f32[4,4] = wait(%sa)
        %parts: (f32[2,4], f32[2,4]) = aten.split.Tensor(%wa, 2, 0)
        %query: f32[2,4] = getitem(%parts, 0)
        %key: f32[2,4] = getitem(%parts, 1)
        %sb: f32[4,4] = reduce_scatter.start(%b) sum over dp
        %wb: f32[4,4] = wait(%sb)
        %half: f32[4,4] = aten.div.Tensor(%wb, 2)
        """,
        "query",
        "key",
        "half",
    )
    made = made_by(program, passes)
    assert len(made.starts) == 1
    assert computes_the_same(program, made)


@pytest.mark.parametrize("passes", ["bucket{mode=coalesced}", DEFAULT])
def test_one_call_has_landed_before_who_reads_a_result_writes_to_what_is_sent(passes: str) -> None:
    program = step(
        """
        %a: f32[4,4] = input()
        %b: f32[4,4] = input()
        %mine: f32[4,4] = aten.clone.default(%a)
        %sa: f32[4,4] = all_reduce.start(%mine) sum over dp
        %wa: f32[4,4] = wait(%sa)
        %more: f32[4,4] = aten.add_.Tensor(%mine, %wa)
        %sb: f32[4,4] = all_reduce.start(%b) sum over dp
        %wb: f32[4,4] = wait(%sb)
        """,
        "more",
        "wb",
    )
    assert windows(program)["sa"].overwritten == program.index["more"]
    made = made_by(program, passes)
    assert len(made.starts) == 1
    assert computes_the_same(program, made)


@pytest.mark.parametrize("passes", ["bucket,halve{always=true}", "bucket{mode=custom_op},halve{always=true},schedule"])
def test_a_bucket_can_be_halved(passes: str) -> None:
    program = step(
        """
        %a: f32[8,4] = input()
        %b: f32[8,8] = input()
        %sa: f32[8,4] = all_reduce.start(%a) sum over dp
        %wa: f32[8,4] = wait(%sa)
        %sb: f32[8,8] = all_reduce.start(%b) sum over dp
        %wb: f32[8,8] = wait(%sb)
        """,
        "wa",
        "wb",
    )
    made = made_by(program, passes)
    assert [op.target for op in made.starts] == ["reduce_scatter.start", "all_gather.start"]
    assert computes_the_same(program, made)


def test_values_that_stand_for_one_are_not_interchangeable() -> None:
    before = step(
        """
        %a: f32[8] = input()
        %b: f32[8] = input()
        %c0: f32[8] = aten.neg.default(%a) from %h
        %c1: f32[8] = aten.neg.default(%b) from %h
        %w: f32[16] = aten.cat.default([%c0, %c1])
        """,
        "w",
    )
    after = weft.parse(str(before).replace("[%c0, %c1]", "[%c1, %c0]"))
    with pytest.raises(VerifyError):
        weft.verify(before, after)


def test_caps_of_a_function_are_in_the_plan_as_numbers() -> None:
    lines = "".join(
        f"%x{at}: f32[1024] = input()\n%s{at}: f32[1024] = all_reduce.start(%x{at}) sum over dp\n" for at in range(4)
    )
    program = step(lines + "\n".join(f"%w{at}: f32[1024] = wait(%s{at})" for at in range(4)), "w0", "w1", "w2", "w3")
    found = weft.optimize(program, MACHINE, passes=[BucketPass(cap_mb=lambda number: 0.009)])
    assert len(found.program.starts) == 2
    assert weft.replay(program, found.plan, MACHINE).program.ops == found.program.ops


GATHERS = "".join(f"%x{at}: bf16[1024,8192] = input()\n" for at in range(4)) + "".join(
    f"%g{at}: bf16[8192,8192] = all_gather.start(%x{at}) over dp\n" for at in range(4)
)


@pytest.mark.parametrize("limit", ["max_in_flight_gb=0.14", "max_compute_pre_fetch=0"])
def test_a_step_that_breaks_a_limit_and_is_not_changed_warns(limit: str) -> None:
    used = "".join(
        f"%w{at}: bf16[8192,8192] = wait(%g{at})\n%y{at}: bf16[8192,8192] = aten.mm.default(%w{at}, %w{at})\n"
        for at in range(4)
    )
    program = step(GATHERS + used, "y0", "y1", "y2", "y3", ranks=8)
    with pytest.warns(WeftWarning, match="breaks max_in_flight_gb or max_compute_pre_fetch"):
        made_by(program, f"schedule{{{limit}}}")


@pytest.mark.parametrize(
    "passes",
    [
        "schedule{max_in_flight_gb=inf, max_memory_increase_gb=inf, max_memory_increase_ratio=inf}",
        "dedupe{max_memory_increase_gb=inf}",
    ],
)
def test_a_limit_that_is_infinite_is_none(passes: str) -> None:
    program = step(VIEWED, "w1", "w2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made_by(program, passes).ops == made_by(program, passes.replace("inf", "none")).ops


def test_kinds_are_checked_in_every_mode() -> None:
    with pytest.raises(weft.OptionError, match="there is no kind 'nonsense'"):
        make_pass(PASSES["bucket_auto"], {"kinds": ("nonsense",)})


def test_inputs_come_first_whatever_is_launched_soonest() -> None:
    program = step(
        """
        %a: f32[4,4] = input()
        %b: f32[4,4] = input()
        %n: f32[4,4] = aten.neg.default(%a)
        %s: f32[4,4] = all_reduce.start(%n) sum over dp
        %w: f32[4,4] = wait(%s)
        %m: f32[4,4] = aten.neg.default(%b)
        """,
        "w",
        "m",
    )
    order = listed(program, prices(program, MACHINE), longest_tail, 1.0, feeding=True)
    assert order[:2] == [0, 1]


def test_an_input_that_comes_late_holds_up_no_collective_before_it() -> None:
    program = step(
        """
        %a: f32[4,4] = input()
        %sa: f32[4,4] = all_reduce.start(%a) sum over dp
        %wa: f32[4,4] = wait(%sa)
        %na: f32[4,4] = aten.neg.default(%wa)
        %b: f32[4,4] = input()
        %sb: f32[4,4] = all_reduce.start(%b) sum over dp
        %wb: f32[4,4] = wait(%sb)
        """,
        "na",
        "wb",
    )
    found = windows(program)["sa"]
    assert found.ready <= found.position < found.due
    assert computes_the_same(program, made_by(program, "schedule"))


def test_an_input_that_comes_late_holds_up_no_start_that_is_hoisted() -> None:
    program = step(
        """
        %a: f32[4,4] = input()
        %x: f32[4,4] = aten.mm.default(%a, %a)
        %s1: f32[4,4] = all_reduce.start(%a) sum over dp
        %w1: f32[4,4] = wait(%s1)
        %b: f32[4,4] = input()
        %z: f32[4,4] = aten.mm.default(%b, %x)
        %s2: f32[4,4] = all_reduce.start(%x) sum over dp
        %w2: f32[4,4] = wait(%s2)
        """,
        "w1",
        "z",
        "w2",
    )
    made = made_by(program, "hoist_starts")
    assert [op.name for op in made.ops] == ["a", "s1", "x", "s2", "w1", "b", "z", "w2"]
    assert computes_the_same(program, made)


TRAINED = """
    %a: f32[4,8] = input()
    %b: f32[4,8] = input()
    %x: f32[8,8] = input()
    %ca: f32[4,8] = aten.clone.default(%a)
    %sa: f32[8,8] = all_gather.start(%ca) over dp
    %wa: f32[8,8] = wait(%sa)
    %y: f32[8,8] = aten.mm.default(%x, %wa)
    BETWEEN
    %cb: f32[4,8] = aten.clone.default(%b)
    %sb: f32[8,8] = all_gather.start(%cb) over dp
    %wb: f32[8,8] = wait(%sb)
    %z: f32[8,8] = aten.mm.default(%y, %wb)
    %na: f32[4,8] = aten.mul_.Tensor(%a, 0.5)
    %nb: f32[4,8] = aten.mul_.Tensor(%b, 0.5)
"""


@pytest.mark.parametrize("passes", [DEFAULT, "bucket{mode=coalesced},schedule", "bucket_auto,schedule"])
def test_gathers_of_parameters_that_an_optimiser_writes_to_are_prefetched_with_their_copies(passes: str) -> None:
    program = step(TRAINED.replace("BETWEEN", ""), "z")
    found = windows(program)["sb"]
    assert (found.ready, found.prelude) == (program.index["x"], (program.index["cb"],))
    made = made_by(program, passes)
    assert made.index[made.starts[-1].name] < made.index["y"]  # both are launched before anything is computed
    assert computes_the_same(program, made)


def test_a_copy_that_is_sent_stays_behind_who_writes_to_what_it_reads_and_before_who_does_so_later() -> None:
    program = step(TRAINED.replace("BETWEEN", "%ob: f32[4,8] = aten.mul_.Tensor(%b, 2.0)"), "z")
    assert windows(program)["sb"].ready == program.index["ob"]
    for passes in (DEFAULT, "bucket{mode=coalesced},schedule", "hoist_starts"):
        assert computes_the_same(program, made_by(program, passes))
