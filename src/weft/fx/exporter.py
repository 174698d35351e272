"""`to_fx`: a Program as a torch.fx graph, in the order of its ops."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_map, tree_unflatten

from weft.errors import GraphError
from weft.fx.calls import CallTraits
from weft.fx.collectives import WAIT, write_collective
from weft.fx.fused import check_runnable, fused_value, product_of, write_fused
from weft.fx.importer import Source
from weft.fx.literals import ArgWriter
from weft.fx.names import resolve
from weft.fx.pack import unfilled
from weft.fx.sizes import Sizes
from weft.fx.values import fake_input
from weft.ir.dims import Expr
from weft.ir.pause import no_collection
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

# What a new op takes over from the op that it came from. The rest of a node's metadata describes its own value.
INHERITED = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "from_node",
    "seq_nr", "recompute", "custom", "partitioner_tag", "autograd_backward", "mutation_region_id",
)  # fmt: skip


def to_fx(program: Program) -> GraphModule:
    """A new GraphModule that runs the program's ops in the program's order.

    Nodes that are still what they were keep all their metadata. New ones get that of their sources, and a `val` from
    running the operator on fake tensors. A program that was parsed needs no source: its operators are looked up.
    The module's Python code is generated when it is first called or printed. Raises GraphError if it can be told that
    an op cannot run where the graph's tensors are.
    """
    module, nodes = lower(program)
    _check_runnable(program, nodes)
    return module


def _check_runnable(program: Program, nodes: Mapping[str, Node]) -> None:
    for op in program.ops:
        if op.inside is not None:
            check_runnable(op, nodes[op.name])


def lower(program: Program) -> tuple[GraphModule, dict[str, Node]]:
    """What `to_fx` gives, and which node each op became."""
    source = program.source if isinstance(program.source, Source) else None
    owner = source.graph.owning_module if source else None
    graph = Graph(tracer_cls=source.graph._tracer_cls) if source else Graph()
    lowering = _Lowering(graph, source, program)
    with no_collection(), torch.no_grad():
        for op in program.ops:
            lowering.env[op.name] = lowering.copy(op) if lowering.is_unchanged(op) else lowering.make(op)
    lowering.make_output()
    if source is not None:
        graph.set_codegen(source.graph._codegen)
    module = _LazyGraphModule(owner if owner is not None else torch.nn.Module(), graph)
    if owner is not None:
        module.meta.update(owner.meta)
    return module, lowering.env


def relink(program: Program) -> Graph:
    """Turn the graph that the program came from into the program, and return it.

    Its nodes are moved, changed, added and erased in place, which is what a pass inside Inductor must do, and is
    quicker than a new graph. A module that owns the graph must be recompiled.
    """
    if not isinstance(program.source, Source):
        raise GraphError("only a program that came from a graph can be put back into it")
    with no_collection(), torch.no_grad():
        return _relinked(program, program.source)


def _relinked(program: Program, source: Source) -> Graph:
    graph = source.graph
    lowering = _Lowering(graph, source, program)
    place = graph._root.next  # all before it is settled
    for op in program.ops:
        node = source.nodes.get(op.name)
        if node is None or not lowering.is_unchanged(op):
            with graph.inserting_before(place):
                node = lowering.update(node, op) if node is not None else lowering.make(op)
        place = _settle(node, place) if node is not place else place.next
        lowering.env[op.name] = node
    if source.output is not None:
        with graph.inserting_before(place):
            source.output.args = (lowering.output(),)
        _settle(source.output, place)
    _check_runnable(program, lowering.env)
    kept = {*lowering.env.values(), *lowering.sizes.made, *lowering.products.values(), source.output}
    for node in reversed(list(graph.nodes)):
        if node not in kept:
            graph.erase_node(node)
    return graph


def _settle(node: Node, place: Node) -> Node:
    """Put a node directly before `place`; where the next one goes."""
    if node is place:
        return place.next
    if node.next is not place:
        place.prepend(node)
    return place


class _Lowering:
    """Makes nodes in a graph, and notes no gradients. `env` holds the node of each op that has been lowered so far."""

    def __init__(self, graph: Graph, source: Source | None, program: Program) -> None:
        self.graph, self.source, self.program = graph, source, program
        self.env: dict[str, Node] = {}
        self.products: dict[str, Node] = {}  # of ops that gather and multiply, the node that takes the products out
        self.sizes = Sizes(graph, program, self.env)
        self.write = ArgWriter(self.env.__getitem__, self.sizes.node, source.objects if source else {}).write
        self.fake_mode = _fake_mode(source, program)
        self.ops = {op.name: op for op in program.ops}
        self.calls = CallTraits()
        self.functions: dict[str, Callable[..., Any]] = {}  # by target, of those that were looked up

    def is_unchanged(self, op: Op) -> bool:
        if self.source is None or self.source.ops.get(op.name) is not op:
            return False
        # A product is not: what it is taken out of is made anew.
        return op.target != "getitem" or product_of(op, self.source.ops) is None

    def copy(self, op: Op) -> Node:
        assert self.source is not None
        return self.graph.node_copy(self.source.nodes[op.name], lambda old: self.env[old.name])

    def make(self, op: Op) -> Node:
        """A new node for an op."""
        kind, target, args, kwargs = self.spelled(op)
        node = self.graph.create_node(kind, target, args, kwargs, name=op.name)
        node.meta.update(self.inherited(op))  # torch notes it at length if it is set
        self.add_value(node, op)
        return node

    def update(self, node: Node, op: Op) -> Node:
        """The node that an op was, turned into what the op now is."""
        kind, target, args, kwargs = self.spelled(op)
        if (node.op, node.target) != (kind, target):  # torch looks up and notes every change
            node.op, node.target = kind, target
        node.args = args
        if node.kwargs or kwargs:
            node.kwargs = kwargs
        if not self.gives_the_same(op):  # else all that is said of it holds
            node.meta = self.inherited(op)
        self.add_value(node, op)
        return node

    def add_value(self, node: Node, op: Op) -> None:
        """Add the value of a node to its metadata."""
        if self.fake_mode is not None and "val" not in node.meta:
            value = self.left_by_sources(op)
            value = self.value(op, node) if value is _UNKNOWN else value
            if value is not _UNKNOWN:
                node.meta["val"] = value

    def output(self) -> Any:
        values = tuple(self.write(output) for output in self.program.outputs)
        if self.source is None or len(values) != self.source.returned.num_leaves:
            return values
        return tree_unflatten(values, self.source.returned)

    def make_output(self) -> None:
        old = self.source.output if self.source is not None else None
        if old is None:
            self.graph.output(self.output())
            return
        node = self.graph.create_node("output", "output", (self.output(),), name=old.name, type_expr=old.type)
        node.meta = copy.copy(old.meta)

    def spelled(self, op: Op) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
        """Kind, target, arguments and keywords of the node that an op is."""
        if op.is_input:
            old = self.source.nodes.get(op.name) if self.source else None
            return "placeholder", old.target if old is not None else op.name, (), {}
        if op.target == "get_attr":
            if self.source is None or self.source.graph.owning_module is None:
                raise GraphError(f"%{op.name}: the module that has {op.args[0]!r} is not here")
            return "get_attr", op.args[0], (), {}
        if op.comm is not None:
            return "call_function", *write_collective(op, self.write)
        if op.inside is not None:
            return "call_function", *write_fused(op, self.write)
        if (taken := product_of(op, self.ops)) is not None:
            return "call_function", operator.getitem, (self.product_list(taken[0]), taken[1]), {}
        args = tuple(self.write(arg) for arg in op.args)
        kwargs = {key: self.write(arg) for key, arg in op.kwargs.items()}
        if op.target in ("call_method", "call_module"):
            return op.target, args[0], args[1:], kwargs
        return "call_function", self.function(op), args, kwargs

    def product_list(self, name: str) -> Node:
        """The node that takes the list of products out of what an op gives back."""
        if name not in self.products:
            whole = self.env[name]
            made = self.graph.create_node("call_function", operator.getitem, (whole, 1), name=f"{name}_products")
            if "val" in whole.meta:
                made.meta["val"] = whole.meta["val"][1]
            self.products[name] = made
        return self.products[name]

    def function(self, op: Op) -> Callable[..., Any]:
        if op.target == "wait":
            return WAIT
        old = self.source.nodes.get(op.name) if self.source else None
        if old is not None and self.source is not None and self.source.ops[op.name].target == op.target:
            assert callable(old.target)
            return old.target
        if op.target not in self.functions:
            self.functions[op.target] = resolve(op.target)
        return self.functions[op.target]

    def inherited(self, op: Op) -> dict[str, Any]:
        """The metadata of the node that an op was, or of the first of those that it came from."""
        if self.source is None:
            return {}
        if self.gives_the_same(op):
            return copy.copy(self.source.nodes[op.name].meta)
        for name in (op.name, *op.sources):
            if name in self.source.nodes:
                meta = self.source.nodes[name].meta
                return {key: meta[key] for key in INHERITED if key in meta}
        return {}

    def gives_the_same(self, op: Op) -> bool:
        """Whether an op was there before, and what it gives is still of the same kind."""
        old = self.source.ops.get(op.name) if self.source else None
        return old is not None and old.target == op.target and old.out == op.out

    def left_by_sources(self, op: Op) -> Any:
        """The results of the starts or waits that a start or a wait took the place of, where they are the same.

        Their values are of no more use to them, and making new ones is most of the work of lowering a bucket.
        """
        if self.source is None or op.traits.mutates or not (op.is_start or op.is_wait):
            return _UNKNOWN
        found: list[Any] = []
        specs: list[Any] = []
        for name in op.sources:
            old = self.source.ops.get(name)
            if old is None or name in self.program or (old.is_start, old.is_wait) != (op.is_start, op.is_wait):
                return _UNKNOWN
            value = self.source.nodes[name].meta.get("val")
            found += value if isinstance(value, list | tuple) else [value]
            specs += old.out
        if tuple(specs) != op.out or not all(isinstance(value, FakeTensor) for value in found):
            return _UNKNOWN
        return found[0] if op.is_wait or not isinstance(op.args[0], tuple) else found

    def value(self, op: Op, node: Node) -> Any:
        """What the node computes, on fake tensors."""
        assert self.fake_mode is not None
        if op.is_input:
            with self.fake_mode:
                return fake_input(op.out[0]) if isinstance(op.out[0], TensorSpec) else _UNKNOWN
        if node.op != "call_function" or any("val" not in arg.meta for arg in node.all_input_nodes):
            return _UNKNOWN
        if op.target == "getitem" and isinstance(whole := node.args[0], Node):
            return whole.meta["val"][node.args[1]]
        if op.inside is not None:
            with self.fake_mode:
                return fused_value(op, lambda: self.called(op, node))
        if not op.is_start and not op.is_wait and self.calls.of(node).barrier:
            return _UNKNOWN  # it may do more than compute, and this is no time for that
        return self.called(op, node)

    def called(self, op: Op, node: Node) -> Any:
        try:
            whole = self.whole(op, node)
            return self.asked(op, node) if whole is None else _view(node, whole)
        except _NOT_FOR_FAKES:
            return _UNKNOWN
        except Exception as error:
            raise GraphError(f"%{op.name} ({op.target}) cannot be run on its arguments: {error}") from error

    def asked(self, op: Op, node: Node) -> Any:
        """What the fake mode says that a node gives."""
        assert self.fake_mode is not None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda arg: tree_map(self.adopted, arg.meta["val"]))
        # Of our own operator it is known what it gives, and torch takes long to ask.
        target = unfilled if op.target == "weft.pack.default" else node.target
        assert callable(target)
        with self.fake_mode:
            return target(*args, **kwargs)

    def whole(self, op: Op, node: Node) -> FakeTensor | None:
        """The fake tensor that a node does nothing but view, in plain numbers; None if it is not so simple."""
        if not op.traits.is_view or not isinstance(node.target, OpOverload) or node.kwargs or len(op.out) != 1:
            return None
        seen, (spec,) = node.args[0], op.out
        plain = isinstance(spec, TensorSpec) and all(isinstance(size, int) for size in spec.shape)
        one = isinstance(node.target._schema.returns[0].type, torch.TensorType)  # and no list of one
        if not plain or not one or not isinstance(seen, Node) or len(node.all_input_nodes) > 1:
            return None
        value = seen.meta["val"]
        return value if isinstance(value, FakeTensor) and value.fake_mode is self.fake_mode else None

    def adopted(self, value: Any) -> Any:
        """The same value in our fake mode: some tracers give every node a mode of its own."""
        if self.fake_mode is None or not isinstance(value, FakeTensor) or value.fake_mode is self.fake_mode:
            return value
        with self.fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _view(node: Node, whole: FakeTensor) -> FakeTensor:
    """What the fake mode would say, with the same storage. There are hundreds of views of packs, and it takes long."""
    assert isinstance(node.target, OpOverload)
    with in_kernel_invocation_manager(whole.fake_mode):
        seen = node.target(whole, *node.args[1:])
    return FakeTensor(whole.fake_mode, seen, whole.device)


_UNKNOWN = object()
# What fake tensors raise where an operator has no fake implementation, or where its result depends on data.
_NOT_FOR_FAKES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def _fake_mode(source: Source | None, program: Program) -> FakeTensorMode | None:
    """The mode that the graph's fake tensors belong to; for a program of its own, a new one if no size is symbolic."""
    if source is not None:
        for node in source.nodes.values():
            value = node.meta.get("val")
            if isinstance(value, FakeTensor):
                return value.fake_mode
        return None
    symbolic = any(isinstance(size, Expr) for op in program.inputs for spec in op.out for size in spec.shape)
    return None if symbolic else FakeTensorMode(allow_non_fake_inputs=True)
