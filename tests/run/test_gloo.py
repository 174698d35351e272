"""Real processes: what Weft gives back computes, bit for bit, what the original graph computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

import weft
from tests.run.llama import TOKENS, WIDTH, Llama
from weft import pipeline
from weft.errors import WeftError
from weft.run import local_ranks

pytestmark = pytest.mark.gloo


def round_trip(module: GraphModule) -> GraphModule:
    return weft.to_fx(weft.from_fx(module))


def through_text(module: GraphModule) -> GraphModule:
    """Printed and parsed: nothing but the text crosses over, and the operators are looked up again."""
    return weft.to_fx(weft.parse(str(weft.from_fx(module))))


def moved(module: GraphModule) -> GraphModule:
    program = weft.from_fx(module)
    result = pipeline.run(program, weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES))
    assert result.program.ops != program.ops
    return weft.to_fx(result.program)


def both(change: Callable[[GraphModule], GraphModule], kinds: list[str], module: GraphModule, inputs: Any) -> Any:
    """A compiler that runs the original and what Weft made of it, and insists that they agree bit for bit."""
    program = weft.from_fx(module)
    weft.verify(program)
    kinds.append(" ".join(sorted({op.comm.kind for op in program.starts if op.comm is not None})))
    changed = change(module)

    def run(*args: Any) -> Any:
        expected, found = module(*args), changed(*args)
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        return found

    return run


def train(rank: int, how: str) -> tuple[list[str], float]:
    torch.manual_seed(rank)
    data, tensor = (dist.new_group([0, 1]) for _ in range(2))
    assert isinstance(data, dist.ProcessGroup)
    assert isinstance(tensor, dist.ProcessGroup)
    model = Llama(data, tensor)
    kinds: list[str] = []
    compiler = partial(both, globals()[how], kinds)
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = compiled(torch.randn(TOKENS, WIDTH))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return kinds, float(loss)


@pytest.mark.parametrize("how", [pytest.param("round_trip", marks=pytest.mark.slow), "through_text", "moved"])
def test_forward_and_backward_are_bitwise_the_same_on_two_ranks(how: str) -> None:
    (kinds, loss), (_, other_loss) = local_ranks(train, 2, how)
    assert kinds == ["all_gather all_reduce reduce_scatter", "all_gather all_reduce reduce_scatter"]
    assert loss == other_loss


def fail(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 is out of order")


def hang(rank: int) -> None:
    if rank == 1:
        sleep(600)
    dist.barrier()


def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(WeftError, match="rank 1 is out of order"):
        local_ranks(fail, 2)


def test_a_rank_that_hangs_is_ended_in_time() -> None:
    with pytest.raises(WeftError, match="2 ranks did not finish within 8 s"):
        local_ranks(hang, 2, time_limit_s=8)
