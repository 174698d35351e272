"""Compiling with Weft: its share of the time, and what is left behind after many compilations.

    python -m bench.compiling                      # a model of 32 layers, which takes minutes, and 200 recompilations
    python -m bench.compiling --layers 2 --times 40

The share is wall time inside of Weft (reading the graph, planning, verifying, writing it back, keeping the order, the
plan cache) over that of the first forward and backward, with Inductor's caches empty.

torch keeps the guards of every compilation for as long as the process lives, whatever the backend is: a function that
is compiled again and again makes it grow. So the same recompilations run with a backend of torch's first, and what Weft
adds to its growth is limited. Shapes come again, as torch also keeps what it knows of each.
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
from weft.cli.llama import Llama, LlamaConfig, batch
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

Backend = Callable[[GraphModule, list[Any]], Any]

_SHAPES = 8

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


def recompiled(backend: Backend, times: int) -> tuple[int, int]:
    """The bytes by which this process grows in so many recompilations, and how many of their graphs are still alive."""
    alive: list[weakref.ref[GraphModule]] = []

    def watched(module: GraphModule, inputs: list[Any]) -> Any:
        alive.append(weakref.ref(module))
        return backend(module, inputs)

    begin = _resident()
    for number in range(times):
        torch._dynamo.reset()
        compiled = torch.compile(gathers, backend=watched, dynamic=False)
        compiled(torch.ones(8 + number % _SHAPES, 16), torch.ones(16, 16))
    torch._dynamo.reset()
    return _resident() - begin, sum(one() is not None for one in alive)


def ours(module: GraphModule, inputs: Sequence[Any]) -> Any:
    return backends.backend(module, inputs, options={"machine": MACHINE, "mode": "eager"})


def _resident() -> int:
    """The bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def load(times: int) -> list[Row]:
    theirs: Backend = torch._dynamo.lookup_backend("aot_eager")
    for backend in (theirs, ours):
        recompiled(backend, WARM_UP)
    warm = _resident()
    torchs, _ = recompiled(theirs, times)
    both, left = recompiled(ours, times)
    beyond = f"growth in {times} recompilations beyond torch's own {torchs / warm:.3f}"
    return [Row(beyond, (both - torchs) / warm, "", GROWTH), Row("graphs still alive", left, "", 0)]


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
