"""What planning one case and sweeping over many share: where the step comes from, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from weft.cli.common import read_program
from weft.cli.progress import capture_progress
from weft.cli.script import Script, mesh_text, opened
from weft.cost import Machine
from weft.errors import OptionError
from weft.ir.notebook import shown
from weft.ir.program import Program
from weft.ir.text import counted
from weft.optimizer import Optimized, optimize, parse_bytes
from weft.passes import Pass
from weft.pipeline import Stage
from weft.sim.units import size_text
from weft.verify import verify

MOST_RANKS = 1 << 20  # as many as a group in the text form may have


@dataclass(frozen=True)
class Case:
    """What a step is planned for. `world_size` is None for a program, which has its ranks already.

    `machine_text` is the machine as it was typed: two files may describe machines of one name. `limit_text` is the
    memory limit as it was typed, "" for none.
    """

    world_size: int | None
    machine: Machine
    memory_limit: int | None
    machine_text: str
    limit_text: str

    @staticmethod
    def of(world_size: str | None, machine: str, memory_limit: str | None) -> Case:
        """A case as it was typed; an error says what cannot be used."""
        limit = parse_bytes(memory_limit) if memory_limit is not None else None
        return Case(_ranks(world_size), Machine.load(machine), limit, machine, memory_limit or "")

    def __str__(self) -> str:
        ranks = [counted(self.world_size, "rank")] if self.world_size is not None else []
        limit = [f"memory limit {size_text(self.memory_limit)}"] if self.memory_limit is not None else []
        return ", ".join([*ranks, shown(self.machine.name), *limit])


@dataclass(frozen=True)
class Planned:
    """A step that was optimised for a case. `stages` are all passes that ran, whether their result was kept or not."""

    case: Case
    program: Program
    made: Optimized
    stages: tuple[Stage, ...]
    mesh: str = ""

    @property
    def about(self) -> str:
        """For what it was planned, in a line."""
        return f"{self.case}{f', mesh {self.mesh}' if self.mesh else ''}, {counted(len(self.program), 'op')}"


Steps = Callable[[Case], tuple[Program, str]]  # the step for a case, and the mesh that it runs on


@contextmanager
def steps_of(path: str, cases: Sequence[Case]) -> Iterator[Steps]:
    """The steps of a script, or the program in a file or on standard input. A step is captured once for a world size.

    What can be told to be wrong is told at once, before the first step is captured.
    """
    sizes = {case.world_size for case in cases}
    if not path.endswith(".py"):
        if sizes != {None}:
            raise OptionError(
                f"{path} is a program, whose ranks are what they are: a world size goes with a script (.py)"
            )
        program = read_program(path)
        verify(program)
        yield lambda case: (program, "")
        return
    if None in sizes:
        raise OptionError(f"for how many ranks? {path} is a script, which needs --world-size")
    with opened(path) as script:
        meshes = {size: mesh_text(script.mesh(size)) for size in sizes if size is not None}
        known: dict[int, Program] = {}

        def step(case: Case) -> tuple[Program, str]:
            size = case.world_size
            assert size is not None, "refused above"
            if size not in known:
                known[size] = _captured(script, size)
            return known[size], meshes[size]

        yield step


def planned(steps: Steps, case: Case, passes: Sequence[Pass]) -> Planned:
    """The step, optimised for a case."""
    program, mesh = steps(case)
    stages: list[Stage] = []
    with capture_progress(f"optimising for {case}") as progress:

        def watched(stage: Stage) -> None:
            stages.append(stage)
            progress(f"{stage.plan.pass_text} done", len(stage.program))

        made = optimize(program, cost=case.machine, passes=passes, memory_limit=case.memory_limit, watch=watched)
    return Planned(case, program, made, tuple(stages), mesh)


def _captured(script: Script, world_size: int) -> Program:
    with capture_progress(f"capturing for {counted(world_size, 'rank')}") as progress:
        program = script.capture(world_size, progress)
    verify(program)
    return program


def _ranks(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 0 < int(text) <= MOST_RANKS):
        raise OptionError(f"{shown(text, 40)!r} is no number of ranks; write one from 1 to {MOST_RANKS:,}, such as 64")
    return int(text)
