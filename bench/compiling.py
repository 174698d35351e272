"""Compiling with Weft: its share of the time, and what is left behind after many compilations.

    python -m bench.compiling                      # a model of 32 layers, which takes minutes, and 200 recompilations
    python -m bench.compiling --layers 2 --times 40

The share is wall time inside of Weft (reading the graph, planning, verifying, writing it back, keeping the order, the
plan cache) over that of the first forward and backward, with Inductor's caches empty.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

import weft
from bench.rows import Row, report
from bench.workloads.llama import Llama, LlamaConfig, batch
from weft.parallel import data_parallel
from weft.run import backend as backends
from weft.run import plan_cache
from weft.run.hook import WeftPass
from weft.run.order import Chained, Planned

RANKS = 8
MACHINE = "h100-ib400"
WARM_UP = 40  # recompilations after which memory should not grow any more

SHARE = 0.03
GROWTH = 0.05

# All that Weft does while a graph is compiled.
_PARTS: tuple[tuple[Any, str], ...] = (
    (WeftPass, "__call__"),
    (Chained, "__call__"),
    (Planned, "__call__"),
    (backends, "_copied"),
    (plan_cache, "save"),
)


@contextmanager
def timed(spent: list[float]) -> Iterator[None]:
    """Inside, the seconds of each part are added to a list."""

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent.append(perf_counter() - begin)

        return call

    with ExitStack() as stack:
        for owner, name in _PARTS:
            stack.enter_context(patch.object(owner, name, watched(getattr(owner, name))))
        yield


def share(layers: int) -> tuple[float, float]:
    """The seconds that a sharded Llama takes to compile, forward and backward, and those of them inside of Weft."""
    config = LlamaConfig(vocabulary=256, width=64, layers=layers, heads=4, kv_heads=2, hidden=176, context=32)
    model = data_parallel(Llama(config), init_device_mesh("cpu", (RANKS,)), "fully_shard")
    compiled = weft.compile(model, machine=MACHINE)
    words, targets = batch(config, 1)
    spent: list[float] = []
    begin = perf_counter()
    with timed(spent):
        nn.functional.cross_entropy(compiled(words).flatten(0, 1).float(), targets.flatten()).backward()  # type: ignore[no-untyped-call]
    return perf_counter() - begin, sum(spent)


def gathers(x: Tensor, y: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    return torch.mm(torch.mm(all_gather_single(x, 0, group), y), all_gather_single(y, 0, group)[: y.shape[1]])


def recompiled(times: int) -> tuple[float, int]:
    """By how much this process grows after it is warm, as a part of what it has then, and how many graphs are alive."""
    alive: list[weakref.ref[GraphModule]] = []

    def watched(module: GraphModule, inputs: Sequence[Any]) -> Any:
        alive.append(weakref.ref(module))
        return backends.backend(module, inputs, options={"machine": MACHINE, "mode": "eager"})

    warm = 0
    for number in range(times + WARM_UP):
        torch._dynamo.reset()
        torch.compile(gathers, backend=watched, dynamic=False)(torch.ones(8 + number, 16), torch.ones(16, 16))
        if number == WARM_UP - 1:
            warm = _resident()
    torch._dynamo.reset()
    gc.collect()
    return _resident() / warm - 1, sum(one() is not None for one in alive)


def _resident() -> int:
    """The bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def load(times: int) -> list[Row]:
    growth, left = recompiled(times)
    return [Row(f"growth in {times} recompilations", growth, "", GROWTH), Row("graphs still alive", left, "", 0)]


def speed(layers: int) -> list[Row]:
    whole, inside = share(layers)
    return [Row(f"share of Weft in {whole:.0f} s of compiling {layers} layers", inside / whole, "", SHARE)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--times", type=int, default=200)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": scratch}):
        dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
        report([lambda: load(chosen.times), lambda: speed(chosen.layers)])


if __name__ == "__main__":
    main()
