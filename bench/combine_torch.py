"""torch's own passes that combine collectives, on a Program: bucketing and the fusion of DDP's all-reduces.

They work on a copy of the graph, are given the caps that Weft's passes have, and the graph is sorted behind the
bucketing, as Inductor does. Beyond the graph they ask for little: the groups of the world that it was captured in, and,
for the fusion, the fake mode and the metadata of tensors, which are made from the values that the nodes have.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

import torch
from torch._guards import detect_fake_mode
from torch._inductor.fx_passes import bucketing, ddp_fusion
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.virtualized import V
from torch.fx import GraphModule
from torch.fx.passes.shape_prop import _extract_tensor_metadata

import weft
from weft.ir import Program
from weft.passes.bucket import BucketPass
from weft.passes.ddp_fuse import DdpFuse

_MIB = 2**20

# Weft's name of a mode and torch's for reduce-scatters and for all-gathers. torch knows no reduce-scatters of several
# dtypes, and makes no coalesced all-gathers: it says so and concatenates them. All-reduces it always concatenates.
MODES: Mapping[str, tuple[str, str]] = {
    "default": ("default", "default"),
    "custom_op": ("custom_ops", "custom_ops"),
    "multidtype": ("custom_ops", "custom_ops_multidtype"),
    "coalesced": ("coalesced", "coalesced"),
}
FUSIONS: Mapping[str, str] = {"concat": "fuse_ddp_with_concat_op", "coalesced": "fuse_ddp_with_coalesced_op"}


@dataclass(frozen=True)
class Combined:
    """What torch made of a program, the CPU seconds of its passes, and what each of them found."""

    program: Program
    seconds: float
    found: str


def torch_bucket(program: Program, mode: str) -> Combined:
    """torch's bucketing of all kinds, in Inductor's order. `mode` is one of MODES. Raises whatever it raises."""
    graph = weft.to_fx(program)
    seconds, found = bucket_graph(graph, mode)
    stable_topological_sort(graph.graph)
    return Combined(weft.from_fx(graph), seconds, found)


def bucket_graph(graph: GraphModule, mode: str) -> tuple[float, str]:
    """Bucket a graph in place: the CPU seconds, and what was found. The nodes may be out of order afterwards."""
    scatter, gather = MODES[mode]
    cap = BucketPass().cap_bytes(0) / _MIB
    steps: tuple[tuple[Callable[..., None], str], ...] = (
        (bucketing.bucket_reduce_scatter, scatter),
        (bucketing.bucket_all_reduce, scatter),
        (bucketing.bucket_all_gather, gather),
    )
    seconds, found = 0.0, []
    with _quiet():
        for step, way in steps:
            before = _collectives(graph)
            gc.collect()  # what others left behind is not collected on torch's time
            begin = process_time()
            step(graph, lambda number: cap, way)
            seconds += process_time() - begin
            found.append(_change(step.__name__, before, _collectives(graph)))
    return seconds, ", ".join(found)


def torch_ddp(program: Program, mode: str) -> Combined:
    """torch's fusion of DDP's all-reduces. `mode` is one of FUSIONS. Raises whatever it raises."""
    graph = weft.to_fx(program)
    before = _collectives(graph)
    values = [node.meta["val"] for node in graph.graph.nodes if "val" in node.meta]
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta.setdefault("tensor_meta", _extract_tensor_metadata(value))
    options = DdpFuse()
    with V.set_fake_mode(detect_fake_mode(values)):
        begin = process_time()
        ddp_fusion.fuse_ddp_communication(
            graph.graph, [FUSIONS[mode], "schedule_comm_wait"], round(options.bucket_cap_mb)
        )
        seconds = process_time() - begin
    return Combined(weft.from_fx(graph), seconds, _change("fuse_ddp_communication", before, _collectives(graph)))


def _collectives(graph: GraphModule) -> int:
    names = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    targets = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return sum("c10d_functional" in target and any(name in target for name in names) for target in targets)


def _change(name: str, before: int, after: int) -> str:
    return f"{name} finds nothing" if before == after else f"{name} {before:,} to {after:,}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, torch's bucketing does not report on standard error what it falls back to."""
    level = bucketing.logger.level
    bucketing.logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        bucketing.logger.setLevel(level)
