"""Traits of operators that Weft's table does not list, from what torch itself says of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._higher_order_ops.effects import _get_effect
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import _side_effectful_functions

from weft.fx.names import PYTHON, target_of
from weft.ir.traits import Traits
from weft.ir.targets import BARRIER, PURE, TARGETS

# The libraries whose operators exist to communicate; those that Weft handles are listed in `collectives.py`.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_GROUP_ARGUMENTS = frozenset({"group", "group_name", "process_group", "pg"})

# They are listed as having side effects so that they are not dropped. They raise, or tell the compiler something, and
# do nothing else: they may be moved, and no pass drops an op for want of readers.
_ASSERTIONS = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
_GROUP_LOOKUPS = frozenset({"_dtensor.mesh_get_process_group.default", "device_mesh._get_flattened_submesh.default"})


def function_traits(function: object, subgraphs: Iterable[torch.fx.GraphModule] = ()) -> Traits:
    """The traits of what a node calls; `subgraphs` are those that a higher-order operator is given."""
    target = target_of(function)
    if target in TARGETS:
        return TARGETS[target]
    if target in PYTHON or target in _ASSERTIONS or target in _GROUP_LOOKUPS:
        return PURE
    if isinstance(function, OpOverload):
        return _operator_traits(function)
    if isinstance(function, HigherOrderOperator):
        return _higher_order_traits(function, subgraphs)
    return BARRIER


def _operator_traits(function: OpOverload[Any, Any]) -> Traits:
    schema = function._schema
    communicates = function.namespace in _COMMUNICATION or any(
        argument.name in _GROUP_ARGUMENTS or "ProcessGroup" in str(argument.type) for argument in schema.arguments
    )
    mutates, views = _aliases(schema)
    effect = function in _side_effectful_functions or _get_effect(function) is not None
    objects = any("__torch__.torch.classes" in str(argument.type) for argument in schema.arguments)
    return Traits(
        views=views,
        mutates=mutates,
        random=torch.Tag.nondeterministic_seeded in function.tags,
        communicates=communicates,
        barrier=communicates or effect or objects,
    )


def _aliases(schema: Any) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """Which arguments are written, and with which of them a result shares storage."""
    returned = {name for result in schema.returns if result.alias_info for name in result.alias_info.before_set}
    mutates: list[int | str] = []
    views: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is None:
            continue
        key = argument.name if argument.kwarg_only else position
        if alias.is_write:
            mutates.append(key)
        # `a -> *`: the elements of a returned list are views of this argument.
        if alias.before_set & returned or "*" in {str(name)[-1] for name in alias.after_set}:
            views.append(key)
    return tuple(mutates), tuple(views)


def _higher_order_traits(function: HigherOrderOperator, subgraphs: Iterable[torch.fx.GraphModule]) -> Traits:
    if function in _side_effectful_functions or _get_effect(function) is not None:
        return BARRIER
    if function is torch.ops.higher_order.with_effects:
        return BARRIER
    random = False
    for module in subgraphs:
        for node in module.graph.nodes:
            if node.op == "call_function":
                inner = function_traits(node.target, submodules(node))
                if inner.mutates or inner.communicates or inner.barrier:
                    return Traits(communicates=inner.communicates, barrier=True)
                random = random or inner.random
    return Traits(random=random)


def submodules(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """The subgraphs that a node is given, by `get_attr`."""
    owner = node.graph.owning_module
    if owner is None or not isinstance(node.target, HigherOrderOperator):
        return []
    found = [
        getattr(owner, str(arg.target))
        for arg in node.all_input_nodes
        if arg.op == "get_attr" and "." not in str(arg.target)
    ]
    return [module for module in found if isinstance(module, torch.fx.GraphModule)]
