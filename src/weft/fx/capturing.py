"""`capture`: a module or a whole training step as a Program, without an accelerator and without the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from weft.fx.checks import check_draws, check_mesh, check_tensors, check_world, refusing
from weft.fx.importer import from_fx
from weft.fx.origins import Progress, note_served, noted_gradients, recorded_origins, reported
from weft.fx.state import State, fake, local, named_state, stateful, traced_state
from weft.fx.world import make_mesh, world
from weft.ir.program import Program


def capture(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    world_size: int | None = None,
    rank: int = 0,
    mesh: DeviceMesh | Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Program:
    """Trace `function(*args, **kwargs)`, a module or a step: forward, loss, backward, optimiser, whatever it does.

    Nothing is computed and no memory is needed. The tensors among the arguments are inputs of the program, and so is
    what the modules and optimisers among them hold (also those that the function closes over), under their own names.
    The program returns what the function returns, and then the gradients that it leaves on parameters.

    Without a process group, `world_size` makes one that nobody answers. `mesh` is checked against the world; given as
    names and sizes it is made, and handed to the function as the keyword `mesh`. Everything is put back afterwards.

    `progress(where, ops)` is called at every op that is traced, so it should be quick: `where` is the path of the
    module that is being traced, or "backward of" one, and `ops` is how many there are so far.
    """
    named = dict(kwargs or {})
    with _world(world_size, rank):
        if isinstance(mesh, Mapping):
            named["mesh"] = make_mesh(mesh)
        elif mesh is not None:
            check_mesh("the mesh", mesh, whole=True)
        program = from_fx(_trace(function, tuple(args), named, progress))
        return replace(program, rank=dist.get_rank() if dist.is_initialized() else None)


def _world(world_size: int | None, rank: int) -> AbstractContextManager[None]:
    if world_size is None:
        return nullcontext()
    if dist.is_initialized() and dist.get_world_size() == world_size:
        return nullcontext()
    return world(world_size, rank)


def _trace(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress | None
) -> GraphModule:
    modules, optimizers = stateful(function, args, kwargs)
    check_tensors(modules, args, kwargs)
    mode = _fake_mode([*modules], (args, kwargs))
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    with traced_state(modules, optimizers, mode) as state:

        def step(*tensors: Tensor) -> list[Any]:
            state.restart_scalars()
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = _relocated(tensor, leaves[place])
            again_args, again_kwargs = pytree.tree_unflatten(given, form)
            result = function(*again_args, **again_kwargs)
            grads = [parameter.grad for parameter in state.parameters.values() if parameter.grad is not None]
            return [local(leaf) if isinstance(leaf, Tensor) else leaf for leaf in (*pytree.tree_leaves(result), *grads)]

        inputs = [local(fake(leaves[place], mode)) for place in places]
        noting = noted_gradients(state.parameters)
        with refusing(), mode, reported(progress), recorded_origins(modules) as origins, noting as gradients:
            module = make_fx(step, record_stack_traces=True)(*inputs)
        _lift(module, state)
        origins.finish(module.graph)
    _drop_profiling(module.graph)
    module.graph.eliminate_dead_code()
    check_world(module.graph)
    check_draws(module.graph)
    note_served(module.graph, gradients)
    module.recompile()
    return module


def _fake_mode(modules: list[nn.Module], given: Any) -> FakeTensorMode:
    """The mode that the state already lives in, if it is fake; otherwise a new one."""
    for tensor in _tensors(modules, given):
        if isinstance(held := local(tensor), FakeTensor):
            return held.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def _tensors(modules: list[nn.Module], given: Any) -> Iterator[Tensor]:
    yield from (tensor for _, tensor in named_state(modules))
    yield from (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor))


def _relocated(traced: Tensor, like: Tensor) -> Tensor:
    """A traced input as the kind of tensor that the function was given."""
    if isinstance(like, DTensor):
        traced = DTensor(traced, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return traced.detach().requires_grad_() if like.requires_grad else traced


def _lift(module: GraphModule, state: State) -> None:
    """Turn constants that are state into inputs, one for each, behind the inputs that are there."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    made: dict[str, Node] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(module, str(node.target), None)
        if not isinstance(tensor, FakeTensor):
            continue  # a constant with a value: it stays one
        name = state.names.get(id(tensor), str(node.target))
        if name not in made:
            made[name] = _placeholder(graph, name, inputs[-1] if inputs else None)
            made[name].meta = {**node.meta, "val": tensor, "weft_serves": name}
            inputs.append(made[name])
        node.replace_all_uses_with(made[name])
        graph.erase_node(node)
    for name in [name for name, value in module.__dict__.items() if isinstance(value, FakeTensor)]:
        delattr(module, name)


def _placeholder(graph: Graph, name: str, behind: Node | None) -> Node:
    plain = re.sub(r"\W|^(?=\d)", "_", name)
    with graph.inserting_after(behind if behind is not None else graph._root):
        return graph.placeholder(plain)


def _drop_profiling(graph: Graph) -> None:
    """Ranges for the profiler are not part of a step."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "profiler" and not node.users:
            graph.erase_node(node)
