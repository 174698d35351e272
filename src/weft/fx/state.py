"""State: what modules and optimisers hold becomes input of a captured program.

While a step is traced, state that has memory is replaced by fake tensors; afterwards everything is back. Tracing takes
state for constants, so the names by which it is known are kept here: `names` says which input a constant is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree


@dataclass
class State:
    """The modules and optimisers of a step, while it is traced.

    - `names`: the name of each tensor, as a rank holds it, by its identity
    - `parameters`: the trainable parameters by name
    - `scalars`: optimiser states of one number, such as the count of steps: they stay numbers
    """

    names: dict[int, str] = field(default_factory=dict)
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    scalars: list[tuple[dict[Any, Any], str]] = field(default_factory=list)
    alive: list[Tensor] = field(default_factory=list)  # identities are only good while the tensors live

    def note(self, name: str, tensor: Tensor) -> None:
        held = local(tensor)
        self.alive.append(held)
        self.names.setdefault(id(held), name)

    def restart_scalars(self) -> None:
        """Give scalar states a value that tracing can compute with: the second step of a training."""
        for state, key in self.scalars:
            state[key] = torch.tensor(1.0)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def fake(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """The same tensor without its memory; what is on the meta device is taken to be on the CPU."""
    held = local(tensor)
    if isinstance(held, FakeTensor):
        return tensor
    with mode:
        made = torch.empty_strided(held.shape, held.stride(), dtype=held.dtype)
    whole = DTensor(made, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else made  # type: ignore[no-untyped-call]
    return nn.Parameter(whole, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else whole


def stateful(function: Any, args: Any, kwargs: Any) -> tuple[list[nn.Module], list[Optimizer]]:
    """The modules and optimisers that a call involves, each once; a module that is part of another comes with that."""
    found = [function, getattr(function, "__self__", None), *pytree.tree_leaves((args, kwargs))]
    found += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    modules = {id(value): value for value in found if isinstance(value, nn.Module)}
    parts = {id(part) for module in modules.values() for part in module.modules() if part is not module}
    optimizers = {id(value): value for value in found if isinstance(value, Optimizer)}
    return [module for key, module in modules.items() if key not in parts], list(optimizers.values())


def named_state(modules: list[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once, under their names in a program; those of several modules begin with its."""
    for number, module in enumerate(modules):
        prefix = f"{type(module).__name__}_{number}." if len(modules) > 1 else ""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield prefix + name, tensor


@contextmanager
def traced_state(modules: list[nn.Module], optimizers: list[Optimizer], mode: FakeTensorMode) -> Iterator[State]:
    """Replace what has memory, make the states that optimisers make at their first step, and undo it all at the end."""
    holders = [holder for module in modules for holder in _holders(module)]
    saved = [(holder, dict(holder)) for holder in holders]
    saved_groups = [(group, list(group["params"])) for one in optimizers for group in one.param_groups]
    saved_states = [(one, dict(one.state)) for one in optimizers]
    saved_grads = [(p, p.grad) for module in modules for p in module.parameters()]
    replaced = _replacements(holders, mode)
    try:
        for holder in holders:
            holder.update({key: replaced[id(value)] for key, value in holder.items() if value is not None})
        for group, parameters in saved_groups:
            group["params"] = [replaced.get(id(p), p) for p in parameters]
        state = State()
        _note_modules(modules, state)
        for one in optimizers:
            _note_optimizer(one, state, mode)
        yield state
    finally:
        for holder, content in saved:
            holder.clear()
            holder.update(content)
        for group, parameters in saved_groups:
            group["params"] = parameters
        for one, before in saved_states:
            one.state.clear()
            one.state.update(before)
        for parameter, grad in saved_grads:
            parameter.grad = grad


def _holders(module: nn.Module) -> Iterator[dict[str, Any]]:
    for one in module.modules():
        yield one._parameters
        yield one._buffers


def _replacements(holders: Iterable[dict[str, Any]], mode: FakeTensorMode) -> dict[int, Tensor]:
    """For each tensor, what stands for it: tied ones stay tied."""
    found: dict[int, Tensor] = {}
    for holder in holders:
        for tensor in holder.values():
            if tensor is not None and id(tensor) not in found:
                found[id(tensor)] = fake(tensor, mode)
    return found


def _note_modules(modules: list[nn.Module], state: State) -> None:
    for name, tensor in named_state(modules):
        state.note(name, tensor)
        if isinstance(tensor, nn.Parameter):
            tensor.grad = None
            state.parameters[name] = tensor


def _note_optimizer(optimizer: Optimizer, state: State, mode: FakeTensorMode) -> None:
    """A fresh optimiser is made to take a step, so that the step that is traced finds its state in place."""
    of = {id(parameter): name for name, parameter in state.parameters.items()}
    optimizer.state.clear()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    with mode:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    for parameter in trained:
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.dim() == 0:
                state.scalars.append((optimizer.state[parameter], key))
            elif isinstance(value, Tensor):
                state.note(f"{of.get(id(parameter), 'parameter')}.{key}", value)
