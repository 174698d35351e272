"""Whole training steps of sharded models: optimisers of every make, recomputation, clipping, context parallelism.

A step is captured for two ranks, run on both, and compared with the same step of the whole model on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.utils.checkpoint import checkpoint

import weft
from weft.errors import GraphError
from weft.ir import Program
from weft.parallel import data_parallel
from weft.run import virtual

WIDTH, HIDDEN, BATCH = 8, 12, 4


class Block(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.recompute = recompute

    def inner(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x)
        return x + y


Make = Callable[[Any], Optimizer]


def network(recompute: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(recompute), Block(recompute))


def step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def clipped(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def accumulated(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    """Two micro-batches to a step."""
    total = torch.zeros(())
    for part in x.chunk(2):
        loss: Tensor = model(part).square().mean() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


def planned(function: Callable[..., Tensor], make: Make, mode: Any, recompute: bool = False) -> Program:
    with weft.planning({"data": 2}) as mesh:
        model = data_parallel(network(recompute), mesh, mode)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        program = weft.capture(function, (model, make(model.parameters()), torch.randn(BATCH // 2, WIDTH)))
    weft.verify(program)
    return program


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters, and what the optimiser keeps for them, by the names that they have in a program."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    states = {
        f"{names[parameter]}.{key}": value
        for parameter, kept in optimizer.state.items()
        for key, value in kept.items()
        if isinstance(value, Tensor) and value.dim()
    }
    return {name: value.detach().clone() for name, value in (dict(model.named_parameters()) | states).items()}


def compare(program: Program, function: Callable[..., Tensor], make: Make, sharded: bool) -> None:
    """Run the program where the whole model is after its first step; all must be where it is after its second."""
    model = network()
    optimizer = make(model.parameters())
    batches = torch.randn(2, BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    function(model, optimizer, batches[0])
    before = state_of(model, optimizer)
    loss = function(model, optimizer, batches[1])
    after = state_of(model, optimizer)
    names = [op.origin for op in program.inputs]
    assert sorted(names) == sorted(["", *after])
    held: list[dict[str, Tensor]] = []
    for rank in range(2):
        pieces = {name: (value.chunk(2)[rank] if sharded else value).clone() for name, value in before.items()}
        held.append(pieces | {"": batches[1].chunk(2)[rank]})
    losses = virtual(program, [[pieces[name] for name in names] for pieces in held])
    torch.testing.assert_close(torch.stack([one for (one,) in losses]).mean(), loss)
    for name, value in after.items():
        found = torch.cat([pieces[name] for pieces in held]) if sharded else held[0][name]
        assert torch.allclose(found, value, rtol=1e-5, atol=1e-6), name


OPTIMIZERS: dict[str, Make] = {
    "AdamW": AdamW,
    "AdamW, one by one": partial(AdamW, foreach=False),
    "AdamW, foreach": partial(AdamW, foreach=True, lr=0.01),
    "AdamW, fused": partial(AdamW, fused=True, lr=0.01),
    "Adam, amsgrad": partial(Adam, amsgrad=True, foreach=True),
    "SGD": partial(SGD, lr=0.1),
    "SGD, momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, momentum, foreach": partial(SGD, lr=0.1, momentum=0.9, foreach=True),
    "RMSprop, foreach": partial(RMSprop, foreach=True),
}
# Eight parameters; the backward reads the matrices again, all but the first, whose input needs no gradient.
SHARDED = {"all_gather": 8 + 3, "reduce_scatter": 8}


def kinds(program: Program) -> dict[str, int]:
    return dict(Counter(op.comm.kind for op in program.starts if op.comm is not None))


def served(program: Program) -> set[str]:
    """The parameters whose gradients are said to be reduced."""
    return {op.origin.split()[2] for op in program.starts if op.origin.startswith("gradient of ")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_sharded_step_with_its_optimiser_is_the_whole_one(optimizer: str) -> None:
    program = planned(step, OPTIMIZERS[optimizer], "fully_shard")
    assert kinds(program) == SHARDED
    assert served(program) == {name for name, _ in network().named_parameters()}
    compare(program, step, OPTIMIZERS[optimizer], sharded=True)


@pytest.mark.parametrize("optimizer", ["AdamW", "AdamW, foreach", "AdamW, fused", "SGD, momentum, foreach"])
def test_a_replicated_step_with_its_optimiser_is_the_whole_one(optimizer: str) -> None:
    program = planned(step, OPTIMIZERS[optimizer], "replicate")
    assert kinds(program) == {"all_reduce": 8}
    compare(program, step, OPTIMIZERS[optimizer], sharded=False)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(clipped, SHARDED | {"all_reduce": 1}, id="clipped"),
        pytest.param(accumulated, {kind: 2 * count for kind, count in SHARDED.items()}, id="accumulated"),
    ],
)
def test_what_people_do_between_backward_and_optimiser(
    function: Callable[..., Tensor], expected: dict[str, int]
) -> None:
    program = planned(function, OPTIMIZERS["AdamW, foreach"], "fully_shard")
    assert kinds(program) == expected
    compare(program, function, OPTIMIZERS["AdamW, foreach"], sharded=True)


def test_checkpointed_blocks_compute_and_gather_again_in_the_backward() -> None:
    program = planned(step, OPTIMIZERS["AdamW"], "fully_shard", recompute=True)
    assert kinds(program) == {"all_gather": 8 + 8, "reduce_scatter": 8}
    products = [op.origin.split()[0] for op in program.ops if op.target == "aten.addmm.default"]
    assert products == ["0.up", "0.down", "1.up", "1.down", "1.up", "0.up"]
    compare(program, step, OPTIMIZERS["AdamW"], sharded=True)


class Forgetful(Block):
    """Dropout in the part that is computed again."""

    def inner(self, x: Tensor) -> Tensor:
        return functional.dropout(torch.relu(self.up(x)), 0.5) @ self.down.weight.t()


def test_random_numbers_that_would_be_drawn_again_are_refused() -> None:
    model = Forgetful(recompute=True)
    line = Forgetful.inner.__code__.co_firstlineno + 1
    with pytest.raises(GraphError, match=rf"test_training_steps.py:{line}, .*set its dropout to 0 for the capture"):
        weft.capture(step, (model, SGD(model.parameters()), torch.ones(2, WIDTH)))
    model.recompute = False
    weft.verify(weft.capture(step, (model, SGD(model.parameters()), torch.ones(2, WIDTH))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = (nn.Linear(32, width, bias=False) for width in (96, 32))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def long_context(model: nn.Module, x: Tensor, mesh: DeviceMesh) -> Tensor:
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        loss: Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """The operator that accelerators use; torch's context parallelism has no rule for the CPU's."""
    mixed: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]
    return mixed


def test_context_parallelism_of_torch_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values are gathered for each direction; in the backward, their gradients travel round the ring."""
    monkeypatch.setattr(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    with weft.planning({"context": 4}) as mesh:
        program = weft.capture(long_context, (Attention(), torch.randn(2, 64, 32), mesh))
    weft.verify(program)
    assert kinds(program) == {"all_gather": 2, "all_to_all": 4}
    assert all("test_training_steps.py:" in op.origin for op in program.ops if op.target != "input")
