"""How collectives are spelled in torch, and which ranks a group's name stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the operators
from torch._ops import OpOverload
from torch.distributed.distributed_c10d import GroupName, ProcessGroup, _resolve_process_group  # type: ignore[attr-defined]
from torch.fx import Node

from weft.errors import GraphError
from weft.ir.args import Arg
from weft.ir.program import Collective, Group, Op
from weft.ir.targets import STARTS

_C10D = torch.ops._c10d_functional
WAIT = _C10D.wait_tensor.default

# Weft's target -> torch's operator for one tensor, and the one for a list of them (coalesced), where there is one.
_SPELLINGS: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "all_gather.start": (
            _C10D.all_gather_into_tensor.default,
            _C10D.all_gather_into_tensor_coalesced.default,
        ),
        "all_gather_out.start": (_C10D.all_gather_into_tensor_out.default, None),
        "reduce_scatter.start": (
            _C10D.reduce_scatter_tensor.default,
            _C10D.reduce_scatter_tensor_coalesced.default,
        ),
        "reduce_scatter_out.start": (_C10D.reduce_scatter_tensor_out.default, None),
        "all_reduce.start": (_C10D.all_reduce.default, _C10D.all_reduce_coalesced.default),
        "all_reduce_.start": (_C10D.all_reduce_.default, _C10D.all_reduce_coalesced_.default),
        "all_to_all.start": (_C10D.all_to_all_single.default, None),
        "broadcast.start": (_C10D.broadcast.default, None),
        "broadcast_.start": (_C10D.broadcast_.default, None),
    }
)
_TARGETS: Mapping[Any, str] = MappingProxyType(
    {spelling: target for target, both in _SPELLINGS.items() for spelling in both if spelling is not None}
)
# How torch calls the arguments of each; to ask its schema for all of them takes long.
_NAMES: Mapping[Any, tuple[str, ...]] = MappingProxyType(
    {spelling: tuple([argument.name for argument in spelling._schema.arguments]) for spelling in _TARGETS}
)
# What a start keeps as arguments, in Weft's order. The rest is in its Collective.
_KEPT = ("input", "inputs", "src", "output_split_sizes", "input_split_sizes")

Groups = Mapping[str, Sequence[int]]


def is_collective(function: object) -> bool:
    """Whether Weft knows this operator as the start of a collective."""
    return function in _TARGETS


class GroupReader:
    """Finds the groups of collectives. `ranks` are those that the caller knows; torch.distributed may know others."""

    def __init__(self, ranks: Groups) -> None:
        self._known = {name: Group(name, tuple(members)) for name, members in ranks.items()}

    def group(self, node: Node, given: Any, size: int | None) -> Group:
        """The group that a start is given, as a name, a ProcessGroup or a node that gives one."""
        value = given.meta.get("val") if isinstance(given, Node) else given
        value = getattr(value, "real_obj", value)  # what stands for an object while tracing
        name = value.group_name if isinstance(value, ProcessGroup) else value
        if not isinstance(name, str):
            raise GraphError(f"%{node.name}: its group is a {type(name).__name__}, neither a name nor a ProcessGroup")
        if name not in self._known and dist.is_available() and dist.is_initialized():
            self._known[name] = _registered(node, name)
        if name in self._known:
            known = self._known[name]
            if size is not None and size != known.size:
                raise GraphError(f"%{node.name} says that group {name!r} has {size} ranks; it has {known.size}")
            return known
        if size is not None:
            # Nobody here knows which ranks these are; how many they are is what the operator says.
            return Group(name, tuple(range(size)))
        raise GraphError(
            f"%{node.name}: the ranks of group {name!r} are not known, since torch.distributed is not initialised; "
            f"say which they are: from_fx(graph, groups={{{name!r}: range(8)}})"
        )


def _registered(node: Node, name: str) -> Group:
    try:
        ranks = dist.get_process_group_ranks(_resolve_process_group(GroupName(name)))
    except RuntimeError:
        raise GraphError(
            f"%{node.name}: torch.distributed has no group {name!r} here; "
            f"say which ranks it has: from_fx(graph, groups={{{name!r}: range(8)}})"
        ) from None
    return Group(name, tuple(ranks))


def read_collective(
    node: Node, groups: GroupReader, read: Callable[[Any], Arg]
) -> tuple[str, tuple[Arg, ...], dict[str, Arg], Collective]:
    """Target, arguments, keywords and Collective of a start."""
    target = _TARGETS[node.target]
    given = _by_name(node, _NAMES[node.target])
    args = tuple(read(given[name]) for name in _KEPT if name in given)
    kwargs = {"out": read(given["out"])} if "out" in given else {}
    group = groups.group(node, given["group_name"], given.get("group_size"))
    if isinstance(given["group_name"], Node):
        kwargs["group"] = read(given["group_name"])
    reduce_op = str(given["reduce_op"]).lower() if "reduce_op" in given else ""
    return target, args, kwargs, Collective(STARTS[target], group, reduce_op)


def write_collective(op: Op, write: Callable[[Arg], Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The operator, arguments and keywords that spell a start."""
    if op.comm is None or op.target not in _SPELLINGS:
        raise GraphError(f"%{op.name} ({op.target}) is no start that torch has an operator for")
    single, coalesced = _SPELLINGS[op.target]
    function = coalesced if op.args and isinstance(op.args[0], tuple) else single
    if function is None:
        raise GraphError(f"%{op.name}: torch has no coalesced {op.target}")
    names = _NAMES[function]
    kept = [name for name in _KEPT if name in names]
    if len(op.args) != len(kept) or ("out" in names) != ("out" in op.kwargs):
        raise GraphError(f"%{op.name}: {op.target} takes {', '.join(kept)}" + ("; out=" if "out" in names else ""))
    given = dict(zip(kept, map(write, op.args), strict=True))
    given["reduce_op"], given["group_size"] = op.comm.reduce_op, op.comm.group.size
    given["group_name"] = write(op.kwargs["group"]) if "group" in op.kwargs else op.comm.group.name
    args = tuple(given[name] for name in names if name != "out")
    return function, args, {"out": write(op.kwargs["out"])} if "out" in op.kwargs else {}


def bound(node: Node) -> dict[str, Any]:
    """The arguments of a node by the names in its operator's schema."""
    assert isinstance(node.target, OpOverload)
    return _by_name(node, [argument.name for argument in node.target._schema.arguments])


def _by_name(node: Node, names: Sequence[str]) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
