"""What a step computes without its communication, and what it communicates without its compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.fx import to_fx
from weft.fx.collectives import WAIT, write_collective
from weft.ir.program import Op, Program
from weft.run.inputs import writer
from weft.run.steps import Step

_C10D = torch.ops._c10d_functional


def _gathered(own: Tensor, ranks: int, group: str) -> Tensor:
    return torch.cat([own] * ranks)


def _scattered(whole: Tensor, reduce_op: str, ranks: int, group: str) -> Tensor:
    return whole.chunk(ranks)[0].clone()


def _reduced(own: Tensor, reduce_op: str, group: str) -> Tensor:
    return own.clone()


def _awaited(own: Tensor) -> Tensor:
    return own


_ALONE: Mapping[Any, Callable[..., Tensor]] = {
    _C10D.all_gather_into_tensor.default: _gathered,
    _C10D.reduce_scatter_tensor.default: _scattered,
    _C10D.all_reduce.default: _reduced,
    WAIT: _awaited,
}


def compute_alone(step: Step) -> Callable[[], Any]:
    """The step with each collective done with what this rank has: same kernels, other numbers.

    WeftError names a collective that nothing stands for.
    """
    module = to_fx(step.program)
    for node in module.graph.nodes:
        if getattr(node.target, "namespace", "") == "_c10d_functional":
            if node.target not in _ALONE:
                raise WeftError(f"%{node.name}: nothing stands for {node.target} when compute is measured alone")
            node.target = _ALONE[node.target]
    module.recompile()
    return lambda: module(*step.inputs)


def communication_alone(*programs: Program) -> Callable[[], Any]:
    """The collectives of programs, each waited for before the next."""
    calls = [_collective(program, op) for program in programs for op in program.starts]

    def run() -> None:
        for call in calls:
            flying = call()
            for one in flying if isinstance(flying, list) else [flying]:  # a coalesced bucket has several results
                WAIT(one)

    return run


def _collective(program: Program, op: Op) -> Callable[[], Any]:
    kwargs = {name: arg for name, arg in op.kwargs.items() if name != "group"}
    function, args, named = write_collective(replace(op, kwargs=kwargs), writer(program, torch.device("cpu")))
    return lambda: function(*args, **named)
