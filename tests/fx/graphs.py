"""Graphs as torch makes them, and what it means that two of them are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map

import weft

WORLD_SIZE = 4


@contextmanager
def fake_world(size: int = WORLD_SIZE) -> Iterator[None]:
    """Inside, this process is rank 0 of `size`; collectives answer from its own data."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def world_group() -> dist.ProcessGroup:
    """All ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


@dataclass(frozen=True, eq=False)
class Row:
    """A node without its graph; `args` and `kwargs` name other nodes."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    meta: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        """Metadata must be the very same objects: fake tensors do not compare."""
        if not isinstance(other, Row):
            return NotImplemented
        ours = (self.op, self.name, self.target, repr(self.args), repr(self.kwargs), list(self.meta))
        theirs = (other.op, other.name, other.target, repr(other.args), repr(other.kwargs), list(other.meta))
        return ours == theirs and all(value is other.meta[key] for key, value in self.meta.items())


def rows(graph: Graph | GraphModule) -> list[Row]:
    """Every node of a graph, as it is now."""
    nodes = graph.graph.nodes if isinstance(graph, GraphModule) else graph.nodes
    return [
        Row(node.op, node.name, node.target, _named(node.args), _named(node.kwargs), dict(node.meta)) for node in nodes
    ]


def spelled(graph: Graph | GraphModule) -> list[str]:
    """Every node but the placeholders and the output, as one line."""
    shown = []
    for row in rows(graph):
        if row.op not in ("placeholder", "output"):
            args = [repr(arg) for arg in row.args] + [f"{key}={arg!r}" for key, arg in row.kwargs.items()]
            shown.append(f"{row.name} = {row.target}({', '.join(args)})")
    return shown


class _Name(str):
    def __repr__(self) -> str:
        return f"%{self}"


def _named(arg: Any) -> Any:
    return map_aggregate(arg, lambda leaf: _Name(leaf.name) if isinstance(leaf, Node) else leaf)


def round_trip(graph: GraphModule | Graph, **options: Any) -> weft.Program:
    """Import and lower a graph; assert that every node came back, that nothing was touched, and that text holds it."""
    before = rows(graph)
    program = weft.from_fx(graph, **options)
    made = weft.to_fx(program)
    assert rows(made) == before
    made.graph.lint()
    assert rows(graph) == before
    assert weft.parse(str(program)) == program
    return program


def lines(program: weft.Program) -> list[str]:
    """The ops that are no inputs, as text, without where they come from."""
    text = [line.split("  #")[0] for line in str(program).splitlines()]
    return [line for line in text if line.startswith("%") and not line.endswith("= input()")]


def groups_of(program: weft.Program) -> dict[str, tuple[int, ...]]:
    """The ranks of every group that communicates."""
    return {group.name: group.ranks for group in program.groups}


def run(module: Callable[..., Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What a module returns and what it leaves in its inputs, from the same inputs and the same random state."""
    given = [tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arg) for arg in inputs]
    torch.manual_seed(0)
    with torch.no_grad():
        returned = module(*given)
    return tree_leaves(returned), tree_leaves(given)


def assert_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Bit by bit."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def assert_runs_alike(found: GraphModule, expected: GraphModule, inputs: Sequence[Any]) -> None:
    """Both modules return the same and leave the same in their inputs."""
    for left, right in zip(run(found, inputs), run(expected, inputs), strict=True):
        assert_equal(left, right)


@dataclass
class Captured:
    """A graph that AOTAutograd made, and what it was called with."""

    module: GraphModule
    inputs: list[Any] = field(default_factory=list)


def aot_graphs(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> list[Captured]:
    """The graphs of a function: forward and, if a result needs a gradient, backward."""
    found: list[Captured] = []

    def compiler(module: GraphModule, _: Any) -> Any:
        captured = Captured(module)
        found.append(captured)

        def call(*inputs: Any) -> Any:
            captured.inputs = [arg.detach() if isinstance(arg, Tensor) else arg for arg in inputs]
            return module(*inputs)

        return make_boxed_func(call)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    results = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    differentiable = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if differentiable:
        torch.autograd.backward([leaf.sum() for leaf in differentiable])
    return found


def by_hand(build: Callable[..., Any], **inputs: Tensor) -> GraphModule:
    """A graph that `build(graph, *placeholders)` makes; it returns what the graph is to return."""
    graph = Graph()
    graph.output(build(graph, *map(graph.placeholder, inputs)))
    module = GraphModule(torch.nn.Module(), graph)
    FakeTensorProp(module).propagate(*inputs.values())
    return module
