"""Real ranks: a tensor-parallel block whose collectives are cut into chunks gives what the captured block gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import init_device_mesh

import weft
from tests.passes.test_micro_pipeline import WITHIN, activations, apart, block, step
from weft import Machine, Program, pipeline
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

CUT = "micro_pipeline{always=true, chunks=2}"
SCHEDULED = f"{CUT},schedule"
ADDED = "micro_pipeline{always=true, chunks=2, sum_chunks=true}"


def cut(rank: int, samples: int, *passes: str) -> dict[str, tuple[int, float]]:
    """For each pipeline: how many collectives more there are, and by how much any result is another."""
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model, batch = block(samples)(init_device_mesh("cpu", (ranks,)))
    program = weft.capture(step, (model, *batch))
    given = activations(program, ranks)[rank]
    expected = weft.to_fx(program)(*given)
    found = {}
    for one in passes:
        made = planned(program, one)
        found[one] = len(made.starts) - len(program.starts), apart(expected, weft.to_fx(made)(*given))
    return found


def planned(program: Program, passes: str) -> Program:
    """The program after passes. Every rank decides for itself, since its part of the words is in its text; all
    must decide the same."""
    made = pipeline.run(program, weft.parse_pipeline(passes, weft.PASSES), cost=Machine.load("gloo-cpu"))
    steps = [[stage.plan.steps for stage in made.stages]] * dist.get_world_size()
    everybodys: list[object] = [None] * len(steps)
    dist.all_gather_object(everybodys, steps[0])
    assert everybodys == steps
    return made.program


def gathered(rank: int) -> tuple[int, float]:
    """The same for two matmuls of what is gathered, and nothing that is reduced."""
    made = torch.Generator().manual_seed(rank)
    x, left, right = (torch.randn(shape, generator=made) for shape in ((8, 24), (24, 16), (24, 5)))

    def products(x: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        whole = all_gather_tensor(x, 0, list(range(dist.get_world_size())))
        return whole @ left, whole @ right

    program = weft.capture(products, (x, left, right))
    after = planned(program, CUT)
    expected, found = (weft.to_fx(one)(x, left, right) for one in (program, after))
    return len(after.starts) - len(program.starts), apart(expected, found)


def on_two(rank: int) -> tuple[object, object]:
    return gathered(rank), cut(rank, 2, CUT, SCHEDULED, ADDED)


def on_four(rank: int) -> tuple[object, object]:
    return gathered(rank), cut(rank, 1, CUT)


def test_on_two_ranks_only_added_chunks_are_rounded_otherwise() -> None:
    for gathers, blocks in local_ranks(on_two, 2):
        assert gathers == (1, 0.0)
        assert blocks[CUT] == blocks[SCHEDULED] == (12, 0.0)
        assert blocks[ADDED][0] == 12
        assert 0.0 < blocks[ADDED][1] < WITHIN


def test_on_four_ranks_gathers_keep_every_bit() -> None:
    for gathers, blocks in local_ranks(on_four, 4):
        assert gathers == (1, 0.0)
        assert blocks[CUT][0] == 12
        assert blocks[CUT][1] < WITHIN  # a smaller message may be reduced in another order
