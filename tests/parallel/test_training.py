"""Real ranks: training with `data_parallel` equals training on one rank with the whole batch."""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from tests.parallel import models
from weft.parallel import data_parallel
from weft.parallel.checks import Mode
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

State = dict[str, Tensor]


def two_ranks(rank: int) -> dict[str, State]:
    line = init_device_mesh("cpu", (2,))
    trained = partial(models.train, rank=rank, world=2)
    results = {
        "replicate": trained(data_parallel(models.net(), line)),
        "fully_shard": trained(data_parallel(models.net(), line, "fully_shard")),
        "kept": trained(data_parallel(models.net(), line, "fully_shard", reshard_after_forward=False), foreach=False),
        "micro-batches": trained(data_parallel(models.net(), line, "fully_shard"), micro_batches=2),
        "deep copy": trained(deepcopy(data_parallel(models.net(), line, "fully_shard"))),
        "pickled": trained(pickle.loads(pickle.dumps(data_parallel(models.net(), line, "fully_shard")))),
    }
    for mode in ("replicate", "fully_shard"):
        model = data_parallel(models.net(), line, mode)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        results[f"{mode}, compiled"] = trained(model, compiled)
    return results


def four_ranks(rank: int) -> dict[str, State]:
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    trained = partial(models.train, rank=rank, world=4)
    return {
        "replicate": trained(data_parallel(models.net(), line)),
        "fully_shard": trained(data_parallel(models.net(), line, "fully_shard")),
        "kept": trained(data_parallel(models.net(), line, "fully_shard", reshard_after_forward=False)),
        "hybrid_shard": trained(data_parallel(models.net(), square, "hybrid_shard")),
        "hybrid_shard, kept": trained(data_parallel(models.net(), square, "hybrid_shard", reshard_after_forward=False)),
    } | {f"tensor parallel, {mode}": _tensor_parallel(rank, square, mode) for mode in ("replicate", "fully_shard")}


def _tensor_parallel(rank: int, mesh: DeviceMesh, mode: Mode) -> State:
    """Two data ranks of two tensor ranks each."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(models.net(hidden=16), mesh["tensor"], plan)
    data_parallel(model, mesh["data"], mode)
    assert {p.device_mesh.ndim for p in model.parameters() if isinstance(p, DTensor)} == {2}
    # Both tensor ranks of a data rank see its batch, so the sum of losses over four ranks counts each part twice.
    state = models.train(model, rank=rank // 2, world=2)
    return state | {"losses": state["losses"] / 2}


@pytest.mark.parametrize(("world", "function"), [(2, two_ranks), (4, four_ranks)])
def test_training_equals_one_rank_with_the_whole_batch(world: int, function: Any) -> None:
    expected = {13: models.train(models.net()), 16: models.train(models.net(hidden=16))}
    for results in local_ranks(function, world, time_limit_s=150):
        for case, found in results.items():
            _assert_same(case, found, expected[len(found["up.bias"])])


def _assert_same(case: str, found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), f"{case}, {name}: {found[name]}, not {value}"


class Odd(nn.Module):
    """Modules that reach their parameters in unusual ways, one of them checkpointed, one called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, batch_first=True)
        self.attention = nn.MultiheadAttention(7, 1, batch_first=True)
        self.twice = nn.Linear(7, 7)
        self.conv = nn.Conv1d(7, 3, 1)
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(checkpoint(self.gained, x, use_reentrant=False))
        hidden, _ = self.attention(hidden, hidden, hidden)
        hidden = checkpoint(self.twice, self.twice(hidden), use_reentrant=False)
        out: Tensor = self.conv(hidden.transpose(1, 2)) + self.frozen[:, None]
        return out

    def gained(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain) * self.gain


def odd_modules(rank: int) -> dict[str, State]:
    """The gradients of Odd in its second step, on half of a batch for each mode, and on all of it without one."""
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))

    def gradients(mode: Mode | None, **options: Any) -> State:
        torch.manual_seed(0)
        model: nn.Module = Odd()
        if mode is not None:
            data_parallel(model, init_device_mesh("cpu", (2,)), mode, **options)
        part = x if mode is None else x.chunk(2)[rank]
        optimiser = torch.optim.SGD(model.parameters(), lr=20.0)
        model(part).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        model(part).square().mean().backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}

    kept = gradients("fully_shard", reshard_after_forward=False)
    modes: dict[str, Mode | None] = {"alone": None, "replicate": "replicate", "fully_shard": "fully_shard"}
    return {case: gradients(mode) for case, mode in modes.items()} | {"kept": kept}


def state_dicts(rank: int) -> dict[str, State]:
    """A state saved from one model and loaded into others, sharded, and whole through torch's own helper."""
    line = init_device_mesh("cpu", (2,))
    source = data_parallel(models.net(), line, "fully_shard")
    models.train(source, rank=rank, world=2)
    assert all(isinstance(p, DTensor) and isinstance(p, nn.Parameter) for p in source.parameters())
    file = BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target = data_parallel(models.Net(), line, "fully_shard")
    target.load_state_dict(torch.load(file, weights_only=False))
    from_whole = data_parallel(models.Net(), line, "fully_shard")
    set_model_state_dict(from_whole, {**models.whole(source)}, options=StateDictOptions(full_state_dict=True))
    return {"source": models.whole(source), "target": models.whole(target), "from whole": models.whole(from_whole)}


def mixed_precision(rank: int) -> State:
    """The losses in eager and compiled, computed in bfloat16."""
    options: dict[str, Any] = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    losses = {}
    for case in ("eager", "compiled"):
        model = data_parallel(models.net(), init_device_mesh("cpu", (2,)), "fully_shard", **options)
        call = torch.compile(model, fullgraph=True, backend="aot_eager") if case == "compiled" else model
        losses[case] = models.train(model, call, rank=rank, world=2)["losses"]
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    return losses


def usual_care(rank: int) -> State:
    """The norm of clipped gradients, a backward done twice, and a model that is made without memory at first."""
    line = init_device_mesh("cpu", (2,))
    model = data_parallel(models.net(), line, "fully_shard")
    loss = models.loss_of(model, models.batch(0).chunk(2)[rank])
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert isinstance(norm, DTensor)
    with torch.device("meta"):
        empty = models.Net()
    data_parallel(empty, line, "fully_shard").to_empty(device="cpu").load_state_dict(model.state_dict())
    same = torch.equal(empty(models.batch(0)), model(models.batch(0)))
    return {"norm": norm.full_tensor(), "same": torch.tensor(same)}


def beside_the_modes(rank: int) -> list[Any]:
    return [case(rank) for case in (odd_modules, state_dicts, mixed_precision, usual_care)]


def test_beside_the_modes() -> None:
    expected = models.train(models.net())["losses"]
    alone = models.net()
    models.loss_of(alone, models.batch(0)).backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
    for gradients, states, mixed, care in local_ranks(beside_the_modes, 2, time_limit_s=150):
        for case, found in gradients.items():
            _assert_same(case, found, gradients["alone"])
        for case, found in states.items():
            assert all(torch.equal(found[name], value) for name, value in states["source"].items()), case
        assert torch.allclose(mixed["eager"], expected, rtol=0.02)
        assert torch.allclose(mixed["compiled"], mixed["eager"])
        assert torch.allclose(care["norm"], 2 * norm)
        assert care["same"]
