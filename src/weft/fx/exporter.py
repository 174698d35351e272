"""`to_fx`: a Program as a torch.fx graph, in the order of its ops."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from weft.errors import GraphError
from weft.fx.collectives import WAIT, write_collective
from weft.fx.importer import Source
from weft.fx.literals import ArgWriter
from weft.fx.names import resolve
from weft.fx.values import fake_input
from weft.ir.dims import Call, Dim, Expr, Symbol
from weft.ir.program import Op, Program
from weft.ir.specs import ScalarSpec, TensorSpec

# What a new op takes over from the op that it came from. The rest of a node's metadata describes its own value.
INHERITED = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "from_node",
    "seq_nr", "recompute", "custom", "partitioner_tag", "autograd_backward", "mutation_region_id",
)  # fmt: skip


def to_fx(program: Program) -> GraphModule:
    """A new GraphModule that runs the program's ops in the program's order.

    Nodes that are still what they were keep all their metadata. New ones get that of their sources, and a `val` from
    running the operator on fake tensors. A program that was parsed needs no source: its operators are looked up.
    """
    return lower(program)[0]


def lower(program: Program) -> tuple[GraphModule, dict[str, Node]]:
    """What `to_fx` gives, and which node each op became."""
    source = program.source if isinstance(program.source, Source) else None
    graph = Graph(tracer_cls=source.graph._tracer_cls) if source else Graph()
    lowering = _Lowering(graph, source, program)
    for op in program.ops:
        lowering.env[op.name] = lowering.copy(op) if lowering.is_unchanged(op) else lowering.make(op)
    node = graph.output(lowering.output())
    owner = source.graph.owning_module if source else None
    if source is not None and source.output is not None:
        node.meta = copy.copy(source.output.meta)
        graph.set_codegen(source.graph._codegen)
    module = GraphModule(owner if owner is not None else torch.nn.Module(), graph)
    if owner is not None:
        module.meta.update(owner.meta)
    return module, lowering.env


def relink(program: Program) -> Graph:
    """Turn the graph that the program came from into the program, and return it.

    Its nodes are moved, added and erased in place, which is what a pass inside Inductor must do, and is quicker than
    a new graph.
    """
    if not isinstance(program.source, Source):
        raise GraphError("only a program that came from a graph can be put back into it")
    source = program.source
    graph = source.graph
    lowering = _Lowering(graph, source, program)
    cursor = graph._root
    for op in program.ops:
        node = source.nodes.get(op.name)
        if node is None or (not lowering.is_unchanged(op) and source.ops[op.name].target != op.target):
            with graph.inserting_after(cursor):
                node = lowering.make(op)
        elif not lowering.is_unchanged(op):
            lowering.update(node, op)
        if cursor.next is not node:
            cursor.append(node)
        lowering.env[op.name] = cursor = node
    if source.output is not None:
        source.output.args = (lowering.output(),)
        cursor.append(source.output)
    kept = {*lowering.env.values(), source.output}
    for node in reversed(list(graph.nodes)):
        if node not in kept and not lowering.is_helper(node):
            graph.erase_node(node)
    return graph


class _Lowering:
    """Makes nodes in a graph. `env` holds the node of each op that has been lowered so far."""

    def __init__(self, graph: Graph, source: Source | None, program: Program) -> None:
        self.graph, self.source, self.program = graph, source, program
        self.env: dict[str, Node] = {}
        self.sizes = _Sizes(self)
        self.write = ArgWriter(self.env.__getitem__, self.sizes.node, source.objects if source else {}).write
        self.fake_mode = _fake_mode(source, program)

    def is_unchanged(self, op: Op) -> bool:
        return self.source is not None and self.source.ops.get(op.name) is op

    def is_helper(self, node: Node) -> bool:
        return node in self.sizes.made

    def copy(self, op: Op) -> Node:
        assert self.source is not None
        node = self.graph.node_copy(self.source.nodes[op.name], lambda old: self.env[old.name])
        self.sizes.note(op, node)
        return node

    def make(self, op: Op) -> Node:
        """A new node for an op."""
        kind, target, args, kwargs = self.spelled(op)
        node = self.graph.create_node(kind, target, args, kwargs, name=op.name)
        node.meta = self.inherited(op)
        if self.fake_mode is not None:
            value = self.value(op, node)
            if value is not _UNKNOWN:
                node.meta["val"] = value
        self.sizes.note(op, node)
        return node

    def update(self, node: Node, op: Op) -> None:
        """Give a node that stays the arguments that its op now has."""
        _, _, args, kwargs = self.spelled(op)
        node.args, node.kwargs = args, kwargs
        self.sizes.note(op, node)

    def output(self) -> Any:
        values = tuple(self.write(output) for output in self.program.outputs)
        if self.source is not None and self.source.bare_output:
            return values[0]
        old = self.source.output.args[0] if self.source is not None and self.source.output is not None else ()
        return list(values) if isinstance(old, list) else values

    def spelled(self, op: Op) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
        """Kind, target, arguments and keywords of the node that an op is."""
        if op.is_input:
            old = self.source.nodes.get(op.name) if self.source else None
            return "placeholder", old.target if old is not None else op.name, (), {}
        if op.target == "get_attr":
            return "get_attr", op.args[0], (), {}
        if op.comm is not None:
            return "call_function", *write_collective(op, self.write)
        args = tuple(self.write(arg) for arg in op.args)
        kwargs = {key: self.write(arg) for key, arg in op.kwargs.items()}
        if op.target in ("call_method", "call_module"):
            return op.target, args[0], args[1:], kwargs
        return "call_function", self.function(op), args, kwargs

    def function(self, op: Op) -> Callable[..., Any]:
        if op.target == "wait":
            return WAIT
        if op.target == "getitem":
            return operator.getitem
        old = self.source.nodes.get(op.name) if self.source else None
        if old is not None and self.source is not None and self.source.ops[op.name].target == op.target:
            assert callable(old.target)
            return old.target
        return resolve(op.target)

    def inherited(self, op: Op) -> dict[str, Any]:
        """The metadata of the node that an op was, or of the first of those that it came from."""
        if self.source is None:
            return {}
        if op.name in self.source.nodes and self.source.ops[op.name].target == op.target:
            return copy.copy(self.source.nodes[op.name].meta)
        for name in (op.name, *op.sources):
            if name in self.source.nodes:
                meta = self.source.nodes[name].meta
                return {key: meta[key] for key in INHERITED if key in meta}
        return {}

    def value(self, op: Op, node: Node) -> Any:
        """What the node computes, on fake tensors."""
        if "val" in node.meta:
            return node.meta["val"]
        assert self.fake_mode is not None
        with self.fake_mode:
            if op.is_input:
                spec = op.out[0]
                return fake_input(spec) if isinstance(spec, TensorSpec) else _UNKNOWN
            if node.op != "call_function":
                return _UNKNOWN
            inputs = [arg.meta.get("val", _UNKNOWN) for arg in node.all_input_nodes]
            if any(value is _UNKNOWN for value in inputs):
                return _UNKNOWN
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
            assert callable(node.target)
            return node.target(*args, **kwargs)


_UNKNOWN = object()


class _Sizes:
    """Finds or makes nodes for symbolic sizes: they stay symbolic in the lowered graph."""

    def __init__(self, lowering: _Lowering) -> None:
        self._lowering = lowering
        self._nodes: dict[Expr, Node] = {}
        self._dims: dict[Expr, tuple[Node, int]] = {}
        self.made: set[Node] = set()

    def note(self, op: Op, node: Node) -> None:
        """Remember which sizes an op gives."""
        if len(op.out) != 1:
            return
        spec = op.out[0]
        if isinstance(spec, ScalarSpec):
            if isinstance(spec.value, Expr):
                self._nodes.setdefault(spec.value, node)
            return
        for place, size in enumerate(spec.shape):
            if isinstance(size, Expr):
                self._dims.setdefault(size, (node, place))

    def node(self, size: Dim) -> Any:
        """A node that computes `size`, or the number that it is."""
        if isinstance(size, int):
            return size
        if size not in self._nodes:
            self._nodes[size] = self._make(size)
        return self._nodes[size]

    def _make(self, size: Expr) -> Node:
        if size in self._dims:
            return self._call(torch.ops.aten.sym_size.int, *self._dims[size])
        total: Any = None
        for atoms, factor in size.terms:
            product: Any = None
            for atom in atoms:
                value = self._atom(atom, size)
                product = value if product is None else self._call(operator.mul, product, value)
            if product is None:
                product = factor
            elif factor != 1:
                product = self._call(operator.mul, product, factor)
            total = product if total is None else self._call(operator.add, total, product)
        assert isinstance(total, Node)
        return total

    def _atom(self, atom: Symbol | Call, whole: Expr) -> Any:
        alone = Expr((((atom,), 1),))
        if isinstance(atom, Symbol):
            if alone == whole or (alone not in self._nodes and alone not in self._dims):
                raise GraphError(f"no value that is defined by now has the size {atom.name}, which {whole} needs")
            return self.node(alone)
        if alone in self._nodes or alone in self._dims:
            return self.node(alone)
        functions = {"//": operator.floordiv, "%": operator.mod, "max": torch.sym_max, "min": torch.sym_min}
        return self._call(functions[atom.function], *map(self.node, atom.args))

    def _call(self, function: Any, *args: Any) -> Node:
        node = self._lowering.graph.call_function(function, args)
        values = [arg.meta.get("val", _UNKNOWN) if isinstance(arg, Node) else arg for arg in args]
        if not any(value is _UNKNOWN for value in values):
            node.meta["val"] = function(*values)
        self.made.add(node)
        return node


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
