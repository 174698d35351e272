"""Runs passes one after the other: verify after each, time each, collect remarks, write a reproducer on failure."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from weft.cost.model import CostModel
from weft.errors import OptionError, PassError, PlanError, WeftError
from weft.ir.program import Program
from weft.ir.text import print_program
from weft.passes import PASSES, Context, Pass, Plan, Remark, parse_pipeline, pass_text
from weft.verify import verify

REPLAY = "# weft opt -p "  # the first line of a reproducer says how to replay it


@dataclass(frozen=True)
class Stage:
    """One pass that ran: what it decided, what it made, and the seconds that each part took."""

    plan: Plan
    program: Program
    plan_s: float
    apply_s: float
    verify_s: float


@dataclass(frozen=True)
class Result:
    """What a pipeline made of a program."""

    program: Program
    stages: tuple[Stage, ...]
    remarks: tuple[Remark, ...]


def run(
    program: Program,
    passes: Iterable[Pass],
    *,
    cost: CostModel | None = None,
    memory_limit: int | None = None,
    verify_each: bool = True,
    reproducers: Path | None = None,
    watch: Callable[[Stage], None] = lambda stage: None,
) -> Result:
    """Put a program through passes.

    A pass that raises, or whose result breaks a rule, ends the run with a PassError that names a reproducer: a file
    in `reproducers` (by default the system's temporary directory) which `weft opt` replays. `cost` and
    `memory_limit`, in bytes, are for passes that decide by them. `watch` is called after each pass.
    """
    stages: list[Stage] = []
    remarks = list(_barriers(program))
    for one in passes:
        before = stages[-1].program if stages else program
        try:
            stage = _stage(before, one, Context.of(before, cost, memory_limit), verify_each)
        except OptionError:
            raise  # the user's, not the pass's
        except Exception as cause:
            written = write_reproducer(before, pass_text(one), reproducers)
            given = {"--machine": cost, "--memory-limit": memory_limit}
            options = tuple(option for option, value in given.items() if value is not None)
            raise PassError(pass_text(one), cause, written, options) from cause
        stages.append(stage)
        remarks += stage.plan.remarks
        watch(stage)
    return Result(stages[-1].program if stages else program, tuple(stages), tuple(remarks))


def carry_out(program: Program, plan: Plan) -> Program:
    """Do what a plan says, and verify it. PlanError if the plan is not for this program."""
    passes = parse_pipeline(plan.pass_text, PASSES)
    if len(passes) != 1:
        raise PlanError(f"a plan is that of one pass, and this one names {len(passes)}: {plan.pass_text[:80]!r}")
    (one,) = passes
    try:
        made = one.apply(program, plan)
    except WeftError:
        raise
    except Exception as cause:  # a plan from a file may say anything; what a pass decided can be carried out
        why = f"{type(cause).__name__}: {cause}"
        raise PlanError(f"the plan of {plan.pass_text} cannot be carried out on this program: {why[:200]}") from cause
    verify(program, made, reorders=one.reorders)
    return made


def write_reproducer(program: Program, pipeline: str, directory: Path | None = None) -> str | None:
    """Write the program with the pipeline that fails on it. None if the place cannot be written to."""
    text = f"{REPLAY}{shlex.quote(pipeline)}\n{print_program(program)}"
    name = f"weft-repro-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.weft"
    path = (directory or Path(tempfile.gettempdir())) / name
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None  # the failure itself is still reported; a full disk must not hide it
    return str(path)


def read_replay(text: str) -> str | None:
    """The pipeline that a reproducer's first line names, if it is one."""
    first = text.split("\n", 1)[0]
    if not first.startswith(REPLAY):
        return None
    try:
        words = shlex.split(first.removeprefix(REPLAY))
    except ValueError:  # a quotation that does not end
        return None
    return words[0] if len(words) == 1 else None


def _stage(before: Program, one: Pass, context: Context, verify_each: bool) -> Stage:
    started = perf_counter()
    plan = one.plan(before, context)
    planned = perf_counter()
    made = one.apply(before, plan)
    applied = perf_counter()
    unchanged = made.ops is before.ops and made.outputs is before.outputs  # then there is nothing to prove
    if verify_each and not unchanged:
        verify(before, made, reorders=one.reorders)
    return Stage(plan, made, planned - started, applied - planned, perf_counter() - applied)


def _barriers(program: Program) -> Iterable[Remark]:
    for op in program.ops:
        if op.traits.barrier:
            what = "communicates in a way that Weft does not know" if op.traits.communicates else "is unknown to Weft"
            yield Remark("import", op.name, "note", f"{op.target} {what}: nothing moves across it")
