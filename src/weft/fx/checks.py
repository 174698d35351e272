"""What `capture` and `capture_compiled` cannot take, refused in words that name the place and say what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import StackSummary, walk_tb
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.exc import TorchRuntimeError, UncapturedHigherOrderOpError, Unsupported, UserError
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from weft.errors import GraphError, WeftError
from weft.fx.collectives import is_collective
from weft.fx.frames import is_theirs
from weft.fx.places import called_at, place_among, place_in
from weft.fx.state import local, named_state

# Errors by which Dynamo says that it cannot trace something; any other error of its own is a defect.
_UNTRACEABLE = (Unsupported, UserError, TorchRuntimeError, UncapturedHigherOrderOpError)

_DISTRIBUTED = os.path.dirname(dist.__file__) + os.sep
_MAKE_A_WORLD = "capture inside weft.planning, or initialise torch.distributed first"
_EXPLANATION = re.compile(r"^ *(?:Explanation|Developer debug context): (.+)", re.MULTILINE)


def check_tensors(modules: list[nn.Module], args: Any, kwargs: Any) -> None:
    """Raise unless the tensors of a call, in its modules and its arguments, fit each other and the world."""
    state = [(f"{_kind(tensor)} {name}", tensor) for name, tensor in named_state(modules)]
    tensors = [*state, *_tensors("args", args), *_tensors("kwargs", kwargs)]
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            check_mesh(f"the mesh of {name}", tensor.device_mesh)
    _check_devices(tensors)


def check_mesh(name: str, mesh: DeviceMesh, *, whole: bool = False) -> None:
    """Raise unless there is a world that has room for a mesh, or that is the `whole` of it."""
    size = mesh.size()
    if not dist.is_initialized():
        raise GraphError(f"{name} takes {size} ranks and there is no process group, at {called_at()}; {_MAKE_A_WORLD}")
    world = dist.get_world_size()
    if size > world or (whole and size != world):
        raise GraphError(
            f"{name} takes {size} ranks and the world has {world}, at {called_at()}; "
            "capture in the world that the mesh was made for"
        )


def check_world(graph: Graph) -> None:
    """Raise if a traced graph communicates where there is no world: nobody would know which ranks a group has."""
    if dist.is_initialized():
        return
    for node in graph.nodes:
        if is_collective(node.target):
            raise _no_world(_at(place_in(node.meta.get("stack_trace") or "")))


def check_draws(graph: Graph) -> None:
    """Raise if a backward draws random numbers: a checkpointed region means those of its forward, and gets others."""
    for node in graph.nodes:
        if node.meta.get("autograd_backward") and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            at = _at(place_in(node.meta.get("stack_trace") or ""))
            raise GraphError(
                f"{node.target} is computed again in the backward, {at}, "
                "and a program cannot put the random generator back; take it out of the region that is checkpointed, "
                "or set its dropout to 0 for the capture, which changes nothing that is communicated"
            )


@contextmanager
def refusing() -> Iterator[None]:
    """Inside, the errors by which torch says that it cannot trace the user's code become GraphErrors."""
    try:
        yield
    except Exception as error:
        refused = _refusal(error)
        if refused is None:
            raise
        raise refused from None  # it names the place; torch's own frames would only hide it


def _refusal(error: Exception) -> GraphError | None:
    """What to tell somebody whose code could not be traced; None for an error that explains itself."""
    if isinstance(error, WeftError):
        return None
    frames = list(_frames(error))
    at = _at(place_among(frames))
    if not dist.is_initialized() and _wants_a_world(error, frames):
        return _no_world(at)
    if isinstance(error, DynamicOutputShapeException):
        return GraphError(
            f"the shape of a result depends on the values of a tensor, {at} ({error.func}), and a plan cannot know it; "
            "keep the shape and mask with torch.where, or keep the selection outside of the function that is captured"
        )
    if _decides_by_value(error):
        return GraphError(
            f"this step decides by the value of a tensor, {at}, and a plan cannot know it; compute both "
            "sides and choose with torch.where, or keep the decision outside of the function that is captured"
        )
    if isinstance(error, _UNTRACEABLE):
        return GraphError(
            f"torch.compile cannot take this as one graph, {at}: {_reason(error)}; see that it runs without "
            "torch.compile, then keep that call outside of what is captured, or make it an operator with "
            "torch.library.custom_op"
        )
    return None


def _at(place: str) -> str:
    return f"at {place}" if place else "somewhere"


def _no_world(at: str) -> GraphError:
    return GraphError(f"this communicates, {at}, and there is no process group; {_MAKE_A_WORLD}")


def _kind(tensor: Tensor) -> str:
    return "parameter" if isinstance(tensor, nn.Parameter) else "buffer"


def _tensors(name: str, given: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors among arguments, each with the expression that leads to it."""
    for path, leaf in pytree.tree_flatten_with_path(given)[0]:
        if isinstance(leaf, Tensor):
            yield f"{name}{pytree.keystr(path)}", leaf


def _check_devices(tensors: list[tuple[str, Tensor]]) -> None:
    """Raise if parameters are on several kinds of devices, or if some tensors are on meta and others are not.

    Inputs and buffers may be elsewhere, since a forward can move them, and numbers may be anywhere.
    """
    devices = [(name, tensor, local(tensor).device.type) for name, tensor in tensors if tensor.dim()]
    if not devices:
        return
    home_name, _, home = devices[0]
    for name, tensor, device in devices:
        movable = not isinstance(tensor, nn.Parameter) and "meta" not in (device, home)
        if device != home and not movable:
            raise GraphError(
                f"{name} is on {device} and {home_name} is on {home}, at {called_at()}; put the model and what it is "
                f'called with on one device, such as model.to_empty(device="{home}")'
            )


def _frames(error: Exception) -> Iterator[tuple[str, int]]:
    """The way to an error, outermost first: Dynamo's own account of the code that it traced, where there is one."""
    traced = getattr(error, "real_stack", None)
    if isinstance(traced, StackSummary):
        return ((frame.filename, frame.lineno or 0) for frame in traced)
    return ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))


def _wants_a_world(error: Exception, frames: list[tuple[str, int]]) -> bool:
    """Whether the user's code called into torch.distributed, and failed there."""
    behind: list[str] = []
    for file, _ in frames:
        behind = [] if is_theirs(file) else [*behind, file]
    # What Dynamo evaluates by itself leaves no frame, only the message.
    return any(file.startswith(_DISTRIBUTED) for file in behind) or "process group" in str(error)


def _decides_by_value(error: Exception) -> bool:
    if isinstance(error, Unsupported):
        return (error.gb_type or "").startswith("Data-dependent")
    if isinstance(error, UserError):
        error = error.__context__ if isinstance(error.__context__, Exception) else error
    return isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)


def _reason(error: Exception) -> str:
    """Torch's own reason in one line. It wraps what the code itself raised, which says more."""
    text = str(error)
    raised = "Observed exception" in text
    reasons = _EXPLANATION.findall(text)
    return str(reasons[-1 if raised else 0] if reasons else text.splitlines()[0]).rstrip(".")
