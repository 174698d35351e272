"""Origins: for every node that is traced, the module that made it, the line, and the parameter that it serves.

Torch keeps a stack of metadata while it traces. Here modules put their path on it when they are entered, and before
each backward every autograd node is told which forward line and module it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import StackSummary
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.fx import Graph, Node, traceback
from torch.fx.proxy import TracerBase

from weft.fx.collectives import is_collective
from weft.fx.frames import is_theirs


class Origins:
    """The paths of modules, and the stack of those that are being run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.paths = {id(one): path for module in modules for path, one in module.named_modules()}
        self.stack: list[nn.Module] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(module)
        self._publish()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self.stack and self.stack.pop() is not module:
            pass  # a module that raised and was caught did not leave
        self._publish()

    def _publish(self) -> None:
        known = {self.paths[id(one)]: type(one) for one in self.stack if id(one) in self.paths}
        traceback.current_meta["nn_module_stack"] = {path: (path, kind) for path, kind in known.items()}

    def finish(self, graph: Graph) -> None:
        """Give nodes of the backward the module and the line of the forward node that they belong to."""
        forward: dict[int, dict[str, Any]] = {}
        for node in graph.nodes:
            if node.meta.get("autograd_backward"):
                node.meta.pop("nn_module_stack", None)
                if (meta := forward.get(node.meta.get("seq_nr", -1))) is not None:
                    node.meta["fwd_nn_module_stack"] = meta["nn_module_stack"]
                    node.meta["stack_trace"] = meta.get("stack_trace", "")
            elif "seq_nr" in node.meta and node.meta.get("nn_module_stack"):
                forward.setdefault(node.meta["seq_nr"], node.meta)


@contextmanager
def recorded_origins(modules: Sequence[nn.Module]) -> Iterator[Origins]:
    """Inside, traced nodes get `nn_module_stack`, `stack_trace`, `seq_nr`, in the backward too."""
    origins = Origins(modules)
    before = nn.modules.module.register_module_forward_pre_hook(origins.enter)
    behind = nn.modules.module.register_module_forward_hook(origins.leave)
    with (
        traceback.preserve_node_meta(),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        _user_frames(),
        _told_backwards(),
    ):
        try:
            yield origins
        finally:
            before.remove()
            behind.remove()


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
    """Inside, every backward first tells autograd's nodes where they come from."""
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
        return run(outputs, *args, **kwargs)

    return told


def note_served(graph: Graph, trained: Sequence[str]) -> None:
    """Say of each collective which parameter it serves, where it gathers one or reduces the gradient of one.

    `trained` names the parameters whose gradients are the last outputs of the graph.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    returned = list(output.args[0])
    gradients = dict(zip(returned[len(returned) - len(trained) :], trained, strict=True))
    for node in graph.nodes:
        if is_collective(node.target):
            served = _gathered(node) or _reduced(node, gradients)
            if served:
                node.meta["weft_serves"] = served


def _gathered(node: Node) -> str | None:
    """The parameter that is made into this node's input by ops that have no other tensor."""
    at = node
    while len(at.all_input_nodes) == 1:
        at = at.all_input_nodes[0]
        if at.op == "placeholder":
            return at.meta.get("weft_serves")
    return None


def _reduced(node: Node, gradients: dict[Node, str]) -> str | None:
    """The parameter whose gradient this node's result is made into, by ops that have no other tensor."""
    at = node
    while True:
        if at in gradients:
            return f"gradient of {gradients[at]}"
        users = [user for user in at.users if user.op == "call_function"]
        updated = {name for user in users if (name := _updated(user, at)) is not None}
        if updated:
            return f"gradient of {min(updated, key=len)}"
        if len(users) != 1 or len(users[0].all_input_nodes) != 1:
            return None
        at = users[0]


def _updated(user: Node, gradient: Node) -> str | None:
    """The parameter, or the optimiser's state for it, that an op updates in place with a gradient."""
    if not isinstance(user.target, torch._ops.OpOverload) or not user.target._schema.is_mutable:
        return None
    written = user.args[0]
    if isinstance(written, list | tuple):  # a list of tensors, updated with a list of gradients
        places = [arg.index(gradient) for arg in user.args[1:] if isinstance(arg, list | tuple) and gradient in arg]
        written = written[places[0]] if places else None
    return _parameter(written.meta.get("weft_serves")) if isinstance(written, Node) else None


def _parameter(name: str | None) -> str | None:
    """The parameter that an optimiser's state belongs to."""
    if name is None:
        return None
    return name.removesuffix(".exp_avg").removesuffix(".exp_avg_sq").removesuffix(".momentum_buffer")
