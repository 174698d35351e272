"""Weft inside of Inductor: a pass after the gradients, and two that keep its order through the scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch._inductor import config
from torch._inductor.custom_graph_pass import (
    CustomInferenceAwareGraphPass,
    CustomSchedulerPass,
    get_custom_graph_passes,
)
from torch.fx import Graph

from weft.errors import OptionError
from weft.fx import relink
from weft.run.benchmark import present_device
from weft.run.claims import apart
from weft.run.consent import alone, group_lines
from weft.run.decisions import Decision, decide, decide_together, role_of
from weft.run.gathers import keep_gathers_apart
from weft.run.order import Chained, Planned
from weft.run.settings import Settings


class WeftPass(CustomInferenceAwareGraphPass):
    """Decides for a graph and the regions inside of it, and turns each into what was decided.

    `agreed` are launches that it must follow. What is decided is a function of the graph and of what `uuid` covers, so
    that Inductor may keep the result. `ran` tells whether it was called, which it is not for a graph that Inductor has
    in its cache. `decisions` are what it decided: Inductor calls it for nested regions first, and for the graph last.
    There is none for what does not communicate or cannot be read.
    """

    def __init__(self, settings: Settings, agreed: Sequence[str] | None = None) -> None:
        self._settings, self._agreed = settings, agreed
        self.ran = False
        self.decisions: list[Decision] = []

    def __call__(self, graph: Graph, is_inference: bool) -> None:  # type: ignore[override]  # as torch has it
        self.ran = True
        decision = decide(graph, self._settings, role_of(graph, is_inference), self._terms())
        if decision is not None:
            self.decisions.append(decision)
            relink(decision.program)

    def _terms(self) -> Sequence[str] | None:
        """What the next graph must launch, if it communicates; None if that is its own choice."""
        if self._agreed is None:
            return None
        parts, number = apart(self._agreed), len(self.decisions)
        return parts[number] if number < len(parts) else ()

    def uuid(self) -> str | None:
        """What Inductor's cache must tell apart: a graph names its groups, and times depend on where their ranks are.
        None keeps it from using its cache."""
        known = self._settings.uuid
        return None if known is None else "\n".join([known, *group_lines(), *(self._agreed or ())])


class AgreeingPass(WeftPass):
    """The same, on its own: it asks the other ranks, and reports.

    A graph that came out of Inductor's cache would not have been agreed upon. So between ranks, nothing is cached.
    It stays in Inductor's settings, which `torch.compile` copies, so it keeps no decision: that would hold a graph.
    """

    def __call__(self, graph: Graph, is_inference: bool) -> None:  # type: ignore[override]  # as torch has it
        self.ran = True
        decision = decide_together(graph, self._settings, role_of(graph, is_inference))
        if decision is not None:
            relink(decision.program)

    def uuid(self) -> str | None:
        return super().uuid() if alone() else None


def patches(hook: WeftPass) -> dict[str, Any]:
    """The settings of Inductor with which a pass runs and its order is kept. Passes of others run before it."""
    return {
        "post_grad_custom_post_pass": [*get_custom_graph_passes(config.post_grad_custom_post_pass), hook],
        "_pre_fusion_custom_pass": _only(config._pre_fusion_custom_pass, Chained()),
        "_post_fusion_custom_pass": _only(config._post_fusion_custom_pass, Planned(config.reorder_for_peak_memory)),
        "reorder_for_peak_memory": False,
    }


def install(**options: Any) -> None:
    """Put Weft into Inductor for the rest of the process, for all that `torch.compile(model)` compiles from now on.

    Takes what `weft.compile` takes, but for `mode`. Raises OptionError if it is installed already.
    """
    for name, value in _patches(options).items():
        setattr(config, name, value)


@contextmanager
def enabled(**options: Any) -> Iterator[None]:
    """Inside, Weft is in Inductor. A model is compiled when it is first called, and its backward at the first
    `backward`: both must happen inside."""
    with config.patch(_patches(options)):
        yield


def _patches(options: Mapping[str, Any]) -> dict[str, Any]:
    if options.get("mode", "inductor") != "inductor":
        raise OptionError('weft.install and weft.enabled put Weft into Inductor; for mode="eager" use weft.compile')
    if any(isinstance(one, WeftPass) for one in get_custom_graph_passes(config.post_grad_custom_post_pass)):
        raise OptionError("Weft is in Inductor already")
    keep_gathers_apart()
    return patches(AgreeingPass(Settings.of(options).on([present_device()])))


def _only(theirs: object, ours: CustomSchedulerPass) -> CustomSchedulerPass:
    if theirs is not None:
        raise OptionError(
            f"somebody else ({theirs!r}) has set Inductor's pass before or after fusion, where Weft keeps the order: "
            'there is room for one. weft.compile(mode="eager") does without'
        )
    return ours
