"""Origins: for every node that is traced, the module that made it, the line, and the parameter that it serves.

Torch keeps a stack of metadata while it traces. Here modules put their path on it when they are entered, and before
each backward every autograd node is told which forward line and module it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from traceback import StackSummary
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.distributed.tensor import DTensor
from torch.fx import Graph, Node, traceback
from torch.fx.experimental.proxy_tensor import get_innermost_proxy_mode, get_proxy_slot, has_proxy_slot
from torch.fx.proxy import TracerBase

from weft.fx.collectives import is_collective
from weft.fx.frames import is_theirs
from weft.fx.places import module_path

# Told at every op that is traced: where, which is the path of a module ("" outside of all) or "backward of" one, and
# how many ops there are by now.
Progress = Callable[[str, int], None]


class Origins:
    """The paths of modules, and the stack of those that are being run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.paths = {id(one): path for module in modules for path, one in module.named_modules()}
        self.stack: list[tuple[nn.Module, int]] = []  # each with the backward in which it was entered, or -1

    @contextmanager
    def within(self, module: nn.Module) -> Iterator[None]:
        """Inside, a module runs. That a forward raises is how recomputation ends as soon as it has what it needs."""
        self.stack.append((module, torch._C._current_graph_task_id()))
        self._publish()
        try:
            yield
        finally:
            self.stack.pop()
            self._publish()

    def _publish(self) -> None:
        backward = torch._C._current_graph_task_id()
        running = [module for module, entered in self.stack if entered == backward]
        known = {self.paths[id(one)]: type(one) for one in running if id(one) in self.paths}
        traceback.current_meta["nn_module_stack"] = {path: (path, kind) for path, kind in known.items()}

    def finish(self, graph: Graph) -> None:
        """Give nodes of the backward the module and the line of the forward node that they belong to.

        Those that have a module are what it computes again in the backward.
        """
        forward: dict[int, dict[str, Any]] = {}
        for node in graph.nodes:
            if node.meta.get("autograd_backward"):
                if node.meta.get("nn_module_stack"):
                    continue
                if (meta := forward.get(node.meta.get("seq_nr", -1))) is not None:
                    node.meta["fwd_nn_module_stack"] = meta["nn_module_stack"]
                    node.meta["stack_trace"] = meta.get("stack_trace", "")
            elif "seq_nr" in node.meta and node.meta.get("nn_module_stack"):
                forward.setdefault(node.meta["seq_nr"], node.meta)


@contextmanager
def reported(progress: Progress | None) -> Iterator[None]:
    """Inside, `progress` is told of every node that is traced, if there is somebody to tell."""
    if progress is None:
        yield
        return
    kept = TracerBase.create_node
    modules: dict[int, str] = {}  # by the number that a forward node shares with its backward

    def create_node(self: TracerBase, *args: Any, **kwargs: Any) -> Node:
        node = kept(self, *args, **kwargs)
        progress(_where(node, modules), len(self.graph.nodes))
        return node

    TracerBase.create_node = create_node  # type: ignore[method-assign]
    try:
        yield
    finally:
        TracerBase.create_node = kept  # type: ignore[method-assign]


def _where(node: Node, modules: dict[int, str]) -> str:
    number = node.meta.get("seq_nr", -1)
    if node.meta.get("autograd_backward"):
        return f"backward of {modules[number]}" if modules.get(number) else "backward"
    stack = node.meta.get("nn_module_stack")
    path = module_path(next(reversed(stack.values()))[0]) if stack else ""
    modules.setdefault(number, path)
    return path


@contextmanager
def recorded_origins(modules: Sequence[nn.Module]) -> Iterator[Origins]:
    """Inside, traced nodes get `nn_module_stack`, `stack_trace`, `seq_nr`, in the backward too."""
    origins = Origins(modules)
    with (
        traceback.preserve_node_meta(),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        _user_frames(),
        _told_backwards(),
        _followed(origins),
    ):
        yield origins


@contextmanager
def _followed(origins: Origins) -> Iterator[None]:
    """Inside, every module that is called is told of, from before its own hooks until after them: that is where tensor
    parallelism communicates. Hooks for all modules would be called too early for that."""
    kept = nn.Module._call_impl  # torch puts a `__call__` of its own in place while it traces

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with origins.within(self):
            return kept(self, *args, **kwargs)  # type: ignore[no-untyped-call]  # torch's

    nn.Module._call_impl = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._call_impl = kept  # type: ignore[method-assign]


@contextmanager
def _user_frames() -> Iterator[None]:
    """Inside, stack traces hold the user's frames: torch would keep those below a `forward`, its own among them."""
    kept = TracerBase._filter_traceback_frames

    def user_frames(self: TracerBase, user_stack_summary: StackSummary) -> StackSummary:
        return StackSummary.from_list([frame for frame in user_stack_summary if is_theirs(frame.filename)])

    TracerBase._filter_traceback_frames = user_frames  # type: ignore[method-assign]
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = kept  # type: ignore[method-assign]


@contextmanager
def _told_backwards() -> Iterator[None]:
    """Inside, every backward first tells autograd's nodes where they come from, and belongs to no module itself."""
    backward, grad = torch.autograd.backward, torch.autograd.grad
    torch.autograd.backward = _telling(backward)
    torch.autograd.grad = _telling(grad)
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad


def _telling(run: Callable[..., Any]) -> Callable[..., Any]:
    def told(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        setup_stacktrace_preservation_hooks([one.grad_fn for one in roots if one.grad_fn is not None])
        running = traceback.current_meta.pop("nn_module_stack", {})
        try:
            return run(outputs, *args, **kwargs)
        finally:
            traceback.current_meta["nn_module_stack"] = running

    return told


@contextmanager
def noted_gradients(parameters: Mapping[str, nn.Parameter]) -> Iterator[dict[Node, str]]:
    """Inside, a traced backward notes which node is the gradient of which parameter, as it arrives there.

    What the step does with it afterwards does not matter: it may be added to another one, clipped, used up.
    """
    noted: dict[Node, str] = {}

    def note(name: str, gradient: Tensor) -> None:
        mode = get_innermost_proxy_mode()
        held = gradient._local_tensor if isinstance(gradient, DTensor) else gradient
        if mode is not None and has_proxy_slot(held, mode.tracer):
            noted[get_proxy_slot(held, mode.tracer).proxy.node] = name

    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    hooks = [one.register_hook(partial(note, name)) for name, one in trained.items()]  # type: ignore[no-untyped-call]
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()


def note_served(graph: Graph, gradients: Mapping[Node, str]) -> None:
    """Say of each collective which parameter it serves, where it gathers one or reduces the gradient of one.

    `gradients` names the parameter of each node that is the gradient of one.
    """
    for node in graph.nodes:
        if is_collective(node.target):
            served = gathered(node) or _reduced(node, gradients)
            if served:
                node.meta["weft_serves"] = served


def gathered(node: Node) -> str | None:
    """The parameter that is made into this node's input by ops that have no other tensor."""
    return next((at.meta.get("weft_serves") for at in _makers(node) if at.op == "placeholder"), None)


def _reduced(node: Node, gradients: Mapping[Node, str]) -> str | None:
    """The parameter whose gradient this node's result is made into, or its input made from, in the same way."""
    found = next((gradients[at] for at in (*_heirs(node), *_makers(node)) if at in gradients), None)
    return f"gradient of {found}" if found else None


def _makers(node: Node) -> Iterator[Node]:
    """What a node is made from, and that from, as long as there is one tensor only."""
    while len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
        yield node


def _heirs(node: Node) -> Iterator[Node]:
    """The node, what is made of it, and of that, as long as there is one op only and it takes no other tensor."""
    while True:
        yield node
        users = [user for user in node.users if user.op == "call_function"]
        if len(users) != 1 or len(users[0].all_input_nodes) != 1:
            return
        node = users[0]
