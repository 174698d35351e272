"""Arguments: from what torch.fx holds to Weft's, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_leaves

from weft.errors import GraphError
from weft.fx.names import resolve, target_of
from weft.fx.values import FROM_TORCH, TO_TORCH, SpecReader
from weft.ir.args import Arg, Const, Device, Dict, Dtype, Function, Literal, Opaque, Ref, Slice, Tuple
from weft.ir.dims import Expr

_CONSTANTS: Mapping[str, object] = {
    str(constant): constant
    for constant in (
        torch.strided, torch.sparse_coo, torch.jagged,
        torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format,
    )
}  # fmt: skip

_PLAIN = frozenset({bool, int, str, complex, type(None)})


class ArgReader:
    """Turns torch.fx arguments into Weft's. What only the graph can give back is kept in `objects`."""

    def __init__(self, sizes: SpecReader) -> None:
        self._sizes = sizes
        self._refs: dict[Node, Ref] = {}  # shared: a value has many readers
        self.objects: dict[str, object] = {}

    def read(self, value: Any) -> Arg:
        """The argument that `value` is."""
        kind = type(value)
        if kind is Node:
            ref = self._refs.get(value)
            if ref is None:
                ref = self._refs[value] = Ref(value.name)
            return ref
        if kind in _PLAIN:
            found: Arg = value
            return found
        if kind is immutable_list:
            return tuple(map(self.read, value))
        return self._rare(value)

    def _rare(self, value: Any) -> Arg:  # noqa: C901  # one line for each type that there is
        if isinstance(value, str | complex):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return math.nan if math.isnan(value) else float(value)
        if isinstance(value, list | torch.Size):
            return tuple(map(self.read, value))
        if isinstance(value, tuple) and type(value) is tuple:
            return Tuple(tuple(map(self.read, value)))
        if isinstance(value, slice):
            return Slice(self.read(value.start), self.read(value.stop), self.read(value.step))
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return Dict(tuple((key, self.read(item)) for key, item in value.items()))
        if isinstance(value, torch.SymInt):
            return self._sizes.dim(value)
        if isinstance(value, torch.dtype) and value in FROM_TORCH:
            return Dtype(FROM_TORCH[value])
        if isinstance(value, torch.device):
            return Device(str(value))
        if isinstance(value, torch.layout | torch.memory_format) and str(value) in _CONSTANTS:
            return Const(str(value))
        if isinstance(value, OpOverload | HigherOrderOperator):
            return Function(target_of(value))
        return self._opaque(value)

    def _opaque(self, value: object) -> Opaque:
        for held in tree_leaves(value):
            if isinstance(held, Node):
                raise GraphError(
                    f"%{held.name} is used inside a {type(value).__name__}, which Weft cannot look into; it can look "
                    "into lists, tuples, slices and dictionaries with string keys"
                )
        key = f"object_{len(self.objects)}"
        self.objects[key] = value
        return Opaque(key, type(value).__name__)


class ArgWriter:
    """Turns Weft's arguments into torch.fx's. `node` finds nodes, `size` makes them for symbolic sizes."""

    def __init__(self, node: Callable[[str], Node], size: Callable[[Expr], Any], objects: Mapping[str, object]) -> None:
        self._node, self._size, self._objects = node, size, objects

    def write(self, arg: Arg) -> Any:
        """The torch.fx argument that `arg` stands for."""
        if type(arg) in _PLAIN:
            return arg
        match arg:
            case Ref(name):
                return self._node(name)
            case tuple():
                return [self.write(item) for item in arg]
            case Tuple(items):
                return tuple(self.write(item) for item in items)
            case Slice(start, stop, step):
                return slice(self.write(start), self.write(stop), self.write(step))
            case Dict(items):
                return {key: self.write(item) for key, item in items}
            case Expr():
                return self._size(arg)
        return self._literal(arg)

    def _literal(self, arg: Literal) -> Any:
        match arg:
            case Dtype(name):
                return TO_TORCH[name]
            case Device(name):
                return torch.device(name)
            case Const(name):
                return _constant(name)
            case Function(target):
                return resolve(target)
            case Opaque(key, text):
                if key not in self._objects:
                    raise GraphError(f"a {text} ({key}) cannot be made again: the graph that had it is not here")
                return self._objects[key]
        return arg


def _constant(name: str) -> object:
    if name not in _CONSTANTS:
        raise GraphError(f"torch has no constant {name} that Weft knows")
    return _CONSTANTS[name]
