"""What goes wrong between ranks that compile with Weft: each ends in time, with a message that says what happened."""

from __future__ import annotations

import os
import re
import signal
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

import weft
from tests.run.ranks import Rank, Server, kill_me, serving
from tests.run.training import BATCH, WIDTH, Case, model_of

pytestmark = pytest.mark.gloo

SOON = {"agreement_timeout_s": 4.0}
STEPS = 3
ROLES = ("forward", "backward")
AS_IT_WAS = "weft: this graph runs as it was, on all ranks: graph"
Told = tuple[list[str], list[float], str]  # the warnings, the losses, and the error that ended it


def trains(store: Store, rank: int, options: dict[str, Any], torch_version: str = "", ends_at: int = STEPS) -> Told:
    """Train on two ranks with Weft. The rank kills itself at step `ends_at`."""
    if torch_version:
        torch.__version__ = torch_version  # type: ignore[assignment]
    limit = timedelta(seconds=30)
    dist.init_process_group("gloo", store=PrefixStore("gloo", store), rank=rank, world_size=2, timeout=limit)
    torch._dynamo.reset()
    losses: list[float] = []
    error = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = model_of(Case("fsdp"))
        run = weft.compile(model, **{"mode": "eager", **options})
        try:
            for step in range(STEPS):
                if step == ends_at:
                    kill_me()
                losses.append(_step(model, run, rank))
        except (weft.WeftError, RuntimeError) as failed:
            error = f"{type(failed).__name__}: {failed}"
    return [str(one.message) for one in warned if issubclass(one.category, weft.WeftWarning)], losses, error


def _step(model: torch.nn.Module, run: Any, rank: int) -> float:
    loss = run(torch.full((BATCH, WIDTH), 1.0 + rank)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None
    return float(loss)


def two(server: Server, first: dict[str, Any], second: dict[str, Any], **of_second: Any) -> tuple[Told, Any]:
    """What comes of two ranks with these options."""
    both = [Rank(server, trains, 0, first), Rank(server, partial(trains, **of_second), 1, second)]
    zero, one = (rank.result() for rank in both)
    return zero, one


def alike(told: tuple[Told, Told], warning: str) -> None:
    """Both ranks were warned of the same for both graphs, and trained to the end."""
    for warned, losses, error in told:
        assert [_anonymous(text) for text in warned] == [f"{AS_IT_WAS} {role} …: {warning}" for role in ROLES]
        assert (len(losses), error) == (STEPS, "")


def _anonymous(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{16}\b", "…", text)


def test_a_rank_with_another_plan() -> None:
    with serving() as server:
        told = two(server, {"passes": "schedule"}, {"passes": "safe"})
    safe = "schedule{max_memory_increase_gb=0, keep_order=true, reorder_compute=false, rounds=1}"
    alike(told, f'"passes schedule" on rank 0, "passes {safe}" on rank 1')


@pytest.mark.slow
def test_a_rank_with_another_plan_under_inductor() -> None:
    with serving() as server:
        told = two(server, {"passes": "dedupe", "mode": "inductor"}, {"passes": "schedule", "mode": "inductor"})
    alike(told, '"passes dedupe" on rank 0, "passes schedule" on rank 1')


def test_a_rank_with_another_torch() -> None:
    with serving() as server:
        told = two(server, {}, {}, torch_version="2.13.0+other")
    alike(told, f'"torch {torch.__version__}" on rank 0, "torch 2.13.0+other" on rank 1')


def test_a_rank_with_another_machine_file(tmp_path: Path) -> None:
    preset = weft.Machine.load("h100-ib400").path
    assert preset is not None
    other = tmp_path / preset.name
    other.write_text(preset.read_text().replace("compute_slowdown = ", "compute_slowdown = 1.0 #"))
    with serving() as server:
        told = two(server, {"machine": "h100-ib400"}, {"machine": str(other)})
    alike(told, '"machine h100-ib400, sha256 …" on rank 0, "machine h100-ib400, sha256 …" on rank 1')


def test_a_disagreement_is_an_error_where_that_is_wanted() -> None:
    wanted = {"on_disagreement": "error"}
    with serving() as server:
        told = two(server, {"passes": "schedule", **wanted}, {"passes": "dedupe", **wanted})
    for warned, losses, error in told:
        assert (warned, losses) == ([], [])
        assert 'AgreementError: graph forward …: "passes schedule" on rank 0, "passes dedupe" on rank 1' in _anonymous(
            error
        )


def test_a_rank_that_is_killed_while_it_compiles() -> None:
    with serving() as server:
        (warned, losses, error), other = two(server, SOON, {"custom_runtime_estimation": kill_me})
    assert other == "killed"
    late = f"{AS_IT_WAS} forward …: rank 1: late or absent, as nothing came for 3 s"
    assert [_anonymous(text) for text in warned] == [late]
    assert losses == []
    assert "remote worker" in error  # what Gloo says when it then misses its peer


def test_a_rank_that_is_killed_in_a_step() -> None:
    with serving() as server:
        (warned, losses, error), other = two(server, {}, {}, ends_at=2)
    assert (warned, len(losses), other) == ([], 2, "killed")
    assert "remote worker" in error


def silence(pid: int, *_: Any) -> None:
    os.kill(pid, signal.SIGSTOP)


def test_a_store_that_stops_answering() -> None:
    with serving() as server:
        options = {"custom_runtime_estimation": partial(silence, server.pid), **SOON}
        told = two(server, options, options)
    for warned, losses, error in told:
        assert all("could not post its claim" in text for text in warned)
        assert (len(warned), len(losses), error) == (2, STEPS, "")
