"""torch's own passes that combine collectives, on a Program: bucketing and the fusion of DDP's all-reduces.

They work on a copy of the graph, are given the caps that Weft's passes have, and the graph is sorted behind them, as
Inductor does. Beyond the graph they ask for the groups of the world that it was captured in, and the fusion asks for a
fake mode, which is that of the captured values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from time import process_time

import torch
from torch._guards import detect_fake_mode
from torch._inductor.fx_passes import bucketing, ddp_fusion
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

import weft
from weft.ir import Program
from weft.ir.pause import no_collection
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
    with _quiet(), no_collection():
        for step, way in steps:
            before = _collectives(graph)
            begin = process_time()
            step(graph, lambda number: cap, way)
            seconds += process_time() - begin
            found.append(_change(step.__name__, before, _collectives(graph)))
    return seconds, ", ".join(found)


def torch_ddp(program: Program, mode: str) -> Combined:
    """torch's fusion of DDP's all-reduces. `mode` is one of FUSIONS. Raises whatever it raises."""
    graph = weft.to_fx(program)
    before = _collectives(graph)
    passes: list[Callable[..., None] | str] = [FUSIONS[mode], "schedule_comm_wait"]
    with V.set_fake_mode(_fake_mode(graph)), no_collection():
        begin = process_time()
        ddp_fusion.fuse_ddp_communication(graph.graph, passes, round(DdpFuse().bucket_cap_mb))
        seconds = process_time() - begin
    _list_inputs(graph)
    stable_topological_sort(graph.graph)
    return Combined(weft.from_fx(graph), seconds, _change("fuse_ddp_communication", before, _collectives(graph)))


def _list_inputs(graph: GraphModule) -> None:
    """torch gives all the results of one op to its coalesced call as one value: Weft knows lists of tensors."""
    coalesced = torch.ops._c10d_functional.all_reduce_coalesced.default
    for node in graph.graph.find_nodes(op="call_function", target=coalesced):
        whole, *rest = node.args
        with graph.graph.inserting_before(node):
            parts = [graph.graph.call_function(getitem, (whole, place)) for place in range(len(whole.meta["val"]))]
        for part, value in zip(parts, whole.meta["val"], strict=True):
            part.meta["val"] = value
        node.args = (parts, *rest)


def as_ddp(program: Program) -> Program:
    """A program that averages gradients, as `torch.nn.parallel.DistributedDataParallel` has them compiled.

    A gradient is divided by the number of ranks, summed over them, and returned as it comes from the wait, without the
    conversion behind it. That is the only form that torch's fusion looks for.
    """
    graph = weft.to_fx(program)
    aten = torch.ops.aten
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.all_reduce.default):
        gradient, reduction, group = node.args
        comm = program[node.name].comm
        if reduction != "avg" or comm is None:
            continue
        ranks = comm.group.size
        with _fake_mode(graph), graph.graph.inserting_before(node):
            divided = graph.graph.call_function(aten.div.Tensor, (gradient, ranks))
            divided.meta = {**gradient.meta, "val": aten.div.Tensor(gradient.meta["val"], ranks)}
        node.args = (divided, "sum", group)
        (wait,) = node.users
        last = wait
        while len(last.users) == 1 and (user := next(iter(last.users))).op != "output":
            last = user
        last.replace_all_uses_with(wait)
    graph.graph.eliminate_dead_code()
    return weft.from_fx(graph)


def _fake_mode(graph: GraphModule) -> FakeTensorMode:
    mode = detect_fake_mode([node.meta["val"] for node in graph.graph.nodes if "val" in node.meta])
    assert mode is not None, "a graph that was captured has fake values"
    return mode


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
