"""No program in which matmuls carry out collectives beats the bound of the program that it was made from."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import parse, pipeline
from weft.analysis.kernels import input_specs
from weft.analysis.traffic import total_bytes
from weft.cost import Machine, prices
from weft.errors import WeftWarning
from weft.ir import Program
from weft.passes import Pass
from weft.passes.halve import Halve
from weft.passes.micro_pipeline import LOWERINGS, MicroPipeline
from weft.sim import lower_bound, simulate
from weft.sim.parts import Parts

MACHINES = ("h100-ib400", "h200-ib400", "b200-ib400", "gb200-nvl72")

LARGE = """weft 1
group tp = 0..7

%x: bf16[2048,8192] = input()
%up: bf16[8192,28672] = input()
%gathered: bf16[16384,8192] = all_gather.start(%x) over tp
%whole: bf16[16384,8192] = wait(%gathered)
%h: bf16[16384,28672] = aten.mm.default(%whole, %up)
return %h
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_a_gather_that_costs_next_to_nothing_inside_a_large_matmul(machine: str) -> None:
    # Beside the matmul it would slow that down, by more than ranks take to meet.
    found = weft.optimize(parse(LARGE), machine)
    assert [op.target for op in found.program.communicating] == ["all_gather_matmul.fused"]
    assert found.before.bound_us <= found.after.step_us


@st.composite
def mlps(draw: st.DrawFn) -> Program:
    """A layer as tensor parallelism makes it: rows are gathered, multiplied by several matrices, multiplied once more
    and scattered, or reduced as a whole."""
    sizes = st.sampled_from([128, 512, 2048, 8192])
    ranks, shard, width, hidden = draw(st.sampled_from([2, 4, 8])), draw(sizes), draw(sizes), draw(sizes)
    rows, columns, mixed = shard * ranks, draw(st.integers(1, 3)), draw(st.booleans())
    lines = ["weft 1", f"group tp = 0..{ranks - 1}", "", f"%x: bf16[{shard},{width}] = input()"]
    lines += [f"%w{i}: bf16[{width},{hidden}] = input()" for i in range(columns)]
    lines += [f"%v{i}: bf16[{hidden},{width}] = input()" for i in range(columns)]
    lines.append(f"%g: bf16[{rows},{width}] = all_gather.start(%x) over tp")
    lines.append(f"%f: bf16[{rows},{width}] = wait(%g)")
    for i in range(columns):
        lines.append(f"%h{i}: bf16[{rows},{hidden}] = aten.mm.default(%f, %w{i})")
        lines.append(
            f"%a{i}: bf16[{rows},{hidden}] = aten.{'cumsum' if mixed else 'relu'}.default(%h{i}{', 0' * mixed})"
        )
        lines.append(f"%p{i}: bf16[{rows},{width}] = aten.mm.default(%a{i}, %v{i})")
        if i:
            last = "p0" if i == 1 else f"s{i - 1}"
            lines.append(f"%s{i}: bf16[{rows},{width}] = aten.add.Tensor(%{last}, %p{i})")
    last = "p0" if columns == 1 else f"s{columns - 1}"
    if draw(st.booleans()):
        lines.append(f"%r: bf16[{shard},{width}] = reduce_scatter.start(%{last}) sum over tp")
        lines += [f"%o: bf16[{shard},{width}] = wait(%r)", f"%z: bf16[{shard},{width}] = aten.relu.default(%o)"]
    else:
        lines.append(f"%r: bf16[{rows},{width}] = all_reduce.start(%{last}) sum over tp")
        lines += [f"%o: bf16[{rows},{width}] = wait(%r)", f"%z: bf16[{rows},{width}] = aten.relu.default(%o)"]
    return parse("\n".join([*lines, "return %z"]))


@settings(max_examples=60, deadline=None)
@given(mlps(), st.sampled_from(MACHINES))
def test_no_way_to_pipeline_a_layer_beats_its_bound(program: Program, name: str) -> None:
    machine = Machine.load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)  # chunks may be smaller than anything measured
        bound = lower_bound(program, machine).us
        made = [weft.optimize(program, machine).program]
        for lowering in LOWERINGS:
            for chunks in (2, 4):
                cut = MicroPipeline(lowering=lowering, chunks=chunks, always=True)
                passes: list[Pass] = [Halve(always=True), cut]
                made.append(pipeline.run(program, passes, cost=machine).program)
                made.append(weft.optimize(made[-1], machine, passes="schedule").program)
        steps = [simulate(one, machine).step_us for one in made]
    assert bound <= min(steps) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(mlps(), st.sampled_from(MACHINES))
def test_what_is_inside_takes_no_less_than_is_said(program: Program, name: str) -> None:
    machine = Machine.load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        made = pipeline.run(program, [MicroPipeline(lowering="fused", always=True)], cost=machine).program
        known = prices(program, machine)
        extras = Parts.of(program, machine, known).extras
    for op in made.ops:
        if op.inside is None:
            continue
        (start,) = (name for name in op.sources if program[name].is_start)
        matmuls = [one for one in program.ops if one.target == "aten.mm.default" and _is_of(program, one.name, start)]
        asked = [(one, input_specs(program, one)) for one in matmuls]
        fixed, travel = machine.inside_us(op.inside, total_bytes(program[start]))
        least = min(machine.multiplied_us(asked, op.inside.group.size))
        us = machine.op_us(op, input_specs(made, op))
        assert us >= fixed + max(least, travel + least / op.inside.group.size) - 1e-6
        assert program.index[start] in extras


def _is_of(program: Program, matmul: str, start: str) -> bool:
    """Whether a collective is inside this matmul: those at the beginning gather, and those at the end scatter."""
    return matmul.startswith("h") == (program[start].target == "all_gather.start")
