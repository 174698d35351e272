"""Targets: from torch's callables to Weft's names and back.

Names that come from a file are looked up, never evaluated: an operator of the dispatcher, a higher-order operator, or
one of the few Python functions listed here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from weft.errors import GraphError
from weft.fx.pack import pack as _pack  # noqa: F401  # defines the operator

_SYMBOLIC = (
    "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt _sym_cos _sym_sin _sym_log2 _sym_exp"
).split()
_ARITHMETIC = (
    "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert lshift rshift"
).split()

# Python functions that appear in graphs: on sizes, and to take one of several results. None has an effect.
PYTHON: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "getitem": operator.getitem,
        **{f"operator.{name}": getattr(operator, name) for name in _ARITHMETIC},
        **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "log2", "prod")},
        **{f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC if hasattr(torch, name)},
    }
)
_PYTHON_NAMES: Mapping[Callable[..., Any], str] = MappingProxyType({fn: name for name, fn in PYTHON.items()})


def target_of(function: object) -> str:
    """Weft's name of what a node calls."""
    if isinstance(function, OpOverload):
        return str(function)
    if isinstance(function, HigherOrderOperator):
        return f"higher_order.{function.name()}"  # type: ignore[no-untyped-call]
    if callable(function) and function in _PYTHON_NAMES:
        return _PYTHON_NAMES[function]
    module, name = getattr(function, "__module__", "?"), getattr(function, "__qualname__", type(function).__name__)
    return f"python.{module}.{name}"


def resolve(target: str) -> Callable[..., Any]:
    """The callable that a target names; GraphError if there is none."""
    if target in PYTHON:
        return PYTHON[target]
    library, *rest = target.split(".")
    if library == "higher_order" and len(rest) == 1:
        found: Any = getattr(torch.ops.higher_order, rest[0], None)
        if isinstance(found, HigherOrderOperator):
            return found
    if len(rest) == 2:
        packet, overload = rest
        try:
            found = getattr(getattr(getattr(torch.ops, library), packet), overload)
        except (AttributeError, RuntimeError):
            found = None
        # Operators of TorchScript alone have the same form, and no dispatcher stands before them: one writes files.
        if isinstance(found, OpOverload) and str(found) == target and torch._C._dispatch_has_kernel(found._name):
            return found
    raise GraphError(f"torch has no operator {target}: is the library that defines it imported?")
