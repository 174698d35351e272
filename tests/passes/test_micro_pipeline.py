"""What `micro_pipeline` and `halve` compute: what the program computes that they are given. The goldens show each form
and each refusal; here they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._pytree import tree_leaves

import weft
from bench.workloads import moe
from bench.workloads.parallel import expert_parallel, tensor_parallel
from weft import Machine, PlanError, pipeline
from weft.cli import llama
from weft.cli.tasks import Batch, loss
from weft.fx.values import TO_TORCH
from weft.ir import Op, Program
from weft.passes import Context, Plan
from weft.passes.chunking import cut
from weft.passes.cutting import Way, stretches
from weft.passes.halve import Halve
from weft.passes.micro_pipeline import MicroPipeline, nearest
from weft.passes.regions import chains
from weft.passes.sharing import sharing
from weft.run import virtual

GOLDENS = Path(__file__).parents[1] / "golden" / "passes"
COST = Machine.load("h100-ib400")
WITHIN = 1e-5  # of the largest number of a result


def numbers(subject: Program, ranks: int) -> list[list[Tensor]]:
    """Small whole numbers, other ones on every rank: sums of them are not rounded, in whatever order."""
    made = torch.Generator().manual_seed(0)

    def one(spec: Any) -> Tensor:
        return _as(torch.randint(-2, 3, spec.shape, generator=made), spec)

    return [[one(op.out[0]) for op in subject.inputs] for _ in range(ranks)]


def _as(value: Tensor, spec: Any) -> Tensor:
    """A tensor with the dtype and the strides of a spec."""
    value = value.to(TO_TORCH[spec.dtype])
    if spec.strides is None:
        return value
    return torch.empty_strided(spec.shape, spec.strides, dtype=value.dtype).copy_(value)


def results(subject: Program, given: Sequence[Sequence[Tensor]], reads: Any = "late") -> list[Tensor]:
    """The tensors that all ranks return."""
    found = tree_leaves(virtual(subject, [[tensor.clone() for tensor in rank] for rank in given], reads=reads))
    return [one for one in found if one is not None]


def apart(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """By how much any result is another, in parts of its largest number; 0.0 only if all bits are the same."""
    assert len(expected) == len(found) > 0
    return max(map(_apart, expected, found))


def _apart(one: Tensor, other: Tensor) -> float:
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert not one.isnan().any()
    if torch.equal(one, other):
        return 0.0
    return float((one - other).abs().max() / one.abs().max())


# The goldens


def golden(name: str) -> tuple[Program, Program]:
    """What a golden is given, and what it makes of it."""
    given, rest = (GOLDENS / f"{name}.weft").read_text().split("# ---- stdout\n", 1)
    return weft.parse(given), weft.parse(rest.split("# ---- stderr", 1)[0])


def cut_goldens() -> list[str]:
    found = [*GOLDENS.glob("micro_pipeline__*.weft"), *GOLDENS.glob("halve__*.weft")]
    # Those on a large machine have large matmuls.
    return sorted(path.stem for path in found if ": done: " in path.read_text() and "-m toy" in path.read_text())


@pytest.mark.parametrize("reads", ["early", "late"])
@pytest.mark.parametrize("name", cut_goldens())
def test_a_golden_computes_the_same(name: str, reads: str) -> None:
    before, after = golden(name)
    given = numbers(before, 2)
    assert apart(results(before, given), results(after, given, reads)) == 0.0


# Models on virtual ranks, forward and backward


def step(model: nn.Module, *batch: Tensor) -> list[Tensor]:
    """The loss, then the gradient of each parameter."""
    value = loss(model, *batch)
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return [value, *(one.to_local() if isinstance(one, DTensor) else one for one in gradients)]


def captured(make: Callable[[DeviceMesh], tuple[nn.Module, Batch]], ranks: int) -> Program:
    with weft.planning({"tp": ranks}) as mesh:
        torch.manual_seed(0)
        model, batch = make(mesh)
        return weft.capture(step, (model, *batch))


def block(samples: int) -> Callable[[DeviceMesh], tuple[nn.Module, Batch]]:
    """One layer of a Llama, with its ends, split over ranks by heads and hidden units, and along the sequence."""

    def make(mesh: DeviceMesh) -> tuple[nn.Module, Batch]:
        config = replace(llama.llama_tiny(), layers=1, kv_heads=4)
        model = llama.Llama(config)
        tensor_parallel(model, mesh)
        return model, llama.batch(config, samples)

    return make


def whole_sequences(mesh: DeviceMesh) -> tuple[nn.Module, Batch]:
    """The same, but every rank has all of the sequence: what its part of the weights gives is all-reduced."""
    config = replace(llama.llama_tiny(), layers=1)
    model = llama.Llama(config)
    columns, rows = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"), ("attention.out", "mlp.down")
    plan = {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan, src_data_rank=None)
    return model, llama.batch(config, 2)


def experts(mesh: DeviceMesh) -> tuple[nn.Module, Batch]:
    config = moe.moe_tiny()
    model = moe.MoETransformer(config)
    expert_parallel(model, mesh)
    return model, llama.batch(config, 2)


def activations(subject: Program, ranks: int) -> list[list[Tensor]]:
    """Numbers for each input of each rank; words, which are the same for all."""
    made = torch.Generator().manual_seed(1)
    words = {op.name: torch.randint(0, 64, op.out[0].shape, generator=made) for op in subject.inputs}  # type: ignore[arg-type]

    def one(op: Op) -> Tensor:
        spec: Any = op.out[0]
        return words[op.name] if spec.dtype == "i64" else torch.randn(spec.shape, generator=made) * 0.3

    return [[one(op) for op in subject.inputs] for _ in range(ranks)]


def run(subject: Program, *passes: Any) -> Program:
    return pipeline.run(subject, passes, cost=COST).program


def in_one_piece(subject: Program, chunks: int, sum_chunks: bool) -> Program:
    """Every chain of collectives as one region, with what regions have in common."""
    found, _ = chains(subject, list(subject.starts))
    regions = [chain.region(0, len(chain.knots), chunks) for chain in found if chain.knots[0].size % chunks == 0]
    assert max(sum(name in region.axes for name in (op.name for op in subject.starts)) for region in regions) > 1
    made = cut(subject, sharing(subject, regions, sum_chunks), "cut")
    weft.verify(subject, made, reorders=True)
    return made


@pytest.mark.parametrize(("ranks", "samples"), [(2, 1), (2, 2), (4, 1)])
def test_a_tensor_parallel_block_computes_the_same_in_chunks(ranks: int, samples: int) -> None:
    subject = captured(block(samples), ranks)
    given = activations(subject, ranks)
    expected = results(subject, given)
    alone = run(subject, MicroPipeline(always=True, chunks=2))
    assert len(alone.starts) == 2 * len(subject.starts) - 1  # the words' embeddings are made by no matmul
    assert apart(expected, results(alone, given)) == 0.0
    assert apart(expected, results(in_one_piece(subject, 2, sum_chunks=False), given, "early")) == 0.0
    assert 0.0 < apart(expected, results(in_one_piece(subject, 2, sum_chunks=True), given)) < WITHIN


def test_a_mixture_of_experts_computes_the_same_in_chunks() -> None:
    subject = captured(experts, 2)
    given = activations(subject, 2)
    expected = results(subject, given)
    made = run(subject, MicroPipeline(always=True, chunks=2))
    assert len(made.starts) == 2 * len(subject.starts)
    assert apart(expected, results(made, given)) == 0.0
    assert apart(expected, results(in_one_piece(subject, 2, sum_chunks=False), given, "early")) == 0.0
    assert apart(expected, results(in_one_piece(subject, 2, sum_chunks=True), given)) < WITHIN


def test_all_reduces_in_halves_and_chunks_compute_the_same() -> None:
    subject = captured(whole_sequences, 2)
    given = activations(subject, 2)
    expected = results(subject, given)
    halved = run(subject, Halve(always=True))
    kinds = [op.comm.kind for op in halved.starts if op.comm is not None]
    assert {op.comm.kind for op in subject.starts if op.comm is not None} == {"all_reduce"}
    assert kinds == ["reduce_scatter", "all_gather"] * len(subject.starts)
    assert apart(expected, results(halved, given)) == 0.0
    for chunks in (2, 4):
        made = run(halved, MicroPipeline(always=True, chunks=chunks))
        assert len(made.starts) > len(halved.starts)
        assert apart(expected, results(made, given)) == 0.0


# Plans


def test_a_plan_from_json_gives_the_same_program() -> None:
    subject, _ = golden("micro_pipeline__a_norm_between_two_collectives")
    for one in (MicroPipeline(always=True), MicroPipeline(), MicroPipeline(sum_chunks=True, chunks=4)):
        plan = one.plan(subject, Context.of(subject, COST))
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert one.apply(subject, again) == one.apply(subject, plan)
    assert plan.pass_text == "micro_pipeline{chunks=4, sum_chunks=true}"


def test_a_plan_for_another_program_is_refused() -> None:
    subject, _ = golden("micro_pipeline__several_matmuls_of_one_gather")
    other, _ = golden("micro_pipeline__addmm")
    one = MicroPipeline(always=True)
    plan = one.plan(subject, Context.of(subject, COST))
    with pytest.raises(PlanError, match="was made for another program"):
        one.apply(other, plan)


@pytest.mark.parametrize(
    "change",
    [
        {"ops": ("g", "a", "nobody")},
        {"ops": ("g", "a", "q")},
        {"verb": "slice"},
        {"detail": {}},
        {"detail": {"start": "g", "rows": 4, "dim": 0, "chunks": 3}},
        {"detail": {"start": "g", "rows": 4, "dim": 0, "chunks": 1}},
        {"detail": {"start": "g", "rows": 3, "dim": 0, "chunks": 3}},
        {"detail": {"start": "g", "rows": 4, "dim": 2, "chunks": 2}},
    ],
)
def test_a_step_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    subject, _ = golden("micro_pipeline__several_matmuls_of_one_gather")
    one = MicroPipeline(always=True, chunks=2)
    plan = one.plan(subject, Context.of(subject, COST))
    (known,) = plan.steps
    assert known.ops == ("g", "a", "yq", "yk", "yv")
    with pytest.raises(PlanError, match="this cannot be cut in this program"):
        one.apply(subject, replace(plan, steps=(replace(known, **change),)))


def test_a_region_need_not_have_all_that_could_be_cut() -> None:
    subject, _ = golden("micro_pipeline__several_matmuls_of_one_gather")
    one = MicroPipeline(always=True, chunks=2)
    plan = one.plan(subject, Context.of(subject, COST))
    fewer = replace(plan, steps=(replace(plan.steps[0], ops=("g", "a", "yk")),))
    made = one.apply(subject, fewer)
    weft.verify(subject, made, reorders=True)
    assert {"yq", "yv"} < {op.name for op in made.ops}
    given = numbers(subject, 2)
    assert apart(results(subject, given), results(made, given)) == 0.0


def test_less_of_a_way_is_nothing_or_a_collective_or_stretch_less() -> None:
    way = Way(((), ((0, 2), (3, 4))), 2, inside=(0, 1))
    assert [(one.spans[1], one.inside) for one in way.fewer()] == [
        ((), ()),
        (((3, 4),), (0, 1)),
        (((1, 2), (3, 4)), (0, 1)),
        (((0, 1), (3, 4)), (0, 1)),
        (((0, 2),), (0, 1)),
        (((0, 2), (3, 4)), (1,)),
        (((0, 2), (3, 4)), (0,)),
    ]
    assert next(way.fewer()).is_nothing


def test_stretches_have_something_to_hide_and_are_not_too_long() -> None:
    assert stretches([False, True, False], longest=2) == [(0, 2), (1, 2), (1, 3)]
    assert stretches([False, False], longest=2) == []


def test_any_stretch_of_a_chain_may_be_cut_while_the_rest_stays_whole() -> None:
    subject = captured(block(1), 2)
    given = activations(subject, 2)
    expected = results(subject, given)
    found, _ = chains(subject, list(subject.starts))
    longest = max(found, key=lambda chain: len(chain.knots))
    spans = stretches([True] * len(longest.knots), longest=2)
    assert len(spans) > 4
    for first, last in spans:
        made = cut(subject, sharing(subject, [longest.region(first, last, 2)], sum_chunks=False), "cut")
        weft.verify(subject, made, reorders=True)
        assert len(made.starts) == len(subject.starts) + last - first
        assert apart(expected, results(made, given)) == 0.0


def _layers(widths: Sequence[int]) -> Program:
    """Layers that gather, multiply, mix rows and scatter, each so wide, one behind the other."""
    lines = ["weft 1", "group tp = 0..1", "", "%x0: bf16[4,8] = input()"]
    for i, width in enumerate(widths):
        lines.append(f"%w{i}: bf16[8,{width}] = input()")
        lines.append(f"%v{i}: bf16[{width},8] = input()")
        lines.append(f"%g{i}: bf16[8,8] = all_gather.start(%x{i}) over tp")
        lines.append(f"%f{i}: bf16[8,8] = wait(%g{i})")
        lines.append(f"%h{i}: bf16[8,{width}] = aten.mm.default(%f{i}, %w{i})")
        lines.append(f"%m{i}: bf16[8,{width}] = aten.cumsum.default(%h{i}, 0)")
        lines.append(f"%p{i}: bf16[8,8] = aten.mm.default(%m{i}, %v{i})")
        lines.append(f"%s{i}: bf16[4,8] = reduce_scatter.start(%p{i}) sum over tp")
        lines.append(f"%y{i}: bf16[4,8] = wait(%s{i})")
        lines.append(f"%x{i + 1}: bf16[4,8] = aten.cumsum.default(%y{i}, 0)")
    return weft.parse("\n".join([*lines, f"return %x{len(widths)}"]))


def test_of_layers_that_are_alike_two_are_tried_that_are_next_to_each_other() -> None:
    # What lies between two has no collectives where they are tried, so that it would hide theirs.
    subject = _layers([16, 32, 32, 16, 16])
    found, _ = chains(subject, subject.starts)
    starts = {chain.knots[0].start.name: [chain] for chain in found}
    alike = [starts["g0"], starts["g3"], starts["g4"]]
    assert nearest(subject, alike) == (starts["g3"], starts["g4"])
    assert nearest(subject, alike[:2]) == (starts["g0"], starts["g3"])
    assert nearest(subject, alike[:1]) == (starts["g0"],)


def test_a_part_has_what_is_cut_only_if_its_chain_is_divided() -> None:
    # %far leads to %scatter, not from %gather: it is cut with %scatter alone.
    subject = weft.parse("""weft 1
group tp = 0..7

%own: bf16[8192,8192] = input()
%w: bf16[8192,8192] = input()
%far: bf16[8192,8192] = aten.mm.default(%own, %w)
%some: bf16[1024,8192] = aten.slice.Tensor(%far, 0, 0, 1024)
%shard: bf16[1024,8192] = aten.cumsum.default(%some, 0)
%gather: bf16[8192,8192] = all_gather.start(%shard) over tp
%rows: bf16[8192,8192] = wait(%gather)
%near: bf16[8192,8192] = aten.mm.default(%rows, %w)
%sum: bf16[8192,8192] = aten.add.Tensor(%near, %far)
%scatter: bf16[1024,8192] = reduce_scatter.start(%sum) sum over tp
%mine: bf16[1024,8192] = wait(%scatter)
return %mine
""")
    (chain,), _ = chains(subject, subject.starts)
    assert "far" not in chain.axes(0, 2)
    assert "far" in chain.axes(1, 2)
    assert "far" in chain.names
    remarks = MicroPipeline().plan(subject, Context.of(subject, COST)).remarks
    assert [(one.op, one.verdict) for one in remarks] == [("gather", "done"), ("scatter", "done")]
