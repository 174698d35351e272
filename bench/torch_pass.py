"""torch's own overlap pass on a Program, with Weft's prices, on a machine without an accelerator.

The pass, `schedule_overlap_bucketing`, is given a copy of the graph, the machine's times through its
`custom_runtime_estimation`, and how much memory it may add; everything else stays at its defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import process_time
from unittest.mock import patch

import torch.utils._runtime_estimation as runtime_estimation
from torch._inductor import comm_analysis
from torch._inductor.comm_analysis import NVIDIA_GPU_TYPE
from torch._inductor.fx_passes import fsdp, overlap_scheduling
from torch.fx import Graph, Node

import weft
from weft.cost import Machine, prices
from weft.ir import Op, Program

_GIB = 2**30
_BOUNDLESS_GIB = 1e6  # None would mean no limit, but then the pass reads a figure that it has not made, and fails

# What the pass asks of the device that it finds, by a part of the accelerator's name.
_GENERATIONS = {
    "A100": NVIDIA_GPU_TYPE.AMPERE,
    "H100": NVIDIA_GPU_TYPE.HOPPER,
    "H200": NVIDIA_GPU_TYPE.HOPPER,
    "B200": NVIDIA_GPU_TYPE.BLACKWELL,
    "B300": NVIDIA_GPU_TYPE.BLACKWELL,
}


def torch_pass(
    program: Program, machine: Machine, *, bucketing: bool, memory_increase: int | None
) -> tuple[Program, float]:
    """What torch's pass makes of a program, and the CPU seconds that it took, without those for the prices.

    The program must come from a graph, and its world must still be there: the pass resolves groups by name. It may add
    `memory_increase` bytes to the peak as it reckons it; None means any number. Raises whatever the pass raises.
    """
    graph = weft.to_fx(program)
    times = Times(machine)
    limit = _BOUNDLESS_GIB if memory_increase is None else memory_increase / _GIB
    with imagined(machine):
        begin = process_time()
        made = overlap_scheduling.schedule_overlap_bucketing(
            graph,
            collective_bucketing=bucketing,
            pre_bucketing_fsdp_collectives=bucketing,
            custom_runtime_estimation=times,
            compute_estimator="analytical",  # "benchmark" would run the ops here; `times` comes before either
            max_memory_increase_gb=limit,
            max_memory_increase_ratio=None,
        )
        seconds = process_time() - begin - times.seconds
    return weft.from_fx(made), seconds


class Times:
    """Answers torch's `custom_runtime_estimation`: milliseconds for every node, fused ones by their share.

    torch may merge collectives before it asks for the first time, and does not change the graph while it asks. So all
    of it is priced then. `seconds` is what that took.
    """

    def __init__(self, machine: Machine) -> None:
        self.seconds = 0.0
        self._machine = machine
        self._graph: Graph | None = None
        self._known: dict[str, tuple[Op, float]] = {}

    def __call__(self, node: Node, override_size: int | None = None) -> float:
        """The time of a node; of a collective with `override_size`, that with so many bytes in all."""
        if node.graph is not self._graph:
            self._graph = node.graph
            self._price(node)
        op, us = self._known[node.name]
        if op.comm is not None and override_size is not None:
            us = self._machine.collective_us(op.comm, max(override_size, 1))
        return us / 1e3

    def _price(self, node: Node) -> None:
        begin = process_time()
        program = weft.from_fx(node.graph)
        known = prices(program, self._machine)
        self._known = {
            op.name: (op, us + comm_us) for op, us, comm_us in zip(program.ops, known.us, known.comm_us, strict=True)
        }
        self.seconds += process_time() - begin


@contextmanager
def imagined(machine: Machine) -> Iterator[None]:
    """Inside, torch's pass finds the figures that it would ask a device for; it prices nothing with them.

    The bandwidth is for estimates that it logs; without one it would import triton. So are the FLOP/s, where it would
    warn that there are none. The generation of the device gives the size of its buckets.
    """
    bandwidth, generation = machine.accelerator.memory_gb_per_s, _generation(machine)
    with ExitStack() as stack:
        stack.enter_context(patch.object(runtime_estimation, "get_gpu_dram_gbps", lambda: bandwidth))
        stack.enter_context(patch.object(runtime_estimation, "get_device_tflops", lambda dtype: 0.0))
        if generation is not None:
            stack.enter_context(patch.object(comm_analysis, "get_gpu_type", lambda: generation))
        stack.callback(fsdp.logger.setLevel, fsdp.logger.level)
        fsdp.logger.setLevel(logging.WARNING)  # it reports its buckets on standard error
        stack.callback(overlap_scheduling.get_group_name.cache_clear)  # it would keep every graph alive
        yield


def _generation(machine: Machine) -> NVIDIA_GPU_TYPE | None:
    name = machine.accelerator.name
    return next((generation for part, generation in _GENERATIONS.items() if part in name), None)
