"""The backend of `torch.compile`: by name, `torch.compile(model, backend="weft")`, or through `weft.compile`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._inductor import config, list_mode_options
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._ops import OpOverload
from torch.fx import GraphModule

from weft.errors import AgreementError
from weft.fx import to_fx
from weft.run import plan_cache
from weft.run.claims import Launches, joined
from weft.run.consent import alone, consent, this_rank
from weft.run.decisions import Decision, decide_together, role_of
from weft.run.gathers import keep_gathers_apart
from weft.run.hook import WeftPass, patches
from weft.run.reports import Report
from weft.run.session import SESSION
from weft.run.settings import Settings

# The libraries of operators that communicate.
_COMMUNICATING = ("_c10d_functional", "c10d", "c10d_functional", "symm_mem")


def compile(  # noqa: A001
    model: Callable[..., Any], *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any
) -> Any:
    """`torch.compile` with Weft.

    Options, all of which have a default: `machine`, `memory_limit`, `passes`, `mode` ("inductor" or "eager"),
    `compute_estimator`, `collective_estimator`, `custom_runtime_estimation`, `agreement_timeout_s` and
    `on_disagreement`; `weft.run.Settings` tells about each.
    """
    Settings.of(options)  # what is wrong is said here, and not when the model is first called
    return torch.compile(model, backend=backend, fullgraph=fullgraph, dynamic=dynamic, options=options)


def backend(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Compile what Dynamo traced. `mode` is one of Inductor's, such as "max-autotune"; `options` are those of
    `weft.compile`."""
    settings = Settings.of(options).on(_devices(inputs))
    keep_gathers_apart()
    if settings.mode == "eager":
        return _eager(module, inputs, settings)
    # On a hit, the cache of AOTAutograd would bring back graphs without asking anybody; Inductor's remains.
    with functorch_config.patch(enable_autograd_cache=False):
        return compile_fx(
            module, inputs, inner_compile=_Inductor(settings), config_patches=list_mode_options(mode or "default")
        )


@dataclass(frozen=True)
class _Inductor:
    """Compiles one graph with Inductor, with Weft in it if it communicates and the ranks agree."""

    settings: Settings

    def __call__(self, module: GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        if not _communicates(module):
            return compile_fx_inner(module, inputs, **how)
        spare = None if alone() else _copied(module)  # compiling changes the graph
        compiled, decided = self._compiled(module, inputs, how, WeftPass(self.settings))
        if decided is None:
            return compiled
        launches, own = decided
        reports = own

        def follow(agreed: Sequence[str]) -> Launches:
            nonlocal compiled, reports
            assert spare is not None, "one alone agrees"
            compiled, (launched, reports) = self._following(_copied(spare), inputs, how, agreed)
            return launched

        verdict = consent(launches, self.settings, follow)
        if not verdict.agreed:
            assert spare is not None, "one alone agrees"
            compiled = _compiled_again(spare, inputs, how)
            reports = [replace(report, used=False, why=verdict.why) for report in own]
        _tell(reports)
        return compiled

    def _following(
        self, module: GraphModule, inputs: Sequence[Any], how: Mapping[str, Any], agreed: Sequence[str]
    ) -> tuple[Any, tuple[Launches, Sequence[Report]]]:
        """The graph compiled so that it launches what others do, and what was decided about it. AgreementError if it
        cannot launch that."""
        _forget_strides()
        try:
            compiled, decided = self._compiled(module, inputs, how, WeftPass(self.settings, agreed))
        except InductorError as error:
            raise error.inner_exception if isinstance(error.inner_exception, AgreementError) else error from error
        assert decided is not None, "it communicated a moment ago"
        return compiled, decided

    def _compiled(
        self, module: GraphModule, inputs: Sequence[Any], how: Mapping[str, Any], hook: WeftPass
    ) -> tuple[Any, tuple[Launches, Sequence[Report]] | None]:
        """The compiled graph, and what was decided about it, now or when it came into Inductor's cache."""
        spare = _copied(module)
        with config.patch(patches(hook)):
            compiled = compile_fx_inner(module, inputs, **how)
            key = compiled._fx_graph_cache_key
            if not hook.ran and key is not None:
                if (known := plan_cache.load(_kept_under(key, compiled))) is not None:
                    return compiled, (known[0], [replace(report, cached=True) for report in known[1]])
                with config.patch(fx_graph_cache=False, fx_graph_remote_cache=False):
                    compiled = _compiled_again(spare, inputs, how)
        if not hook.decisions:
            return compiled, None
        launches, reports = _told(hook.decisions)
        if key is not None:
            plan_cache.save(_kept_under(key, compiled), launches, reports)
        return compiled, (launches, reports)


def _told(decisions: Sequence[Decision]) -> tuple[Launches, list[Report]]:
    """What was decided for a graph and the regions inside of it: what to claim, and what to report."""
    return joined([one.launches for one in decisions]), [one.report for one in decisions]


def _tell(reports: Iterable[Report]) -> None:
    for report in reports:
        SESSION.add(report, this_rank())


def _kept_under(key: str, compiled: Any) -> str:
    """The name of what was decided for a compiled graph.

    Inductor keeps several graphs under one key, of which it takes the first whose guards hold. So the code that was
    generated tells them apart; its comments count the graphs of a process, and are left out.
    """
    code = "\n".join(line for line in compiled.source_code.splitlines() if not line.lstrip().startswith("#"))
    return f"{key}-{sha256(code.encode()).hexdigest()[:16]}"


def _compiled_again(module: GraphModule, inputs: Sequence[Any], how: Mapping[str, Any]) -> Any:
    """A graph compiled a second time, as if it had not been compiled before."""
    _forget_strides()
    return compile_fx_inner(module, inputs, **how)


def _forget_strides() -> None:
    """Inductor tells AOTAutograd how results are laid out, and expects to do so once for each graph."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()


def _eager(module: GraphModule, inputs: Sequence[Any], settings: Settings) -> Callable[..., Any]:
    """Without Inductor: AOTAutograd's graphs, changed, and run op by op."""

    def compiled(is_inference: bool) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        return lambda graph, _: make_boxed_func(_improved(graph, settings, is_inference))

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=compiled(False),
        bw_compiler=compiled(False),
        inference_compiler=compiled(True),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(module, inputs)
    return made


def _improved(module: GraphModule, settings: Settings, is_inference: bool) -> GraphModule:
    if not _communicates(module):
        return module
    decision = decide_together(module.graph, settings, role_of(module.graph, is_inference))
    return module if decision is None else to_fx(decision.program)


def _communicates(module: GraphModule) -> bool:
    """Whether a graph communicates, or a region inside of it."""
    graphs = [one.graph for one in module.modules() if isinstance(one, GraphModule)]
    called = (node.target for graph in graphs for node in graph.nodes if node.op == "call_function")
    return any(isinstance(target, OpOverload) and target.namespace in _COMMUNICATING for target in called)


def _copied(module: GraphModule) -> GraphModule:
    """The module with a graph of its own, whose nodes share what they tell of their values; so for regions in it."""
    copied = GraphModule(module, copy.deepcopy(module.graph))
    copied.meta.update(module.meta)
    for name, child in copied.named_children():
        if isinstance(child, GraphModule):
            setattr(copied, name, _copied(child))
    return copied


def _devices(inputs: Iterable[Any]) -> list[torch.device]:
    return [value.device for value in inputs if isinstance(value, torch.Tensor)]
