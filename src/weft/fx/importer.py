"""`from_fx`: a torch.fx graph as a Program."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_flatten

from weft.errors import GraphError
from weft.fx.calls import CallTraits, as_spelled, attribute
from weft.fx.collectives import WAIT, GroupReader, Groups, is_collective, read_collective
from weft.fx.fused import flat, is_fused, is_product_list, may_be_fused, read_fused, unpacked
from weft.fx.literals import ArgReader
from weft.fx.names import target_of
from weft.fx.places import module_path, place_in
from weft.fx.schema import function_traits
from weft.fx.values import SpecReader
from weft.ir.args import Arg
from weft.ir.pause import no_collection
from weft.ir.program import Collective, Op, Program
from weft.ir.specs import Spec
from weft.ir.targets import traits_of
from weft.ir.traits import PURE, Traits


@dataclass(frozen=True)
class Source:
    """What `to_fx` needs to give back the graph that a Program came from.

    - `nodes` and `ops`: each node, and the op that it became; an op that is still the same object is still that node
    - `objects`: arguments that only this graph has
    - `returned`: how the outputs are packed into what the graph returns
    """

    graph: Graph
    nodes: Mapping[str, Node]
    ops: Mapping[str, Op]
    objects: Mapping[str, object]
    output: Node | None
    returned: TreeSpec


def from_fx(graph: GraphModule | Graph, *, groups: Groups | None = None) -> Program:
    """The Program that a graph is: one op for each node, with the nodes' names.

    Nodes need the metadata `val`, which every graph from torch.compile, AOTAutograd, make_fx and export has. The ranks
    of groups are looked up in torch.distributed; `groups` gives them where that is not initialised.
    """
    with no_collection():
        return _Importer(graph.graph if isinstance(graph, GraphModule) else graph, groups or {}).program()


class _Importer:
    def __init__(self, graph: Graph, groups: Groups) -> None:
        self.graph, self.groups = graph, GroupReader(groups)
        self.specs = SpecReader(_main_device(graph))
        self.args = ArgReader(self.specs)
        self.traits = CallTraits()
        self.targets: dict[Any, str] = {}
        # Of operators that are called like any other, as nearly all are: by id, since torch's hash is slow.
        self.plain: dict[int, tuple[str, Traits]] = {}
        self.places: dict[str, str] = {}  # of stack traces
        self.modules: dict[str, str] = {"": ""}  # of paths as torch spells them
        self.origins: dict[tuple[Any, ...], str] = {}  # of all that torch says of where an op comes from
        self.here = os.getcwd() + os.sep

    def program(self) -> Program:
        nodes: dict[str, Node] = {}
        ops: dict[str, Op] = {}
        output: Node | None = None
        for node in self.graph.nodes:
            if node.op == "output":
                output = node
            elif not is_product_list(node):
                nodes[node.name] = node
                ops[node.name] = self.op(node)
        outputs, returned = tree_flatten(output.args[0] if output is not None else ())
        source = Source(self.graph, nodes, ops, self.args.objects, output, returned)
        return Program(tuple(ops.values()), tuple(map(self.args.read, outputs)), source=source)

    def op(self, node: Node) -> Op:
        if node.op == "placeholder":
            return Op(node.name, "input", out=self.out(node), traits=PURE, origin=node.meta.get("weft_serves", ""))
        if node.op == "get_attr":
            return Op(node.name, "get_attr", (str(node.target),), out=self.out(node), traits=PURE)
        if (known := self.plain.get(id(node.target))) is not None:
            (target, traits), read, given = known, self.args.read, node.kwargs
            args = tuple(map(read, node.args))
            kwargs = {key: read(value) for key, value in given.items()} if given else {}
            traits = as_spelled(traits, node) if given else traits
            return Op(node.name, target, args, kwargs, self.out(node), traits, None, self.origin(node))
        if is_fused(node):
            target, args, kwargs, inside = read_fused(node, self.groups, self.args.read)
            out = self.specs.specs(flat(node.meta["val"] if "val" in node.meta else _value(node)))
            return Op(node.name, target, args, kwargs, out, traits_of(target), None, self.origin(node), (), inside)
        target, args, kwargs, traits, comm = self.call(node)
        return Op(node.name, target, args, kwargs, self.out(node), traits, comm, self.origin(node))

    def call(self, node: Node) -> tuple[str, tuple[Arg, ...], dict[str, Arg], Traits, Collective | None]:
        if node.op == "call_function" and is_collective(node.target):
            target, args, kwargs, comm = read_collective(node, self.groups, self.args.read)
            return target, args, kwargs, traits_of(target), comm
        args = unpacked(node, self.args.read) or tuple(map(self.args.read, node.args))
        kwargs = {key: self.args.read(value) for key, value in node.kwargs.items()}
        if node.target is WAIT:
            return "wait", (*args, *kwargs.values()), {}, traits_of("wait"), None
        if node.op != "call_function":
            return node.op, (str(node.target), *args), kwargs, self.traits.of(node), None
        return self.target(node.target), args, kwargs, self.traits.of(node), None

    def target(self, function: Any) -> str:
        if function not in self.targets:
            self.targets[function] = target_of(function)
            if isinstance(function, OpOverload) and not may_be_fused(function):
                self.plain[id(function)] = self.targets[function], function_traits(function)
        return self.targets[function]

    def out(self, node: Node) -> tuple[Spec, ...]:
        return self.specs.specs(node.meta["val"] if "val" in node.meta else _value(node))

    def origin(self, node: Node) -> str:
        """Where the user's code made it: the parameter that it serves or the path of its module, and file:line."""
        meta = node.meta
        stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
        told = meta.get("weft_serves"), next(reversed(stack.values()))[0] if stack else "", meta.get("stack_trace")
        found = self.origins.get(told)
        if found is None:
            served, path, trace = told
            what = served if served is not None else self.module(path)
            found = self.origins[told] = f"{what} {self.place(trace) if trace else ''}".strip()
        return found

    def module(self, path: str) -> str:
        if path not in self.modules:
            self.modules[path] = module_path(path)
        return self.modules[path]

    def place(self, trace: str) -> str:
        if trace not in self.places:
            self.places[trace] = place_in(trace).removeprefix(self.here)
        return self.places[trace]


def _value(node: Node) -> Any:
    """What a node without `val` gives; a tuple holds several results, or none."""
    if node.op == "get_attr":
        return attribute(node)
    if node.target is operator.getitem:  # make_fx leaves out the `val` of a part that is None
        whole, index = node.args
        parts_of = whole.meta.get("val") if isinstance(whole, Node) else None
        if isinstance(parts_of, tuple | list) and isinstance(index, int):
            return parts_of[index]
    if isinstance(node.target, OpOverload) and not node.target._schema.returns:
        return ()
    if node.op == "call_module" and not node.users:  # such as the check of guards that export adds
        return ()
    if isinstance(node.target, HigherOrderOperator | type):  # a type: make_fx packs named tuples so
        return node  # an object
    raise GraphError(
        f"%{node.name} ({target_of(node.target) if callable(node.target) else node.target}) has no 'val' in its "
        "metadata, so its shape is not known; trace the graph with make_fx, torch.compile or torch.export"
    )


def _main_device(graph: Graph) -> str:
    """The type of the device that the graph runs on: an accelerator if any tensor lies on one."""
    values = [node.meta.get("val") for node in graph.nodes]
    # A fake tensor's own word for it, where it is one: `device` asks its mode first, and nearly all are.
    fake = {value.fake_device for value in values if type(value) is FakeTensor}
    others = {value.device for value in values if type(value) is not FakeTensor and isinstance(value, torch.Tensor)}
    types = {device.type for device in fake | others} - {"meta"}
    accelerators = sorted(types - {"cpu"})
    return accelerators[0] if accelerators else "cpu"
