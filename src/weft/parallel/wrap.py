"""`data_parallel`: a model made parallel over the data ranks, in place."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from weft.parallel.checks import Mode, check_divisor, check_mesh, check_modules, check_parameters, tensor_mesh
from weft.parallel.layout import Layout, tensor_parallel
from weft.parallel.modules import SCOPE, Model, Scope, Slot, has_forward, parallel_class


def data_parallel(
    model: nn.Module,
    mesh: DeviceMesh,
    mode: Mode = "replicate",
    *,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
    gradient_divisor: float = 1,
) -> nn.Module:
    """Make `model` parallel over the ranks of `mesh`, in place, and return it.

    - "replicate": every rank holds every parameter; gradients are all-reduced.
    - "fully_shard": parameters are sharded on dimension 0, gathered before use and, with `reshard_after_forward`,
      gathered again in the backward; gradients are reduce-scattered.
    - "hybrid_shard": `mesh` has two dimensions; sharded over the inner one, replicated over the outer one; gradients
      are reduce-scattered, then all-reduced.

    Gradients are averages over the ranks. Parameters become DTensors and buffers are left alone. Scalars are
    replicated. All ranks must hold the same values already: nothing is broadcast. Make the optimiser afterwards.

    With `param_dtype`, parameters are cast before they are gathered, and so are the floating-point tensors that a
    module with parameters is called with. Gradients travel in `reduce_dtype`, or else in the dtype that they have, and
    end in the parameter's own.

    Parameters that are DTensors already, from `parallelize_module` on another dimension of the mesh that `mesh` is a
    part of, keep that layout for their module and are made parallel over `mesh` besides.

    Parts of the model that were made parallel before keep their mesh, mode and dtypes. That is how experts, which are
    spread over some of the ranks, are averaged over the others alone. Such a gradient is a sum over the ranks whose
    tokens an expert sees: with their number as `gradient_divisor` it is the average over all ranks, like the others.
    """
    check_mesh(mesh, mode)
    check_modules(model)
    check_divisor(gradient_divisor)
    names = _names(model)
    check_parameters(names, _placed(model), mesh)
    shard_dim = {"replicate": None, "fully_shard": 0, "hybrid_shard": 1}[mode]
    layout = Layout.over(mesh, shard_dim, tensor_mesh(names, mesh), (param_dtype, reduce_dtype), gradient_divisor)
    placed = {}
    for parameter, aliases in names.items():
        new, route = layout.place(aliases[0], parameter)
        reshard = reshard_after_forward and route.shard_group is not None
        placed[parameter] = new, Slot(aliases[0], route, reshard, len(aliases) > 1, tensor_parallel(parameter))
    slots = {module: _replace(module, placed) for module in model.modules()}
    _change_classes(model, slots, param_dtype)
    return model


Slots = Mapping[nn.Module, dict[str, Slot]]


def _replace(module: nn.Module, placed: Mapping[nn.Parameter, tuple[nn.Parameter, Slot]]) -> dict[str, Slot]:
    """Put the new parameters in place; the slots of a module by attribute name."""
    if SCOPE in vars(module):
        return _scope(module).slots
    slots = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name], slots[name] = placed[parameter]
    return slots


def _change_classes(model: nn.Module, slots: Slots, param_dtype: torch.dtype | None) -> None:
    """Give each module that has parameters, or uses those of a child that is not called, its generated class.

    Modules that have it already join this model: they have to know when its forward runs and ends.
    """
    shared = Model(list(dict.fromkeys(slot for own in slots.values() for slot in own.values())))
    for module, own in slots.items():
        if SCOPE in vars(module):
            _scope(module).model = shared
            continue
        if module is not model and not own and not (has_forward(type(module)) and _uses_loose(module)):
            continue
        found = {slot: (part, name) for part in module.modules() for name, slot in slots[part].items()}
        tied = [place for slot, place in found.items() if slot.tied]
        vars(module)[SCOPE] = Scope(shared, param_dtype, own, list(found), tied)
        module.__class__ = parallel_class(type(module), tuple(own))


def _uses_loose(module: nn.Module) -> bool:
    """Whether some child that is never called itself, such as a ParameterList, holds parameters for this module."""
    loose = [child for child in module.children() if not has_forward(type(child))]
    return any(any(p is not None for p in child._parameters.values()) or _uses_loose(child) for child in loose)


def _scope(module: nn.Module) -> Scope:
    """What a module that is parallel knows about itself."""
    scope: Scope = vars(module)[SCOPE]
    return scope


def _placed(model: nn.Module) -> Set[nn.Parameter]:
    """The parameters of those parts of the model that are parallel already."""
    held = [module._parameters for module in model.modules() if SCOPE in vars(module)]
    return {parameter for parameters in held for parameter in parameters.values() if parameter is not None}


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter of the modules that are not parallel yet, with all the names that it goes by."""
    names: dict[nn.Parameter, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None and SCOPE not in vars(module):
                names.setdefault(parameter, []).append(f"{path}.{name}" if path else name)
    return names
