"""The ways in which `bench.real` compiles a model: not at all, by torch alone, with torch's own overlap, with Weft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

import weft
from bench.torch_pass import Times, imagined
from weft.errors import WeftError
from weft.ir import Program

WRITTEN, COMPILED, WEFT = "as written", "torch.compile", "Weft"
TORCH_DDP = "torch.compile of DistributedDataParallel"
OVERLAP, REORDER = "torch's overlap scheduling", "torch's reordering"
ALL = (WRITTEN, COMPILED, TORCH_DDP, REORDER, OVERLAP, WEFT)

_C10D, _ATEN = torch.ops._c10d_functional, torch.ops.aten
_BOUNDLESS = 1e6  # of gigabytes, or times the peak: Weft has no limit either
_OPTIONS = "aten_distributed_optimizations"
# A model is compiled in each of the ways, and the forward is one function.
_RECOMPILATIONS = 64

Way = Callable[[nn.Module], Callable[..., Any]]


def fixed_ways(kind: str) -> Mapping[str, Way]:
    """The ways that do not depend on the machine."""
    ways: dict[str, Way] = {WRITTEN: lambda model: model, COMPILED: torch.compile}
    if kind == "ddp":
        ways[TORCH_DDP] = torch.compile
    return {**ways, REORDER: _reordering}


def planned_ways(machine: weft.Machine, label: str) -> Mapping[str, Way]:
    """The ways that plan for a machine; `label` tells plans for one model apart."""

    def overlapping(model: nn.Module) -> Any:
        return torch.compile(model, options=_overlap_options(machine))

    def with_weft(model: nn.Module) -> Any:
        options: dict[str, Any] = {"machine": machine, "label": label}
        return torch.compile(model, backend="weft", options=options)

    return {OVERLAP: overlapping, WEFT: with_weft}


def _reordering(model: nn.Module) -> Any:
    """The passes that torch's documentation recommends for its scheduler. Without the buckets that go with them: those
    are sized for models of gigabytes, and would make one of all collectives here, which nothing could then hide."""
    passes = [
        "reorder_communication_preserving_peak_memory",
        "sink_waits_iterative",
        "reorder_communication_preserving_peak_memory",
    ]
    options: dict[str, Any] = {
        "reorder_for_compute_comm_overlap": True,
        "reorder_for_compute_comm_overlap_passes": passes,
    }
    return torch.compile(model, options=options)


def _overlap_options(machine: weft.Machine) -> dict[str, Any]:
    """It buckets what it schedules, but does not merge the collectives of FSDP before, for the same reason."""
    return {
        f"{_OPTIONS}.enable_overlap_scheduling": True,
        f"{_OPTIONS}.collective_bucketing": True,
        f"{_OPTIONS}.pre_bucketing_fsdp_collectives": False,
        f"{_OPTIONS}.custom_runtime_estimation": Times(machine),
        f"{_OPTIONS}.compute_estimator": "analytical",  # "benchmark" is for CUDA; Times comes before either
        f"{_OPTIONS}.max_memory_increase_gb": _BOUNDLESS,
        f"{_OPTIONS}.max_memory_increase_ratio": _BOUNDLESS,
    }


@contextmanager
def compiling(machine: weft.Machine) -> Iterator[None]:
    """Inside, all ways can be compiled in one process, and what they compile is not taken from a cache."""
    with (
        imagined(machine),
        dynamo_config.patch(recompile_limit=_RECOMPILATIONS, accumulated_recompile_limit=_RECOMPILATIONS),
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield


class Silent(CustomGraphPass):
    """Replaces every collective by a copy of what the rank itself has, and notes the graphs as they were."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __call__(self, graph: Graph) -> None:
        self.programs.append(weft.from_fx(graph))
        for node in list(graph.nodes):
            if getattr(node.target, "namespace", "") == "_c10d_functional":
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_stand_in(graph, node))
                graph.erase_node(node)

    def uuid(self) -> None:
        """It keeps what it saw: nothing may be cached."""


def silenced(model: nn.Module) -> tuple[Callable[..., Any], Silent]:
    """The compiled model without its communication: same kernels, other numbers."""
    silent = Silent()
    return torch.compile(model, options={"post_grad_custom_post_pass": silent}), silent


def _stand_in(graph: Graph, node: Node) -> Node:
    own = node.args[0]
    assert isinstance(own, Node)
    if node.target is _C10D.wait_tensor.default:
        return own
    if node.target is _C10D.all_gather_into_tensor.default:
        made = graph.call_function(_ATEN.cat.default, ([own] * node.args[1],))  # type: ignore[operator]
    elif node.target is _C10D.reduce_scatter_tensor.default:
        rows = node.meta["val"].shape[0]
        part = graph.call_function(_ATEN.slice.Tensor, (own, 0, 0, rows))
        part.meta.update(val=own.meta["val"][:rows])
        made = graph.call_function(_ATEN.clone.default, (part,))
    elif node.target is _C10D.all_reduce.default:
        made = graph.call_function(_ATEN.clone.default, (own,))
    else:
        raise WeftError(f"%{node.name}: nothing stands for {node.target} when compute is measured alone")
    made.meta.update(node.meta)
    return made
