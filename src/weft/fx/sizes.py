"""Symbolic sizes in lowered graphs: they stay symbolic, as nodes that compute them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, Node

from weft.errors import GraphError
from weft.ir.dims import Call, Dim, Expr, Symbol
from weft.ir.program import Op, Program
from weft.ir.specs import ScalarSpec

_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"//": operator.floordiv, "mod": operator.mod, "max": torch.sym_max, "min": torch.sym_min}
)


class Sizes:
    """Finds or makes nodes for sizes. `env` holds the node of each op that has been lowered so far.

    `made` are the nodes that no op of the program stands for.
    """

    def __init__(self, graph: Graph, program: Program, env: Mapping[str, Node]) -> None:
        self._graph, self._program, self._env = graph, program, env
        self._noted = 0  # how many ops of `env` have been looked at
        self._nodes: dict[Expr, Node] = {}
        self._dims: dict[Expr, tuple[Node, int]] = {}
        self.made: set[Node] = set()

    def node(self, size: Dim) -> Any:
        """A node that computes `size`, or the number that it is."""
        if isinstance(size, int):
            return size
        for name, node in islice(self._env.items(), self._noted, None):
            self._note(self._program[name], node)
        self._noted = len(self._env)
        if size not in self._nodes:
            self._nodes[size] = self._make(size)
        return self._nodes[size]

    def _note(self, op: Op, node: Node) -> None:
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
        if alone in self._nodes or alone in self._dims:
            return self.node(alone)
        if isinstance(atom, Call):
            return self._call(_FUNCTIONS[atom.function], *map(self.node, atom.args))
        for known in (*self._nodes, *self._dims):
            if [atoms for atoms, _ in known.terms] == [(atom,)]:  # a multiple of it
                self._nodes[alone] = self._call(operator.floordiv, self.node(known), known.terms[0][1])
                return self._nodes[alone]
        raise GraphError(f"no value that is defined by now has the size {atom.name}, which {whole} needs")

    def _call(self, function: Callable[..., Any], *args: Any) -> Node:
        node = self._graph.create_node("call_function", function, args, name=self._name())
        if all("val" in arg.meta for arg in args if isinstance(arg, Node)):
            node.meta["val"] = function(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
        self.made.add(node)
        return node

    def _name(self) -> str:
        """A name that is none of the program's, so that its nodes keep theirs."""
        number = len(self.made)
        while f"size_{number}" in self._program:
            number += 1
        return f"size_{number}"
