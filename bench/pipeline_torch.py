"""torch's own micro-pipelining of tensor parallelism, `micro_pipeline_tp_pass`, on a captured Program.

The pass replaces all-gathers and reduce-scatters next to matmuls by the fused operators of `symm_mem`. It is given a
copy of the graph in one of two forms:

- "captured": the operators as they were traced. Views are then `view` and not `reshape`, and slices that cut nothing
  away stand between gather and matmul. The pass knows neither, and finds nothing.
- "inductor": functional, decomposed with Inductor's table, and put through Inductor's passes on joint and post-grad
  graphs, of which the pass is one. That is how it runs inside `torch.compile`, and the form to compare with.

What had to be patched, and is put back afterwards:

- `torch._inductor.config._micro_pipeline_tp`, which is off by default
- `torch.distributed.is_nccl_available`, which is false in a build for CPUs, and without which the pass fuses nothing
- `is_symm_mem_enabled_for_group`, by the test mode of `torch.distributed._symmetric_memory`

`reorder_for_compute_comm_overlap` stays off, so the pass leaves no collective to simple overlap.

DTensor spells a gather along the sequence in two ways. With one sample in the batch it is a view of what arrives, and
the pass does not look through the two reshapes that then stand before the matmul. With several samples it is split and
concatenated, and the pass finds it. A sum of matmuls that is scattered, as in the backward of the projections that
share an input, it does not find in either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import process_time
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import micro_pipeline_tp
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _symmetric_memory
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from bench.workloads import Workload
from bench.workloads.spread import spread
from weft.ir import Program
from weft.ir.pause import no_collection

_GATHERS = ("_c10d_functional.all_gather_into_tensor.default",)
_SCATTERS = ("_c10d_functional.reduce_scatter_tensor.default",)
_FUSED_GATHERS = ("symm_mem.fused_all_gather_matmul.default", "symm_mem.fused_all_gather_scaled_matmul.default")
_FUSED_SCATTERS = (
    "symm_mem.fused_matmul_reduce_scatter.default",
    "symm_mem.fused_scaled_matmul_reduce_scatter.default",
)


@dataclass(frozen=True)
class Pipelined:
    """How many collectives of each kind torch fused with matmuls, out of how many, and the CPU seconds of its pass.

    `reason` is what it raised, or empty; then nothing counts as fused.
    """

    form: str
    fused_gathers: int
    gathers: int
    fused_scatters: int
    scatters: int
    seconds: float
    reason: str = ""


def torch_pipeline(program: Program, *, form: str = "inductor", group: str | None = None) -> Pipelined:
    """What torch's pass makes of a program that came from a graph, in the world that it was captured in.

    `form` is one of FORMS. Only collectives over the group of this name are counted; None means all groups.
    """
    graph = weft.to_fx(program)
    mode = _fake_mode(graph)
    gathers, scatters = _count(graph, _GATHERS, group), _count(graph, _SCATTERS, group)
    prepare, run = FORMS[form]
    reason, begin = "", process_time()
    with no_collection(), _symmetric(), V.set_fake_mode(mode):
        try:
            graph = prepare(graph, mode)
            begin = process_time()
            run(graph)
        except Exception as error:  # whatever it is, it is torch's answer
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    seconds = process_time() - begin
    fused = (0, 0) if reason else (_count(graph, _FUSED_GATHERS, group), _count(graph, _FUSED_SCATTERS, group))
    return Pipelined(form, fused[0], gathers, fused[1], scatters, seconds, reason)


def forward_on(mesh: DeviceMesh, workload: Workload) -> Program:
    """The workload's forward and loss alone, in a world that goes on."""
    model = workload.model(torch.float32 if workload.data_parallel else workload.dtype)
    spread(workload, model, mesh)
    with torch.no_grad():
        return weft.capture(workload.loss, (model, *workload.inputs()))


def _as_it_is(graph: GraphModule, mode: FakeTensorMode) -> GraphModule:
    return graph


def _functional(graph: GraphModule, mode: FakeTensorMode) -> GraphModule:
    """The graph without mutation, in the operators that Inductor lowers."""
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    functional = torch.func.functionalize(graph, remove="mutations")
    with mode, torch.no_grad():
        return make_fx(functional, decomposition_table=select_decomp_table())(*values)


def _pass_alone(graph: GraphModule) -> None:
    micro_pipeline_tp.micro_pipeline_tp_pass(graph.graph)


def _inductor_passes(graph: GraphModule) -> None:
    graph = joint_graph_passes(graph)
    view_to_reshape(graph)  # type: ignore[no-untyped-call]
    post_grad_passes(graph, is_inference=False)


Form = tuple[Callable[[GraphModule, FakeTensorMode], GraphModule], Callable[[GraphModule], None]]
FORMS: Mapping[str, Form] = MappingProxyType(
    {"captured": (_as_it_is, _pass_alone), "inductor": (_functional, _inductor_passes)}
)


@contextmanager
def _symmetric() -> Iterator[None]:
    """Inside, torch's pass is switched on and believes in NCCL and in symmetric memory for every group."""
    with ExitStack() as stack:
        stack.enter_context(config.patch(_micro_pipeline_tp=True))
        stack.enter_context(patch.object(dist, "is_nccl_available", lambda: True))
        stack.enter_context(_symmetric_memory._test_mode())
        stack.callback(micro_pipeline_tp.log.setLevel, micro_pipeline_tp.log.level)
        micro_pipeline_tp.log.setLevel(logging.ERROR)  # it warns of each collective that it cannot fuse
        yield


def _count(graph: GraphModule, targets: tuple[str, ...], group: str | None) -> int:
    calls = (node for node in graph.graph.nodes if node.op == "call_function" and str(node.target) in targets)
    return sum(group is None or _group_of(node) == group for node in calls)


def _group_of(node: Any) -> str:
    names = [argument.name for argument in node.target._schema.arguments]
    return str({**dict(zip(names, node.args, strict=False)), **node.kwargs}["group_name"])


def _fake_mode(graph: GraphModule) -> FakeTensorMode:
    mode = detect_fake_mode([node.meta["val"] for node in graph.graph.nodes if "val" in node.meta])
    assert mode is not None, "a graph that was captured has fake values"
    return mode
