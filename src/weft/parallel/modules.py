"""The generated module classes: a parameter's name gives the gathered tensor while a forward runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from weft.errors import WeftError
from weft.parallel.gather import Gather, Route
from weft.parallel.regather import Known, Recipe, hooks_in_force

SCOPE = "_weft_parallel"  # the attribute of a parallel module that holds its Scope


@dataclass(frozen=True)
class TensorParallel:
    """How the module's own tensor parallelism laid the parameter out; it still sees it so."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]


@dataclass(eq=False)
class Slot:
    """One parameter, however many modules share it, and its gathered form while that lives.

    `reshard`: gathered again in the backward. `tied`: several modules share it.
    """

    name: str
    route: Route
    reshard: bool
    tied: bool
    tensor_parallel: TensorParallel | None
    source: Tensor | None = None
    gathered: Tensor | None = None

    def hold(self, source: Tensor | None, gathered: Tensor | None) -> None:
        self.source, self.gathered = source, gathered

    @property
    def keep(self) -> bool:
        """Whether the gathered form lives for the whole forward, not for one call of its module.

        Under Dynamo only tied parameters do: what is gathered in a checkpointed region may not leave it.
        """
        return self.tied or not (self.reshard or torch.compiler.is_dynamo_compiling())


@dataclass(eq=False)
class Model:
    """What the modules of one parallel model share: all its slots, and how deep in forwards it is."""

    slots: list[Slot]
    depth: int = 0
    known: Known = field(default_factory=Known)

    def __post_init__(self) -> None:
        self.reshards = any(slot.reshard for slot in self.slots)

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


@dataclass(eq=False)
class Scope:
    """A parallel module's own part: its parameters by attribute name, and all the slots in it and its submodules.

    `tied` says where to find each tied parameter among those: a module and its attribute. `param_dtype` is the dtype
    that the module computes in, if not the one of what it is given.
    """

    model: Model
    param_dtype: torch.dtype | None
    slots: dict[str, Slot]
    inside: list[Slot]
    tied: list[tuple[nn.Module, str]]


def parallel_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A subclass of `base` in which the parameters `names` are gathered while a forward runs.

    Equal arguments give the same class, so that Dynamo compiles a repeated layer once.
    """
    return _parallel_class(base, names)  # type: ignore[arg-type]  # mypy thinks that classes do not hash


@cache
def _parallel_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    namespace: dict[str, Any] = {name: _parameter_property(name) for name in names}
    if has_forward(base):
        namespace["forward"] = _scoped(base.forward)
    if issubclass(base, nn.RNNBase):  # keeps a list of its parameters, which would go stale
        namespace["_flat_weights"] = property(_flat_weights, lambda self, value: None)
    namespace["__reduce_ex__"] = lambda self, protocol: (_rebuild, (base, names), self.__getstate__())
    namespace["__module__"] = base.__module__
    namespace["__qualname__"] = f"Parallel{base.__qualname__}"
    namespace["__doc__"] = f"{base.__qualname__} whose parameters are gathered for each forward."
    return type(f"Parallel{base.__name__}", (base,), namespace)


def has_forward(kind: type[nn.Module]) -> bool:
    """Whether modules of this class are called, unlike a ParameterList."""
    return kind.forward is not nn.Module.forward


def _rebuild(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    kind = parallel_class(base, names)
    return kind.__new__(kind)


def _parameter_property(name: str) -> property:
    def get(self: nn.Module) -> Tensor | None:
        parameter = self._parameters[name]
        scope: Scope = self.__dict__[SCOPE]
        if parameter is None or not _in_use(scope.model):
            return parameter
        return _fetch(scope.model, scope.slots[name], parameter)

    return property(get, doc=f"The parameter {name}: whole while a forward runs, a DTensor otherwise.")


def _in_use(model: Model) -> bool:
    """Whether a forward runs, or a backward that recomputes a part of one."""
    if model.depth > 0:
        return True
    return not torch.compiler.is_dynamo_compiling() and torch._C._current_graph_task_id() != -1


def _scoped(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def scoped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        scope: Scope = self.__dict__[SCOPE]
        model = scope.model
        if scope.param_dtype is not None:
            args, kwargs = _cast((args, kwargs), scope.param_dtype)
        _privately(model.enter)
        try:
            if torch.compiler.is_dynamo_compiling():
                _gather_tied(scope)
                return forward(self, *args, **kwargs)
            if not model.reshards or hooks_in_force():
                return forward(self, *args, **kwargs)
            with model.known.hooks():
                return forward(self, *args, **kwargs)
        finally:
            _privately(model.leave)
            _let_go(scope)

    return scoped


def _privately(change: Callable[..., None], *args: Any) -> None:
    """Change our own state. Dynamo would refuse that inside a checkpointed region, and need not: it is undone there."""
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.utils._disable_side_effect_safety_checks_for_current_subtracer(change, *args)
    else:
        change(*args)


def _gather_tied(scope: Scope) -> None:
    """Under Dynamo, gather tied parameters before the first checkpointed region: both sides may need them."""
    if scope.model.depth == 1:
        for module, name in scope.tied:
            getattr(module, name)


def _let_go(scope: Scope) -> None:
    ended = scope.model.depth == 0
    for slot in scope.model.slots if ended else scope.inside:
        if slot.gathered is not None and (ended or not slot.keep):
            _privately(slot.hold, None, None)
    if ended and not torch.compiler.is_dynamo_compiling():
        scope.model.known.clear()


def _cast(inputs: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)


def _fetch(model: Model, slot: Slot, parameter: Tensor) -> Tensor:
    if slot.gathered is not None and slot.source is parameter:
        return slot.gathered
    if not isinstance(parameter, DTensor):
        raise WeftError(
            f"parameter {slot.name} is no longer a DTensor; keep the parameters that data_parallel made, "
            "and load values into them with load_state_dict"
        )
    whole = _gather(model, slot, parameter)
    if slot.tensor_parallel is not None:
        whole = _as_before(whole, parameter, slot.tensor_parallel)
    if model.depth > 0:  # otherwise nobody would let go of it
        _privately(slot.hold, parameter, whole)
    return whole


def _gather(model: Model, slot: Slot, parameter: DTensor) -> Tensor:
    shard = parameter.to_local()
    if not slot.reshard:
        return _apply(shard, slot.route)
    if torch.compiler.is_dynamo_compiling():
        again: Tensor = checkpoint(_apply, shard, slot.route, use_reentrant=False, preserve_rng_state=False)
        return again
    whole = _apply(shard, slot.route)
    if model.depth > 0:
        model.known.add(whole, Recipe(slot.name, parameter, slot.route))
    return whole


def _apply(shard: Tensor, route: Route) -> Tensor:
    whole: Tensor = Gather.apply(shard, route)  # type: ignore[no-untyped-call]
    return whole


def _as_before(local: Tensor, parameter: DTensor, layout: TensorParallel) -> Tensor:
    return DTensor.from_local(
        local, layout.mesh, layout.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _flat_weights(self: nn.RNNBase) -> list[Tensor | None]:
    return [getattr(self, name, None) for name in self._flat_weights_names]
