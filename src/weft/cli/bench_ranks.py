"""What the ranks of `weft bench` do: run a script's step as it is written and as Weft makes it, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils import _pytree as pytree

from weft.cli.common import warnings_told
from weft.cli.progress import stage_progress
from weft.cli.script import Script, opened
from weft.cost import Machine
from weft.errors import WeftError
from weft.fx.state import local, stateful
from weft.run.alone import compute_alone
from weft.run.hosts import Hosts
from weft.run.measuring import EFFORT, Call, Spread, calibrated, measured, slowdown
from weft.run.samples import Effort
from weft.run.steps import Step, captured_step, difference, held_tensors, planned_together
from weft.sim import Timeline, simulate

WRITTEN, CAPTURED = "as written", "captured"
_TRIES = 3  # of what is measured to see how much communication slows compute down


@dataclass(frozen=True)
class Task:
    """What ranks are to measure.

    rate: of the link, in bits per second; None for loopback.
    machine: to plan for; None for the one that is here, which is calibrated with `effort`.
    pipelines: passes by the names of their rows.
    """

    script: str
    ranks: int
    hosts: Hosts
    rate: float | None
    machine: Machine | None
    memory_limit: int | None
    pipelines: Mapping[str, str]
    steps: int
    effort: Effort = EFFORT


@dataclass(frozen=True)
class Row:
    """One way to run the step.

    took: what was measured, in microseconds.
    predicted_us, collectives: what the simulator says, and how many there are; None for the step as written.
    apart: the largest difference of any result from the step as written, relative to the largest number in it.
    """

    name: str
    took: Spread
    predicted_us: float | None
    collectives: int | None
    apart: float


@dataclass(frozen=True)
class Measured:
    """All ways, beginning with the step as written. `others`: the share of the cores that others had meanwhile."""

    machine: str
    rows: tuple[Row, ...]
    others: float


def measure(rank: int, task: Task) -> Measured:
    """What a rank finds; all find the same."""
    quiet = rank != 0
    with warnings_told(quiet), stage_progress(quiet) as stage, opened(task.script) as script:
        if task.rate is not None:
            task.hosts.set_rate(task.rate)
        stage(f"{task.script}: the first steps, as written")
        written = _Written(script, task.ranks)
        stage("capturing the step")
        made = written.captured()
        machine = _machine(task, made, stage)
        timelines = {CAPTURED: simulate(made.program, machine), **_planned(task, made, machine, stage)}
        calls = {name: _quiet(made.call(one.program)) for name, one in timelines.items()}
        stage("comparing results")
        apart = {name: written.apart(call) for name, call in calls.items()}
        stage(f"measuring {task.steps} steps of each, in turn")
        times, others = measured({WRITTEN: written.call, **calls}, task.steps)
    rows = [
        Row(name, times[name], one.step_us, len(one.program.starts), apart[name]) for name, one in timelines.items()
    ]
    return Measured(machine.name, (Row(WRITTEN, times[WRITTEN], None, None, 0.0), *rows), others)


class _Written:
    """The step of a script, and where it is after its second call, which is the one that is captured."""

    def __init__(self, script: Script, ranks: int) -> None:
        sizes = script.mesh(ranks)
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self._script = script
        self._step, self._args = script.built(mesh)
        self.call()  # an optimiser makes its state at its first step
        self._forget_gradients()
        self._random, self._before = torch.get_rng_state(), self._state()
        self._wanted = self._results(self.call())

    def call(self) -> Any:
        """The next step."""
        with self._script.users_code("the step"):
            return self._step(*self._args)

    def captured(self) -> Step:
        with self._script.users_code("the step"):
            return captured_step(self._step, self._args)

    def apart(self, call: Call) -> float:
        """By how much a call differs, in what it returns and leaves behind, from the second step as written."""
        torch.set_rng_state(self._random)
        for name, tensor in self._tensors().items():
            tensor.copy_(self._before[name])
        returned = [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, Tensor)]
        state = self._tensors()
        return difference(self._wanted, [*returned, *(state[name] for name in self._before)])

    def _tensors(self) -> dict[str, Tensor]:
        return held_tensors(self._step, self._args)

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def _results(self, returned: Any) -> list[Tensor]:
        """What a step returns, the gradients that it leaves, and the state after it, in a program's order."""
        leaves = [local(leaf).detach() for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
        gradients = [local(one.grad).clone() for one in self._parameters() if one.grad is not None]
        self._forget_gradients()
        state = self._state()
        return [*leaves, *gradients, *(state[name] for name in self._before)]

    def _parameters(self) -> list[Tensor]:
        modules, _ = stateful(self._step, self._args, {})
        return [parameter for module in modules for parameter in module.parameters()]

    def _forget_gradients(self) -> None:
        for parameter in self._parameters():
            parameter.grad = None


def _machine(task: Task, made: Step, stage: Callable[[str], None]) -> Machine:
    """The machine to plan for. Over a link, the step's own compute tells how much communication slows it down."""
    if task.machine is not None:
        return task.machine
    stage("calibrating the processes and their link")
    machine = calibrated(task.effort)
    if task.rate is None:
        return machine
    try:
        alone = _quiet(compute_alone(made))
    except WeftError:
        return machine  # something is communicated that nothing can stand for: what was calibrated must do
    return replace(machine, compute_slowdown=slowdown(alone, task.rate, _TRIES))


def _planned(task: Task, made: Step, machine: Machine, stage: Callable[[str], None]) -> Mapping[str, Timeline]:
    found = {}
    for name, passes in task.pipelines.items():
        stage(f"optimising: {name}")
        found[name] = planned_together(made.program, machine, passes, memory_limit=task.memory_limit).after
    return found


def _quiet(call: Call) -> Call:
    """A captured step has its backward in it: autograd must not record it again."""

    def run() -> Sequence[Any]:
        with torch.no_grad():
            results: Sequence[Any] = call()
            return results

    return run
