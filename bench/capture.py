"""What it takes to capture each workload on this machine: ops, collectives, seconds, memory.

python -m bench.capture                          # all of them
python -m bench.capture llama3_70b_fsdp_tp8
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import weft
from bench.workloads import WORKLOADS, Workload
from bench.workloads.parallel import settled
from bench.workloads.spread import spread
from weft.cli.progress import capture_progress
from weft.ir import Program


def train(workload: Workload, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Forward, loss and backward; the gradients stay on the parameters, ready for an optimiser: they are outputs."""
    loss = workload.loss(model, inputs, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = settled(parameter, parameter.grad)
    return loss.detach()


def captured(workload: Workload, progress: Callable[[str, int], None] | None = None) -> Program:
    """The workload's step on rank 0 of its world."""
    with weft.planning(dict(workload.mesh)) as mesh:
        return captured_on(mesh, workload, progress)


def captured_on(
    mesh: DeviceMesh,
    workload: Workload,
    progress: Callable[[str, int], None] | None = None,
    *,
    reshard_after_forward: bool = True,
) -> Program:
    """The workload's step, in a world that goes on: `mesh` is that of the workload, and its groups stay known."""
    # A data-parallel model keeps its own weights in float32 and computes with copies.
    model = workload.model(torch.float32 if workload.data_parallel else workload.dtype)
    spread(workload, model, mesh, reshard_after_forward=reshard_after_forward)
    return weft.capture(train, (workload, model, *workload.inputs()), progress=progress)


def measure(name: str) -> None:
    begin = perf_counter()
    with capture_progress(name) as progress:
        program = captured(WORKLOADS[name], progress)
    seconds = perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    weft.verify(program)
    world = WORKLOADS[name].world_size
    print(f"{name:<22} {world:>4} ranks {len(program):>7} ops {len(program.starts):>5} collectives", end="")
    print(f" {seconds:>7.1f} s {peak:>5.2f} GB", flush=True)


def main() -> None:
    if len(sys.argv) == 2:
        measure(sys.argv[1])
        return
    for name in WORKLOADS:  # each in a process of its own: the peak of memory is the process's
        subprocess.run([sys.executable, "-m", "bench.capture", name], check=True)


if __name__ == "__main__":
    main()
