"""Real ranks: gradients that are averaged in buckets are the gradients that were averaged one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

import weft
from tests.parallel import models
from tests.parallel.test_captured import inputs_of, step
from weft import Program, pipeline
from weft.parallel import data_parallel
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": DistributedDataParallel, "replicate": replicate}
SMALL = "ddp_fuse{first_bucket_mb=0.0001, bucket_cap_mb=0.0005}"
COALESCED = "ddp_fuse{mode=coalesced}"
LEFT = {"": 10, "ddp_fuse": 2, COALESCED: 2, SMALL: 5}  # collectives; a scalar parameter is always left alone

Trained = tuple[set[tuple[int, int]], dict[str, Tensor]]


def captured(rank: int) -> dict[str, tuple[int, float]]:
    """For each way, on a step of `weft.parallel`: how many collectives are left, and how far any result is apart."""
    words = models.batch(0).chunk(dist.get_world_size())[rank]
    model = data_parallel(models.net(), init_device_mesh("cpu", (dist.get_world_size(),)), "replicate")
    program = weft.capture(step, (model, words))
    given = inputs_of(program, model, words)
    expected = weft.to_fx(program)(*given)
    found = {}
    for passes in LEFT:
        made = _made(program, passes)
        results = zip(expected, weft.to_fx(made)(*given), strict=True)
        found[passes] = len(made.starts), max(float((one - other).abs().max()) for one, other in results)
    return found


def trained(rank: int, ways: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], Trained]:
    """For each kind and way: the collectives of backwards, before and after, and the parameters after training.

    ("eager", "") is torch's DDP, not compiled.
    """
    eager: Trained = set(), _steps(rank, DistributedDataParallel(models.net()))
    torch._dynamo.config.optimize_ddp = "python_reducer"
    return {("eager", ""): eager} | {(kind, passes): _train(rank, kind, passes) for kind, passes in ways}


def _train(rank: int, kind: str, passes: str) -> Trained:
    torch._dynamo.reset()
    model = KINDS[kind](models.net())
    counts: set[tuple[int, int]] = set()

    def fused(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
        program = weft.from_fx(graph)
        made = _made(program, passes)
        if program.starts:
            counts.add((len(program.starts), len(made.starts)))
        return weft.to_fx(made)

    backend = aot_autograd(fw_compiler=fused, keep_inference_input_mutations=True)
    compiled = torch.compile(model, backend=backend)
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend, fullgraph=True)):
        return counts, _steps(rank, model, compiled)


def _made(program: Program, passes: str) -> Program:
    return pipeline.run(program, weft.parse_pipeline(passes, weft.PASSES)).program if passes else program


def _steps(rank: int, model: nn.Module, call: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
    """The state after three steps of two micro-batches each, of which the second adds to the gradients of the first."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        optimiser.zero_grad()
        for micro in models.batch(number).chunk(dist.get_world_size())[rank].chunk(2):
            models.loss_of(model if call is None else call, micro).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name.removeprefix("module."): value.detach().clone() for name, value in model.state_dict().items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_a_captured_step_keeps_every_bit_on_two_ranks() -> None:
    for found in local_ranks(captured, 2):
        assert found == {passes: (left, 0.0) for passes, left in LEFT.items()}


@pytest.mark.slow
def test_a_captured_step_differs_only_by_the_order_of_sums_on_four_ranks() -> None:
    for found in local_ranks(captured, 4):
        assert {passes: left for passes, (left, _) in found.items()} == LEFT
        assert max(difference for _, difference in found.values()) < 1e-6


def test_torch_ddp_and_replicate_train_to_the_same_bits_on_two_ranks() -> None:
    ways = (("ddp", ""), ("ddp", "ddp_fuse"), ("ddp", COALESCED), ("replicate", SMALL))
    for found in local_ranks(trained, 2, ways, time_limit_s=300):
        for kind, passes in ways:
            counts, state = found[kind, passes]
            assert counts == {(10, LEFT[passes])}
            assert apart(state, found["eager", ""][1]) == 0.0


@pytest.mark.slow
def test_torch_ddp_trains_to_the_same_numbers_on_four_ranks() -> None:
    ways = (("ddp", ""), ("ddp", "ddp_fuse"))
    for found in local_ranks(trained, 4, ways, time_limit_s=300):
        assert found["ddp", "ddp_fuse"][0] == {(10, 2)}
        for other in (("ddp", ""), ("eager", "")):
            assert apart(found["ddp", "ddp_fuse"][1], found[other][1]) < 1e-6
