"""Models that people bring along: from `transformers`, and wrapped in torch's own DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import weft
from tests.run.training import BATCH, WIDTH, Net
from weft.parallel import data_parallel
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

STEPS = 4
EAGER: dict[str, Any] = {"mode": "eager", "machine": "gloo-cpu"}
Outcome = tuple[list[Tensor], list[str]]  # losses and parameters; what Weft reported


def llama(rank: int, compiled: Callable[..., Any]) -> Outcome:
    """Train a small Llama of `transformers`, fully sharded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=48,
        use_cache=False,
    )
    whole: nn.Module = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model = data_parallel(whole, init_device_mesh("cpu", (dist.get_world_size(),)), "fully_shard")
    run = compiled(model)
    words = torch.randint(0, 48, (2, 12), generator=torch.Generator().manual_seed(rank))
    return _trained(model, lambda: run(input_ids=words, labels=words).loss)


def wrapped(rank: int, way: str, micro_batches: int) -> Outcome:
    """Train a model in torch's DDP: as it is, compiled, or compiled with the whole backward, averages and all."""
    torch.manual_seed(0)
    torch._dynamo.config.optimize_ddp = "python_reducer" if way == "whole" else "ddp_optimizer"
    model = DistributedDataParallel(Net(checkpointed=False))
    numbers = torch.Generator().manual_seed(rank)
    compiled: Callable[..., Any] = partial(weft.compile, **EAGER)
    run: Callable[[Tensor], Tensor] = model if way == "plain" else compiled(model)

    def loss() -> Tensor:
        for _ in range(micro_batches - 1):
            with model.no_sync():
                run(torch.randn(BATCH, WIDTH, generator=numbers)).square().mean().backward()  # type: ignore[no-untyped-call]
        return run(torch.randn(BATCH, WIDTH, generator=numbers)).square().mean()

    whole: AbstractContextManager[Any] = nullcontext()
    if way == "whole":
        whole = compiled_autograd._enable(partial(compiled, fullgraph=True))
    with whole:
        return _trained(model, loss)


def _trained(model: nn.Module, loss_of: Callable[[], Tensor]) -> Outcome:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(STEPS):
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    reports = [str(report).split(", exposed")[0] for report in weft.run.session.SESSION.reports]
    return found + [one.detach().clone() for one in whole], reports


def all_ways(rank: int) -> dict[str, Outcome]:
    found = {}
    for name, function in {
        "llama": partial(llama, rank, partial(torch.compile, backend="aot_eager")),
        "llama, compiled": partial(llama, rank, partial(weft.compile, **EAGER)),
        "ddp": partial(wrapped, rank, "plain", 2),
        "ddp, compiled": partial(wrapped, rank, "compiled", 2),
        "ddp, whole": partial(wrapped, rank, "whole", 2),
    }.items():
        torch._dynamo.reset()
        found[name] = function()
    return found


def test_they_train_the_same_bit_by_bit_and_say_what_was_done() -> None:
    outcomes = local_ranks(all_ways, 2, time_limit_s=240)
    for rank in outcomes:
        for expected, found in (("llama", "llama, compiled"), ("ddp", "ddp, compiled"), ("ddp", "ddp, whole")):
            for one, other in zip(rank[expected][0], rank[found][0], strict=True):
                assert torch.equal(one, other), found
    # All that was reported by then, the last first. What DDP's own reducer sends, Weft does not see.
    llamas = ["weft: backward graph: 41 → 2 collectives", "weft: forward graph: 21 → 1 collective"]
    assert {name: reports for name, (_, reports) in outcomes[0].items()} == {
        "llama": [],
        "llama, compiled": llamas,
        "ddp": llamas,
        "ddp, compiled": llamas,
        "ddp, whole": ["weft: inference graph: 12 → 1 collective", *llamas],
    }
