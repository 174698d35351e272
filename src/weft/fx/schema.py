"""Traits of operators that Weft's table does not list, from what torch itself says of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._higher_order_ops.effects import _get_effect
from torch._ops import OpOverload
from torch.fx.node import _side_effectful_functions

from weft.fx.names import PYTHON, target_of
from weft.ir.targets import TARGETS
from weft.ir.traits import BARRIER, PURE, Traits

# The libraries whose operators exist to communicate; those that Weft handles are listed in `collectives.py`.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_GROUP_ARGUMENTS = frozenset({"group", "group_name", "process_group", "pg"})

# They are listed as having side effects so that they are not dropped. They raise, or tell the compiler something, and
# do nothing else: they may be moved, and no pass drops an op for want of readers.
_ASSERTIONS = """
aten._assert_async.msg aten._assert_async.default aten._assert_scalar.default aten._assert_tensor_metadata.default
aten.sym_constrain_range.default aten.sym_constrain_range_for_size.default
"""

# They are given a mesh, and give back one of its groups or a part of it.
_GROUP_LOOKUPS = """
_dtensor.mesh_get_process_group.default device_mesh._get_flattened_submesh.default device_mesh._get_submesh.default
"""

# What operators do where their schemas say something else, or less.
_UNDECLARED: Mapping[str, Traits] = MappingProxyType(
    {
        **dict.fromkeys((_ASSERTIONS + _GROUP_LOOKUPS).split(), PURE),
        "aten.unsafe_chunk.default": Traits(views=(0,)),
        "aten.unsafe_split.Tensor": Traits(views=(0,)),
        "aten.unsafe_split_with_sizes.default": Traits(views=(0,)),
        "fsdp.all_gather_copy_in.default": Traits(views=(1,), mutates=(1,)),
    }
)


def function_traits(function: object) -> Traits:
    """The traits of an operator or a Python function; one of which nothing is known is a barrier."""
    target = target_of(function)
    if target in TARGETS:
        return TARGETS[target]
    if target in _UNDECLARED:
        return _UNDECLARED[target]
    if target in PYTHON:
        return PURE
    return schema_traits(function) if isinstance(function, OpOverload) else BARRIER


def schema_traits(function: OpOverload[Any, Any]) -> Traits:
    """The traits that an operator's schema and tags give it."""
    schema = function._schema
    communicates = function.namespace in _COMMUNICATION or any(map(_may_be_group, schema.arguments))
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


def _may_be_group(argument: Any) -> bool:
    """Whether an argument says among which ranks to communicate: as a name, a ProcessGroup or a DeviceMesh."""
    kind = str(argument.type)
    # A schema does not tell the classes of Python objects apart. A number is none: `group` of a norm counts channels.
    return "PyObject" in kind or (argument.name in _GROUP_ARGUMENTS and kind != "int")


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
