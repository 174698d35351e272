"""What must hold of `dedupe` on any program, and what it does to captured ones. The goldens show each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, event, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft
from tests.programs import programs
from tests.values import assert_computes_the_same, bits
from weft import pipeline
from weft.analysis import memory, pairs
from weft.ir import Editor, Op, Program, Ref, TensorSpec
from weft.ir.targets import traits_of
from weft.passes import PASSES, Context, make_pass
from weft.run import local_ranks, virtual
from weft.verify import violations


@st.composite
def repetitive(draw: st.DrawFn) -> Program:
    """Programs in which some collectives are done again, and results are cast."""
    subject = draw(programs(steps=(10, 30), mutate_inputs=True))
    waits = pairs(subject).waits
    able = [op for op in subject.starts if len(waits[op.name]) == 1 and not op.traits.mutates]
    able = [op for op in able if isinstance(op.args[0], Ref)]
    editor = Editor(subject)
    made: list[Ref] = []
    for start in draw(st.lists(st.sampled_from(able), max_size=3)) if able else []:
        later = [op.name for op in subject.ops[subject.index[start.name] :]]
        anchor, sent = draw(st.sampled_from(later)), start.args[0]
        if draw(st.booleans()) and isinstance(sent, Ref):  # something else, of which there is nothing but a cast
            fresh = Op("fresh", "aten.neg.default", (sent,), {}, subject[sent.name].out, traits_of("aten.neg.default"))
            sent = editor.insert_after(anchor, fresh)
            anchor = sent.name
        again = editor.insert_after(anchor, replace(start, name="again", args=(sent, *start.args[1:]), sources=()))
        wait = Op("landed", "wait", (again,), {}, start.out, traits_of("wait"))
        landed = editor.insert_after(again.name, wait)
        (spec,) = start.out
        assert isinstance(spec, TensorSpec)
        dtype = draw(st.sampled_from(["f16", "f64"]))
        cast = "prims.convert_element_type.default"
        value = Op("cast", cast, (landed, weft.ir.Dtype(dtype)), {}, (TensorSpec(spec.shape, dtype),), traits_of(cast))
        made.append(editor.insert_after(landed.name, value))
    changed = replace(editor.finish("repeated"), outputs=(*subject.outputs, *made), history=())
    assume(not violations(changed))  # what is sent again may be in flight by then
    return changed


@given(repetitive(), st.sampled_from([None, 0.0]))
def test_the_program_computes_the_same(subject: Program, increase: float | None) -> None:
    result = pipeline.run(subject, [make_pass(PASSES["dedupe"], {"max_memory_increase_gb": increase})])
    event(f"{increase}: {sorted({step.verb for step in result.stages[0].plan.steps})}")
    assert_computes_the_same(subject, result.program)


@given(repetitive())
def test_memory_does_not_rise(subject: Program) -> None:
    made = pipeline.run(subject, [make_pass(PASSES["dedupe"], {})]).program
    assert memory(made).peak_bytes <= memory(subject).peak_bytes


# Captured


class Attention(nn.Module):
    """Three projections of one input, as every attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        found: Tensor = self.out(weights @ self.v(x))
        return found


def remarks(program: Program, **options: object) -> list[str]:
    plan = make_pass(PASSES["dedupe"], options).plan(program, Context.of(program))
    return [str(remark) for remark in plan.remarks]


def test_projections_that_each_gather_their_input_gather_it_once() -> None:
    with weft.planning({"tp": 2}) as mesh:
        model, columns = Attention(), ["q", "k", "v"]
        plan = {name: ColwiseParallel(input_layouts=Shard(1)) for name in columns}
        parallelize_module(model, mesh, {**plan, "out": RowwiseParallel(output_layouts=Shard(1))})
        program = weft.capture(model, (torch.randn(1, 4, 8),))
    merged = "dedupe: done: %all_gather_into_tensor_1: %all_gather_into_tensor has done it already: 256 bytes"
    again = "dedupe: done: %all_gather_into_tensor_2: %all_gather_into_tensor has done it already: 256 bytes"
    held = "256 bytes would be held longer: memory would rise to 1,408 bytes, and may to 1,280"
    assert remarks(program) == [
        f"{merged}; its result is held for 3 ops more",
        f"dedupe: refused: %all_gather_into_tensor_2: {held}",
    ]
    assert remarks(program, max_memory_increase_gb=0.001) == [
        f"{merged}; its result is held for 3 ops more",
        f"{again}; its result is held for 11 ops more",
    ]
    made = pipeline.run(program, [make_pass(PASSES["dedupe"], {"max_memory_increase_gb": 0.001})]).program
    assert [op.name for op in made.starts] == ["all_gather_into_tensor", "reduce_scatter_tensor"]
    random = torch.Generator().manual_seed(0)
    given = [
        [torch.randn([int(str(n)) for n in op.out[0].shape], generator=random) for op in program.inputs]
        for _ in range(2)
    ]
    assert bits(virtual(made, given)) == bits(virtual(program, given))


def scattered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """A sum that is made whole, of which one's own part is taken."""
    whole = DTensor.from_local(x, mesh, [Partial()]).redistribute(placements=[Replicate()])
    return whole.redistribute(placements=[Shard(0)]).to_local() * 2


def resharded(x: Tensor, mesh: DeviceMesh) -> tuple[Tensor, Tensor]:
    """The same, and the parts are put together again."""
    whole = DTensor.from_local(x, mesh, [Partial()]).redistribute(placements=[Replicate()])
    own = whole.redistribute(placements=[Shard(0)])
    return own.to_local() * 2, own.redistribute(placements=[Replicate()]).to_local() + 1


def captured(function: Callable[..., object], rank: int | None) -> Program:
    with weft.planning({"tp": 4}, rank=rank or 0) as mesh:
        program = weft.capture(lambda x: function(x, mesh), (torch.randn(8, 3),))
    return program if rank is not None else replace(program, rank=None)


def test_a_rank_takes_its_own_part_of_what_dtensor_reduced() -> None:
    for rank in range(4):
        item = f"getitem_{rank}" if rank else "getitem"
        assert remarks(captured(scattered, rank)) == [
            "dedupe: done: %all_reduce: became a reduce-scatter: of 96 bytes the rank's own 24 are read"
        ]
        assert remarks(captured(resharded, rank)) == [
            "dedupe: done: %all_gather_into_tensor: it gives %wait_tensor back, of which it gathers the parts: "
            "96 bytes",
            f"dedupe: refused: %all_reduce: %{item} takes the rank's own part of it, and it has part in another "
            "change; another run may see to it",
        ]


def test_of_a_program_without_a_rank_no_part_is_its_own() -> None:
    unknown = "whether that is the rank's own cannot be told, as the program does not say of which rank it is"
    assert remarks(captured(resharded, None)) == [
        f"dedupe: refused: %all_gather_into_tensor: it gathers part 0 of %wait_tensor: {unknown}",
        f"dedupe: refused: %all_reduce: %getitem takes part 0 of it: {unknown}",
    ]


def on_a_rank(rank: int) -> list[tuple[list[str], list[str], bool]]:
    """For each function: its collectives before and after, and whether this rank gets the same, bit for bit."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    given = torch.randn(8, 3, generator=torch.Generator().manual_seed(rank))
    found = []
    for function in (scattered, resharded):
        program = weft.capture(lambda x, f=function: f(x, mesh), (given,))
        made = pipeline.run(program, [make_pass(PASSES["dedupe"], {})]).program
        expected, results = weft.to_fx(program)(given), weft.to_fx(made)(given)
        had, has = ([op.comm.kind for op in one.starts if op.comm is not None] for one in (program, made))
        found.append((had, has, all(torch.equal(one, two) for one, two in zip(expected, results, strict=True))))
    return found


@pytest.mark.gloo
def test_on_real_ranks_each_gets_its_own_part() -> None:
    for found in local_ranks(on_a_rank, 2):
        assert found == [
            (["all_reduce"], ["reduce_scatter"], True),
            (["all_reduce", "all_gather"], ["all_reduce"], True),
        ]
