"""The planned order, kept through Inductor's scheduler to the generated code.

Inductor lowers a graph to buffers, fuses those, and orders the result anew. Three things would undo a plan there, and
each is met where it happens:

- Two kernels are fused of which one feeds a start and the other needs a wait, or a matmul, that was planned behind that
  start: the start would have to wait. Before fusion, `Chained` makes each start and wait depend on the one planned
  before it, and whatever Inductor does not generate itself (matmuls, attention) on the last one before it. Then such a
  pair is in a cycle, and Inductor itself refuses it; every other fusion remains.
- Kernels come out in another order. After fusion, `Planned` sorts them by the graph's order again.
- `reorder_for_peak_memory` then sinks starts to their waits, since memory is all that it sees. It is switched off, and
  done by `Planned` for graphs that do not communicate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch._inductor import memory
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.utils import contains_collective, contains_wait
from torch._inductor.virtualized import V
from torch.fx import GraphModule
from torch.utils._ordered_set import OrderedSet

from weft.analysis.orders import depth_first


class Chained(CustomSchedulerPass):
    """Before fusion: each start and each wait comes after the one that the graph has before it, and so do matmuls."""

    def __call__(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        places = _places()
        place = {node: _place(node, places) for node in nodes if _communicates(node)}
        communicating = sorted(place, key=place.__getitem__)
        for before, after in pairwise(communicating):
            _put_behind(before, after)
        for node in nodes:
            if (node.is_extern() or node.is_template()) and node not in place:
                behind = bisect_left(communicating, _first_place(node, places), key=place.__getitem__)
                if behind > 0:
                    _put_behind(communicating[behind - 1], node)
        if communicating:
            V.graph.scheduler.compute_ancestors()  # fusion asks these whether there would be a cycle
        return nodes

    def uuid(self) -> str:
        return "weft chained 2"


class Planned(CustomSchedulerPass):
    """After fusion: kernels in the order of the graph, as far as fusion leaves it open."""

    def __init__(self, for_peak_memory: bool) -> None:
        self._for_peak_memory = for_peak_memory  # of graphs that do not communicate

    def __call__(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        if any(map(_communicates, nodes)):
            return in_order(nodes, _places())
        return _for_peak_memory(nodes) if self._for_peak_memory else nodes

    def uuid(self) -> str:
        return f"weft planned 1 {self._for_peak_memory}"


def in_order(nodes: Sequence[BaseSchedulerNode], places: Mapping[Any, int]) -> list[BaseSchedulerNode]:
    """Nodes by their places in the graph; what a node needs comes before it.

    A fused kernel has the place of the last op in it: there, all that it needs has been made.
    """
    ranked = sorted(range(len(nodes)), key=lambda number: (_place(nodes[number], places), number))
    rank = {number: place for place, number in enumerate(ranked)}
    maker = {name: number for number, node in enumerate(nodes) for name in node.get_buffer_names()}
    needs = [
        sorted(
            {maker[dep.name] for dep in node.unmet_dependencies if dep.name in maker} - {number}, key=rank.__getitem__
        )
        for number, node in enumerate(nodes)
    ]
    return [nodes[number] for number in depth_first(ranked, needs)]


def _places() -> Mapping[Any, int]:
    module = V.graph.module
    assert isinstance(module, GraphModule)
    return {node: place for place, node in enumerate(module.graph.nodes)}


def _place(node: BaseSchedulerNode, places: Mapping[Any, int]) -> int:
    """Where the last op of a kernel stands in the graph; what the graph does not have comes when it is needed."""
    return max((places[origin] for origin in _origins(node) if origin in places), default=len(places))


def _first_place(node: BaseSchedulerNode, places: Mapping[Any, int]) -> int:
    """Where the first op of a kernel stands that is no view: nothing before that can need the kernel."""
    computing = (origin for origin in _origins(node) if not getattr(origin.target, "is_view", False))
    return min((places[origin] for origin in computing if origin in places), default=0)


def _origins(node: BaseSchedulerNode) -> Iterator[Any]:
    """The ops of the graph that a kernel was made for; a matmul has the views of its arguments among them."""
    for one in node.get_nodes():
        if one.node is not None:
            yield from one.node.get_origins()


def _communicates(node: BaseSchedulerNode) -> bool:
    return contains_collective(node) or contains_wait(node)


def _put_behind(before: BaseSchedulerNode, after: BaseSchedulerNode) -> None:
    (own, *_) = after.get_buffer_names()
    for name in before.get_buffer_names():
        after.add_fake_dep(WeakDep(name, mutating_buf=own, is_fake=True))


def _for_peak_memory(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """What Inductor does at the end by default."""
    graph, scheduler = V.graph, V.graph.scheduler
    inputs, outputs = OrderedSet(graph.graph_inputs.keys()), OrderedSet(graph.get_output_names())
    return memory.reorder_for_peak_memory(nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, inputs, outputs)
