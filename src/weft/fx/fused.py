"""How matmuls with a collective inside them are spelled in torch: the fused operators of `symm_mem`.

A gathering one gives back a tensor and a list of tensors there, and one list of results in Weft. The node that takes
the list out is no op: it is left out on the way in and made again on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # defines the operators
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group  # type: ignore[attr-defined]
from torch.fx import Node

from weft.errors import GraphError
from weft.fx.collectives import GroupReader, bound
from weft.fx.values import SpecReader, fake_input
from weft.ir.args import Arg, Ref
from weft.ir.program import Collective, Op
from weft.ir.specs import ScalarSpec, Spec, TensorSpec
from weft.ir.targets import FUSED
from weft.ir.text import print_spec

_SYMM_MEM = torch.ops.symm_mem
_SPELLINGS: Mapping[str, Any] = MappingProxyType(
    {
        "all_gather_matmul.fused": _SYMM_MEM.fused_all_gather_matmul.default,
        "all_gather_scaled_matmul.fused": _SYMM_MEM.fused_all_gather_scaled_matmul.default,
        "matmul_reduce_scatter.fused": _SYMM_MEM.fused_matmul_reduce_scatter.default,
        "scaled_matmul_reduce_scatter.fused": _SYMM_MEM.fused_scaled_matmul_reduce_scatter.default,
    }
)
_TARGETS: Mapping[Any, str] = MappingProxyType({operator: target for target, operator in _SPELLINGS.items()})
_IN_COLLECTIVE = ("group_name", "reduce_op")  # the rest are arguments
_PRODUCTS = 1  # the place of the list of products, in torch
_PORTABLE = "split it into chunks with collectives of their own, which run everywhere"


def may_be_fused(function: object) -> bool:
    """Whether Weft knows this operator as one with a collective inside it; `is_fused` says it of a call."""
    return function in _TARGETS


def is_fused(node: Node) -> bool:
    """Whether a node calls a fused operator, and nobody uses the list of its products but to take them out."""
    if node.target not in _TARGETS:
        return False
    users = [user for user in node.users if FUSED[_TARGETS[node.target]] == "all_gather"]
    if not all(user.target is getitem for user in users):
        return False
    lists = [user for user in users if user.args[1] == _PRODUCTS]
    return all(user.target is getitem for taken in lists for user in taken.users)


def is_product_list(node: Node) -> bool:
    """Whether a node takes the list of products out of the results of a gathering one."""
    if node.target is not getitem or not isinstance(whole := node.args[0], Node) or not is_fused(whole):
        return False
    return FUSED[_TARGETS[whole.target]] == "all_gather" and bool(node.args[1] == _PRODUCTS)


def read_fused(
    node: Node, groups: GroupReader, read: Callable[[Any], Arg]
) -> tuple[str, tuple[Arg, ...], dict[str, Arg], Collective]:
    """Target, arguments, keywords and Collective of a fused operator."""
    target, given = _TARGETS[node.target], bound(node)
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    names = [argument.name for argument in schema if not argument.kwarg_only and argument.name in given]
    args = tuple(read(given[name]) for name in names if name not in _IN_COLLECTIVE)
    keywords = [argument.name for argument in schema if argument.kwarg_only and argument.name in given]
    kwargs = {name: read(given[name]) for name in keywords if given[name] is not True}  # that is what torch assumes
    reduce_op = str(given["reduce_op"]).lower() if "reduce_op" in given else ""
    return target, args, kwargs, Collective(FUSED[target], groups.group(node, given["group_name"], None), reduce_op)


def write_fused(op: Op, write: Callable[[Arg], Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The operator, arguments and keywords that spell an op with a collective inside it."""
    if op.inside is None or op.target not in _SPELLINGS:
        raise GraphError(f"%{op.name} ({op.target}) has no collective inside that torch has an operator for")
    function = _SPELLINGS[op.target]
    names = [argument.name for argument in function._schema.arguments if not argument.kwarg_only]
    own = iter(op.args)
    said = {"group_name": op.inside.group.name, "reduce_op": op.inside.reduce_op}
    args: list[Any] = []
    for name in names:
        if name not in said and (value := next(own, _MISSING)) is _MISSING:
            break
        args.append(said[name] if name in said else write(value))
    return function, tuple(args), {name: write(value) for name, value in op.kwargs.items()}


_MISSING: Any = object()


def flat(value: Any) -> Any:
    """The results of a fused operator as one tuple; one tensor stays one."""
    return value if isinstance(value, Tensor) else (value[0], *value[_PRODUCTS])


def nested(op: Op, results: Sequence[Any]) -> Any:
    """Weft's results of an op as torch's operator gives them back."""
    if FUSED[op.target] != "all_gather":
        return results[0]
    first, *products = results
    return first, products


def unpacked(node: Node, read: Callable[[Any], Arg]) -> tuple[Arg, ...] | None:
    """What the op of a node is given that takes a product out of the list; None for any other node."""
    if node.target is not getitem or not isinstance(taken := node.args[0], Node) or not is_product_list(taken):
        return None
    number = node.args[1]
    assert isinstance(number, int)
    count = len(taken.meta["val"])
    return read(taken.args[0]), 1 + number % count


def product_of(op: Op, ops: Mapping[str, Op]) -> tuple[str, int] | None:
    """The gathering op and the number of the product that an op takes out of its results; None for any other op."""
    match op.target, op.args:
        case "getitem", (Ref(name), int(number)) if name in ops and FUSED.get(ops[name].target) == "all_gather":
            count = len(ops[name].out)
            return (name, number % count - 1) if number % count else None
    return None


# What torch makes of it


def fused_value(op: Op, call: Callable[[], Any]) -> Any:
    """The results of an op as torch's own implementation for tensors without memory has them.

    `call` runs it. Raises GraphError where shapes, dtypes or strides are not those that the op says. Where torch knows
    no such group nothing can be run, and the results are what the op says.
    """
    assert op.inside is not None
    if not _is_known(op.inside.group.name):
        return nested(op, [fake_input(spec) if isinstance(spec, TensorSpec) else None for spec in op.out])
    value = call()
    found = SpecReader("cpu").specs(flat(value))
    for said, made in zip(op.out, found, strict=False):
        if not _same(said, made):
            raise GraphError(f"%{op.name} ({op.target}) says {print_spec(said)}, and torch makes {print_spec(made)}")
    if len(op.out) != len(found):
        raise GraphError(f"%{op.name} ({op.target}) says {len(op.out)} results, and torch makes {len(found)}")
    return value


def _same(said: Spec, made: Spec) -> bool:
    if isinstance(said, ScalarSpec) or isinstance(made, ScalarSpec):
        return said == made
    return (said.shape, said.dtype, said.strides) == (made.shape, made.dtype, made.strides)


def _is_known(group: str) -> bool:
    if not dist.is_available() or not dist.is_initialized():
        return False
    try:
        _resolve_process_group(GroupName(group))
    except RuntimeError:
        return False
    return True


def check_runnable(op: Op, node: Node) -> None:
    """Raise GraphError if it can be told that an op cannot run here: its device or group has no symmetric memory."""
    assert op.inside is not None
    value = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    if isinstance(value, Tensor) and value.device.type not in ("cuda", "meta"):
        raise GraphError(
            f"%{op.name} ({op.target}) needs symmetric memory, and its tensors are on the device {value.device.type}, "
            f"which has none; {_PORTABLE}"
        )
    group = op.inside.group.name
    if _is_known(group) and (backend := dist.get_backend(_resolve_process_group(GroupName(group)))) in _WITHOUT:
        raise GraphError(
            f"%{op.name} ({op.target}) needs symmetric memory, and the backend of its group {group!r} is {backend}, "
            f"which has none; {_PORTABLE}"
        )


_WITHOUT = ("gloo", "mpi", "ucc")
