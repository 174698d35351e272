"""Steps that a rank captures and runs: programs with the tensors that they work on, planned alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from weft.cost import Machine
from weft.errors import WeftError
from weft.fx import capture, to_fx
from weft.fx.state import local, named_state, stateful
from weft.ir.program import Program
from weft.optimizer import Optimized, optimize, replay
from weft.run.samples import from_all
from weft.verify import verify


@dataclass(frozen=True)
class Step:
    """A rank's step and its own tensors, in the order of the program's inputs. Running it changes those in place."""

    program: Program
    inputs: tuple[Tensor, ...]

    def call(self, program: Program | None = None) -> Callable[[], Any]:
        """The step, or what became of its program, ready to be run."""
        module = to_fx(self.program if program is None else program)
        return lambda: module(*self.inputs)


def captured_step(function: Callable[..., Any], args: Sequence[Any]) -> Step:
    """`function(*args)` as this rank captures it, on the memory of the real tensors.

    An optimiser must have made its state, which it does at its first step. WeftError names an input that nobody holds.
    """
    program = capture(function, args)
    held = held_tensors(function, args)
    given = (local(leaf).detach() for leaf in pytree.tree_leaves(tuple(args)) if isinstance(leaf, Tensor))
    inputs = [held.get(op.origin) if op.origin else next(given, None) for op in program.inputs]
    for op, tensor in zip(program.inputs, inputs, strict=True):
        if tensor is None:
            raise WeftError(
                f"%{op.name}: nobody holds {op.origin or 'it'} after a step, so the step cannot be run again"
            )
    return Step(program, tuple(one for one in inputs if one is not None))


def held_tensors(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Tensor]:
    """What the modules and optimisers of a call hold on this rank, by the names of a captured program."""
    modules, optimizers = stateful(function, tuple(args), {})
    named = dict(named_state(modules))
    names = {id(tensor): name for name, tensor in named.items()}
    found = {name: local(tensor).detach() for name, tensor in named.items()}
    return found | {name: tensor for one in optimizers for name, tensor in _states(one, names)}


def _states(optimizer: Optimizer, names: dict[int, str]) -> Iterable[tuple[str, Tensor]]:
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                yield f"{names.get(id(parameter), 'parameter')}.{key}", local(value).detach()


def planned_together(program: Program, machine: Machine, passes: str, *, memory_limit: int | None = None) -> Optimized:
    """A rank's program after passes, as rank 0 plans it, verified. All ranks must call this."""
    chief = dist.get_rank() == 0
    planned = optimize(program, machine, passes=passes, memory_limit=memory_limit) if chief else None
    plans = [planned.plan if planned is not None else ""]
    dist.broadcast_object_list(plans, src=0)
    made = planned or replay(program, plans[0], machine)
    verify(program, made.program, reorders=True)
    return made


def difference(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference on any rank, relative to the largest finite number in a tensor.

    Infinities and NaNs that both have at the same place are equal. All ranks must call this.
    """
    shares = [_share(*pair) for pair in zip(expected, found, strict=True)]
    return float(max(from_all(max(shares, default=0.0))))


def _share(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return inf
    wide, found = one.double(), other.double()
    # An infinity or a NaN on both sides is the same, and has no difference that could be computed.
    apart = ~((wide == found) | (wide.isnan() & found.isnan()))
    if not apart.any():
        return 0.0
    finite = wide[wide.isfinite()]
    largest = finite.abs().max() if finite.numel() else wide.new_tensor(0.0)
    share = float((wide - found)[apart].abs().max() / largest.clamp(min=1e-30))
    return inf if isnan(share) else share
