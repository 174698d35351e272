"""Real ranks: a step whose collectives are merged, in each way, or scheduled gives what the captured step gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh

import weft
from tests.parallel import models
from tests.parallel.test_captured import FOUR, TWO, Case, inputs_of, step
from weft import Machine, Plan, Program, pipeline
from weft.parallel import data_parallel
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

PIPELINES = (
    "bucket",
    "bucket{mode=custom_op}",
    "bucket{mode=coalesced}",
    "bucket{mode=coalesced_pack}",
    "bucket{mode=multidtype}",
    "bucket{kinds=[all_gather]}",
    "bucket_auto",
    "bucket_auto{mode=custom_op}",
    "bucket_auto{mode=coalesced}",
    "schedule",
    *weft.PRESETS.values(),
)


def merged(rank: int, cases: dict[str, Case]) -> dict[tuple[str, str], tuple[int, float]]:
    """For each case and pipeline: how many collectives fewer there are, and by how much any result is another."""
    words = models.batch(0).chunk(dist.get_world_size())[rank]
    found = {}
    for case, (shape, mode, options) in cases.items():
        model = data_parallel(models.net(), init_device_mesh("cpu", shape), mode, **options)
        program = weft.capture(step, (model, words))
        given = inputs_of(program, model, words)
        expected = weft.to_fx(program)(*given)
        for passes in PIPELINES:
            made = planned(program, passes)
            results = weft.to_fx(made)(*given)
            pairs = zip(expected, results, strict=True)
            apart = [float((one - other).abs().max()) for one, other in pairs if one.numel()]
            found[case, passes] = len(program.starts) - len(made.starts), max(apart)
    return found


def planned(program: Program, passes: str) -> Program:
    """The program after passes, with the plans of rank 0: shards differ in size, so ranks might decide otherwise."""
    chosen = weft.parse_pipeline(passes, weft.PASSES)
    stages = pipeline.run(program, chosen, cost=Machine.load("gloo-cpu")).stages
    plans = [stage.plan.to_json() for stage in stages]
    dist.broadcast_object_list(plans, src=0)
    made = program
    for one, plan in zip(chosen, plans, strict=True):
        made = one.apply(made, Plan.from_json(plan))
    weft.verify(program, made, reorders=True)
    return made


def test_on_two_ranks_every_bit_is_the_same() -> None:
    for found in local_ranks(merged, 2, TWO):
        assert {apart for _, apart in found.values()} == {0.0}
        assert {passes for (_, passes), (fewer, _) in found.items() if fewer} >= {*PIPELINES[:5]}


def test_on_four_ranks_only_the_order_of_sums_is_another() -> None:
    for found in local_ranks(merged, 4, FOUR):
        assert max(apart for _, apart in found.values()) < 1e-6
        gathers = [apart for (_, passes), (_, apart) in found.items() if "all_gather" in passes or "multi" in passes]
        assert set(gathers) == {0.0}


def added(rank: int) -> tuple[list[int], float]:
    """Two reductions that are added become one: how many collectives there are before and after, and by how much the
    result is another."""
    everybody = list(range(dist.get_world_size()))
    one, other = (torch.randn(8, 3, generator=torch.Generator().manual_seed(10 * rank + n)) for n in range(2))

    def total(one: Tensor, other: Tensor) -> Tensor:
        left, right = (reduce_scatter_tensor(each, "sum", 0, everybody) for each in (one, other))
        return torch.add(left, right)

    program = weft.capture(total, (one, other))
    made = planned(program, "merge_sums")
    (expected,), (found,) = (weft.to_fx(each)(one, other) for each in (program, made))
    return [len(each.starts) for each in (program, made)], float((found - expected).abs().max())


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_reductions_that_are_added_become_one(ranks: int) -> None:
    for starts, apart in local_ranks(added, ranks):
        assert starts == [2, 1]
        assert apart < 1e-6
