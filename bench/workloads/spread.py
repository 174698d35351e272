"""A workload's model on the ranks that it is meant for: its own plan first, then data parallelism."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from bench.workloads.parallel import expert_modules
from bench.workloads.workload import DataParallel, Workload
from weft.parallel import data_parallel


def spread(workload: Workload, model: nn.Module, mesh: DeviceMesh, *, reshard_after_forward: bool = True) -> None:
    """Spread the workload's `model` over a mesh with the workload's axes, in place.

    After a backward, a gradient is the average over all ranks that see different batches. With `reshard_after_forward`
    parameters that are sharded are gathered again in the backward.
    """
    if workload.plan is not None:
        workload.plan.apply(model, mesh[workload.plan.axis])
    if workload.data_parallel is None:
        return
    data = mesh[workload.data_axes]
    if "expert" in workload.data_axes:
        _spread_experts(workload, workload.data_parallel, model, mesh)
        data = data._flatten()  # to the other parameters, ranks with different experts are data ranks like any
    data_parallel(
        model,
        data,
        workload.data_parallel,
        param_dtype=workload.dtype,
        reshard_after_forward=reshard_after_forward,
    )


def _spread_experts(workload: Workload, mode: DataParallel, model: nn.Module, mesh: DeviceMesh) -> None:
    """Keep the ranks that hold the same experts together. An expert's gradient is a sum over the "expert" axis."""
    axes = tuple(axis for axis in workload.data_axes if axis != "expert")
    for experts in expert_modules(model):
        data_parallel(experts, mesh[axes], mode, param_dtype=workload.dtype, gradient_divisor=mesh["expert"].size())
