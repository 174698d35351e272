"""`capture_compiled`: the forward and the backward of a model as `torch.compile` hands them to a backend."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import remove_from_cache
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    AOTOutput,
    GradAOTOutput,
    PlainAOTInput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node

from weft.errors import GraphError
from weft.fx.checks import check_tensors, check_world, refusing
from weft.fx.importer import from_fx
from weft.fx.origins import Progress, gathered, note_served, reported
from weft.fx.places import called_at
from weft.fx.state import named_state, stateful
from weft.ir.program import Program


@dataclass(frozen=True)
class Compiled:
    """The two programs of a compiled model.

    - `forward` returns what the model returns, and behind it what it saves for the backward
    - `backward` takes what was saved, under the names that it has in the forward, and the gradients of the results
      (`tangents_1`, ...), and returns the gradients of the forward's inputs, in their order; None without gradients
    """

    forward: Program
    backward: Program | None


def capture_compiled(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> Compiled:
    """The programs that a backend of `torch.compile` is given when `model(*args, **kwargs)` is first called.

    That is AOTAutograd's forward and backward, divided by the min-cut partitioner as Inductor does, before any
    decomposition. Under `torch.no_grad` and the like there is only a forward. Shapes are static, and the graph is one:
    what would break it is an error. Works on real tensors and on fake ones, inside `weft.planning`; nothing is computed
    and no memory is needed. What the process compiled before stays compiled, and the model stays as it is.
    `progress` is told of every op as by `capture`; torch traces more than once, and begins to count anew each time.
    """
    named = dict(kwargs or {})
    modules, _ = stateful(model, args, named)
    check_tensors(modules, args, named)
    recorder = _Recorder({id(tensor): name for name, tensor in named_state(modules)})
    with reported(progress):
        _compile(recorder, model, tuple(args), named)
    if recorder.forward is None:
        raise GraphError(
            f"torch.compile made no graph, at {called_at()}: the model computes nothing with tensors, or torch.compile "
            "is switched off"
        )
    recorder.note_origins()
    return Compiled(_imported(recorder.forward), _imported(recorder.backward) if recorder.backward else None)


def _imported(module: GraphModule) -> Program:
    check_world(module.graph)
    return from_fx(module)


class _NotRunError(Exception):
    """Raised instead of running what was recorded."""


@dataclass
class _Recorder:
    """A backend that keeps the graphs it is given. `names` are those of the model's state, by its identity."""

    names: Mapping[int, str]
    inputs: list[str] = field(default_factory=list)  # the name of each input of Dynamo's graph, "" for an argument
    forward: GraphModule | None = None
    backward: GraphModule | None = None

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        placeholders = module.graph.find_nodes(op="placeholder")
        self.inputs = [self._name(node) for node in placeholders]
        compiler = aot_autograd(
            fw_compiler=self._keep_forward,
            bw_compiler=self._keep_backward,
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )
        # Otherwise the backward would be handed over only when somebody runs it.
        with functorch_config.patch(force_non_lazy_backward_lowering=True):
            compiler(module, inputs)
        return _stop

    def _name(self, node: Node) -> str:
        argument = node.meta.get("grapharg")
        return self.names.get(id(argument.example), "") if argument is not None else ""

    def _keep_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.forward = module
        return _stop

    def _keep_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.backward = module
        return _stop

    def note_origins(self) -> None:
        """Say of inputs which state they are, and of collectives which parameter they serve."""
        assert self.forward is not None
        for node in self.forward.graph.find_nodes(op="placeholder"):
            _note(node, self._input(node.meta.get("desc")))
        note_served(self.forward.graph, {})
        if self.backward is None:
            return
        known = {node.name: node for node in self.forward.graph.nodes}
        for node in self.backward.graph.find_nodes(op="placeholder"):
            if node.name in known:
                _note(node, known[node.name].meta.get("weft_serves") or gathered(known[node.name]))
        note_served(self.backward.graph, self._gradients(self.backward.graph))

    def _gradients(self, graph: Graph) -> dict[Node, str]:
        """The parameter of each gradient that the backward returns."""
        (output,) = graph.find_nodes(op="output")
        pairs = zip(output.args[0], output.meta["desc"], strict=True)
        found = {node: self._output(desc) for node, desc in pairs if isinstance(node, Node)}
        return {node: name for node, name in found.items() if name}

    def _input(self, desc: AOTInput | None) -> str:
        """The name of an input: of a DTensor, what a rank holds has the name of the whole."""
        if isinstance(desc, SubclassGetAttrAOTInput):
            return self._input(desc.base) if desc.attr == "_local_tensor" else ""
        return self.inputs[desc.idx] if isinstance(desc, PlainAOTInput) else ""

    def _output(self, desc: AOTOutput | None) -> str:
        if isinstance(desc, SubclassGetAttrAOTOutput):
            return self._output(desc.base) if desc.attr == "_local_tensor" else ""
        return self._input(desc.grad_of) if isinstance(desc, GradAOTOutput) else ""


def _note(node: Node, name: str | None) -> None:
    if name:
        node.meta["weft_serves"] = name


def _stop(*args: Any) -> None:
    raise _NotRunError


def _compile(recorder: _Recorder, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let Dynamo trace a call and hand it to a recorder, as if nothing had been compiled before, nor is afterwards.

    Dynamo keeps what it compiled by the code of the function, and puts names among its globals. So the function is a
    new one each time, with code and globals of its own.
    """
    call = FunctionType(_call.__code__.replace(), {"__builtins__": builtins})
    compiled = torch.compile(call, backend=recorder, fullgraph=True, dynamic=False)
    try:
        with suppress(_NotRunError), refusing():
            compiled(model, args, kwargs)
    finally:
        remove_from_cache(call)


def _call(model: Callable[..., Any], weft_args: tuple[Any, ...], weft_kwargs: dict[str, Any]) -> Any:
    return model(*weft_args, **weft_kwargs)  # the names are how `module_path` knows what is not the path of a module
