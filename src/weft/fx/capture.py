"""`capture`: a function as a Program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx.experimental.proxy_tensor import make_fx

from weft.fx.importer import from_fx
from weft.ir.program import Program


def capture(function: Callable[..., Any], args: Sequence[Any]) -> Program:
    """Trace `function(*args)` on fake tensors: its operators, collectives and, if it takes gradients, its backward.

    Process groups must exist already. Tensors that the function closes over become constants of the program.
    """
    return from_fx(make_fx(function, tracing_mode="fake", record_stack_traces=True)(*args))
