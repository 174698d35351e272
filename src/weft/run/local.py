"""Real ranks on this machine: processes that talk Gloo, for demonstrations, measurements and tests."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from weft.errors import WeftError
from weft.run.gathers import keep_gathers_apart


def local_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    time_limit_s: float = 120,
    before: Callable[[int], None] | None = None,
) -> list[Any]:
    """Call `function(rank, *args)` in `world_size` new processes joined by Gloo, and return what each returned.

    The function must be importable, and its arguments and results are pickled. `before(rank)` is called in each process
    before it joins the others. Raises WeftError if a rank fails or the time is up; no process outlives the call.
    """
    with tempfile.TemporaryDirectory() as scratch:
        context = start_processes(  # type: ignore[no-untyped-call]
            _rank, (world_size, scratch, function, args, before), nprocs=world_size, join=False, start_method="spawn"
        )
        deadline = monotonic() + time_limit_s
        try:
            while not context.join(max(0.0, deadline - monotonic())):
                if monotonic() >= deadline:
                    raise WeftError(f"{world_size} ranks did not finish within {time_limit_s} s")
        except ProcessException as error:
            raise WeftError(f"a rank failed: {_said(Path(scratch), world_size) or error}") from error
        finally:
            for process in context.processes:
                process.kill()
        paths = [Path(scratch) / f"result_{rank}" for rank in range(world_size)]
        return [torch.load(path, weights_only=False) for path in paths]  # written by our own processes just now


def _said(scratch: Path, world_size: int) -> str:
    """What the first rank with a WeftError has to say: that needs no traceback."""
    paths = [path for rank in range(world_size) if (path := scratch / f"error_{rank}").exists()]
    return paths[0].read_text(encoding="utf-8", errors="surrogatepass") if paths else ""


def _rank(
    rank: int,
    world_size: int,
    scratch: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    before: Callable[[int], None] | None,
) -> None:
    done: list[int] = []
    atexit.register(_leave, done)  # what registers later, as compilers do, is called before
    torch.set_num_threads(1)
    keep_gathers_apart()
    if before is not None:
        before(rank)
    store = dist.FileStore(f"{scratch}/store", world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        result = function(rank, *args)
    except WeftError as error:
        Path(scratch, f"error_{rank}").write_text(str(error), encoding="utf-8", errors="surrogatepass")
        raise
    torch.save(result, f"{scratch}/result_{rank}")
    dist.destroy_process_group()
    done.append(rank)


def _leave(done: Sequence[int]) -> None:
    """End a process whose rank is done before the interpreter is taken down.

    A thread of Gloo may be about to let go of a tensor, for which it needs the interpreter. If that is on its way out
    by then, the process is aborted as if the rank had failed.
    """
    if done:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
