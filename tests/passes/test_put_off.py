"""Collectives that send on what others have received: put off, merged with these at once, and beside gathers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.programs import programs
from weft.analysis.memory import memory
from weft.analysis.windows import sent_on
from weft.cost import Machine
from weft.ir import Program, parse
from weft.optimizer import PRESETS
from weft.passes.base import Context
from weft.passes.bucket_auto import BucketAuto
from weft.passes.fitting_in import Limits, fitted
from weft.passes.put_off import PutOff
from weft.passes.together import moved_to_gathers
from weft.sim import simulate
from weft.sim.contract import contract
from weft.sim.sketch import Placement

H100 = Machine.load("h100-ib400")
HEAD = """weft 1
group shard = 0..7
group replicate = 0, 8

%x: bf16[8192,8192] = input()
"""


def hybrid(rows: int) -> Program:
    """Four matmuls, of each of which some rows are scattered within a node and then reduced between nodes."""
    lines = []
    for number in range(4):
        lines += [
            f"%h{number}: bf16[8192,8192] = aten.mm.default(%{f'h{number - 1}' if number else 'x'}, %x)",
            f"%g{number}: bf16[{rows},8192] = aten.slice.Tensor(%h{number}, 0, 0, {rows})",
            f"%s{number}: bf16[{rows // 8},8192] = reduce_scatter.start(%g{number}) avg over shard",
            f"%v{number}: bf16[{rows // 8},8192] = wait(%s{number})",
            f"%r{number}: bf16[{rows // 8},8192] = all_reduce.start(%v{number}) avg over replicate",
            f"%w{number}: bf16[{rows // 8},8192] = wait(%r{number})",
        ]
    return parse(HEAD + "\n".join(lines) + "\nreturn %h3, %w0, %w1, %w2, %w3\n")


def put_off(program: Program, share: float) -> Program:
    one = PutOff(share)
    return one.apply(program, one.plan(program, Context.of(program, H100)))


def remarks(rows: int, share: float, memory_limit: int | None = None) -> list[str]:
    """What `bucket_auto` says of those that send on and those that they received from, and of single chains."""
    program = put_off(hybrid(rows), share)
    found = BucketAuto().plan(program, Context.of(program, H100, memory_limit)).remarks
    return [f"{remark.verdict}: {remark.message}" for remark in found if "their time" not in remark.message]


def test_who_sends_on_what_whom_received() -> None:
    assert sent_on(hybrid(64)) == {f"r{number}": [f"s{number}"] for number in range(4)}


def test_both_are_merged_at_once() -> None:
    what = "6 collectives in 2 buckets, of which some send on what the others received"
    assert remarks(64, 0.3) == [f"done: {what}, save 10.4 us"]


def test_where_that_takes_longer_each_chain_is_tried_by_itself() -> None:
    assert remarks(64, 0.1) == [
        "refused: 4 collectives in 2 buckets, of which some send on what the others received, would take 11.1 us more",
        "refused: 4 reduce_scatters over shard: there is nothing to gain",
        "refused: 4 of 4 all_reduces over replicate in 2 buckets (coalesced) would take 7.8 us more",
    ]


def test_there_is_memory_for_all_that_is_merged() -> None:
    limit = memory(put_off(hybrid(64), 0.3)).peak_bytes
    assert remarks(64, 0.3, limit)[0] == (
        "refused: 6 collectives in 2 buckets, of which some send on what the others received, "
        "would need 0.67 GB, and may have 0.40"
    )


def test_no_bucket_is_larger_than_it_may_be() -> None:
    program = put_off(hybrid(64), 0.3)
    found = BucketAuto(max_mb=0.2).plan(program, Context.of(program, H100)).remarks
    assert not [remark for remark in found if "send on" in remark.message]


def with_and_without(rows: int) -> tuple[weft.Optimized, weft.Optimized]:
    """What `weft.optimize` makes of it by default, and by default but for `put_off`."""
    passes = PRESETS["default"].replace("put_off,", "")
    return weft.optimize(hybrid(rows), H100), weft.optimize(hybrid(rows), H100, passes=passes)


def test_the_step_is_shorter_where_small_reductions_are_put_off() -> None:
    found, without = with_and_without(256)
    assert found.after.step_us < without.after.step_us


def test_what_was_put_off_is_left_out_if_the_step_is_longer_in_the_end() -> None:
    found, without = with_and_without(8192)
    assert found.after.step_us == without.after.step_us
    assert any("left out: the step would take" in one.message for one in found.remarks if one.pass_name == "put_off")


GATHER = """%p: bf16[1024,8192] = input()
%v: bf16[8192,8192] = aten.mm.default(%x, %x)
%r: bf16[8192,8192] = all_reduce.start(%v) sum over replicate
%w: bf16[8192,8192] = wait(%r)
%a: bf16[8192,8192] = aten.mm.default(%x, %x)
%b: bf16[8192,8192] = aten.mm.default(%a, %x)
%g: bf16[8192,8192] = all_gather.start(%p) over shard
%f: bf16[8192,8192] = wait(%g)
%c: bf16[8192,8192] = aten.mm.default(%b, %f)
%d: bf16[8192,8192] = aten.mm.default(%c, %x)
return %d, %w
"""


def test_reductions_are_launched_where_the_next_gather_is() -> None:
    program = parse(HEAD + GATHER)
    sketch = contract(program, simulate(program, H100).prices)
    (reduction, gather) = sketch.pieces
    placed = fitted(sketch, Placement((reduction.ready, gather.due), (reduction.used, gather.used), (0, 1)), Limits())
    moved = moved_to_gathers(sketch, placed.placement, placed.run, [1e9, 1e9])
    assert moved.launch == (gather.due, gather.due)
    assert moved.order == (1, 0)
    assert fitted(sketch, moved, Limits()).run.step_us < placed.run.step_us
    late = moved_to_gathers(sketch, placed.placement, placed.run, [0.0, 1e9])
    assert late.launch == placed.placement.launch


@given(program=programs(random=True, barriers=True), share=st.sampled_from([0.0, 0.1, 0.5]))
def test_any_program_is_the_same_step_after_it(program: Program, share: float) -> None:
    weft.verify(program, put_off(program, share), reorders=True)
