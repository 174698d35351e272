"""`optimize`: a step in, the same step with its communication merged and hidden out, with what was decided and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from math import inf
from typing import Any

from weft import pipeline
from weft.cost.machine import Machine
from weft.cost.model import CostModel
from weft.errors import OptionError, PlanError
from weft.ir.notebook import grid, listing
from weft.ir.pause import no_collection
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes import PASSES, Pass, Plan, Remark, parse_pipeline
from weft.pipeline import Stage
from weft.sim import Timeline, simulate
from weft.sim.summary import summary
from weft.sim.units import size_text, time_text

# Pipelines by name. "by_hand" has a bucket for each layer, which is prefetched one ahead. "safe" is predictable: the
# collectives keep their order, memory does not grow, nothing is searched.
PRESETS: Mapping[str, str] = {
    "default": "dedupe,gather_once,put_off,bucket_auto,halve,micro_pipeline,schedule",
    "by_hand": 'bucket{only="layers.*", by_module=true},schedule{reorder_compute=false, rule=one_ahead}',
    "safe": "schedule{max_memory_increase_gb=0.0, keep_order=true, reorder_compute=false, rounds=1}",
}

# What these save is seen only when all passes after them are done: then it is compared with doing without.
_IN_THE_END = frozenset(["gather_once", "put_off", "halve", "micro_pipeline"])


@dataclass(frozen=True)
class Optimized:
    """What `optimize` made of a program.

    - `before`, `after`: how the step ran, and how it runs
    - `plans`: what each pass decided that was kept, in order; `plan` is all of them as JSON, which `replay` takes
    - `remarks`: what was done and refused, and why
    """

    before: Timeline = field(repr=False)
    after: Timeline = field(repr=False)
    plans: tuple[Plan, ...] = field(repr=False)
    remarks: tuple[Remark, ...] = field(repr=False)

    @property
    def program(self) -> Program:
        return self.after.program

    @cached_property
    def plan(self) -> str:
        """All plans as one JSON text: the same on every rank that decided the same."""
        return json.dumps([json.loads(plan.to_json()) for plan in self.plans], sort_keys=True)

    @property
    def hash(self) -> str:
        """What ranks compare in order to agree."""
        return sha256(self.plan.encode()).hexdigest()

    def to_fx(self) -> Any:
        """The optimised step as a GraphModule."""
        return import_module("weft.fx").to_fx(self.program)

    def __str__(self) -> str:
        was, now = self.before, self.after
        collectives = counted(len(now.program.communicating), "collective")
        return (
            f"{len(was.program.communicating)} → {collectives}, step {time_text(was.step_us)} → "
            f"{time_text(now.step_us)}, exposed {time_text(was.exposed_us)} → {time_text(now.exposed_us)}, peak "
            f"{size_text(was.peak_bytes)} → {size_text(now.peak_bytes)}"
        )

    def _repr_html_(self) -> str:
        """What was gained and what passes said of it, for a notebook."""
        rows = [(row.name, row.before, row.after, row.change) for row in summary(self.before, self.after)]
        said = listing([str(remark) for remark in self.remarks], most=10) if self.remarks else ""
        return grid(("", "before", "after", "change"), rows) + said


def optimize(
    program: Any,
    machine: Machine | str | None = None,
    *,
    memory_limit: int | str | None = None,
    passes: str | Sequence[Pass] | None = None,
    cost: CostModel | None = None,
    watch: Callable[[Stage], None] = lambda stage: None,
) -> Optimized:
    """Make a step shorter: a Program, or a GraphModule.

    `machine` is a Machine, the name of a preset or a path; `cost` anything with `op_us` and `collective_us` in its
    place. `memory_limit` is in bytes, or such as "70GB". `passes` are passes, a pipeline as text, or the name of one of
    PRESETS. A pass whose result the simulator finds longer, or over the limit where it was not before, is left out,
    and a remark says so. `watch` is called after each pass.
    """
    model = _cost(machine, cost)
    limit = parse_bytes(memory_limit) if isinstance(memory_limit, str) else memory_limit
    started = program if isinstance(program, Program) else import_module("weft.fx").from_fx(program)
    with no_collection():
        return _optimized(started, model, limit, _passes(passes), watch)


@dataclass(frozen=True)
class _Course:
    """What some passes made of a step, and what they decided."""

    after: Timeline
    plans: tuple[Plan, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def then(self, other: _Course) -> _Course:
        return _Course(other.after, self.plans + other.plans, self.remarks + other.remarks)


def _optimized(
    started: Program, model: CostModel, limit: int | None, passes: Sequence[Pass], watch: Callable[[Stage], None]
) -> Optimized:
    before = simulate(started, model)
    course = _pursued(_Course(before), model, limit, passes, watch)
    said = tuple(dict.fromkeys(course.remarks))  # of a barrier, each pass says the same
    return Optimized(before, course.after, course.plans, said)


def _pursued(
    course: _Course, model: CostModel, limit: int | None, passes: Sequence[Pass], watch: Callable[[Stage], None]
) -> _Course:
    """All passes, without those that do harm."""
    for number, one in enumerate(passes):
        before = course.after
        result = pipeline.run(before.program, [one], cost=model, memory_limit=limit, watch=watch)
        same = result.program.ops is before.program.ops
        made = replace(before, program=result.program) if same else simulate(result.program, model)
        done = _Course(made, tuple(stage.plan for stage in result.stages), result.remarks)
        if not same and one.name in _IN_THE_END:
            rest = passes[number + 1 :]
            with_it = _pursued(done, model, limit, rest, watch)
            without = _pursued(_Course(before), model, limit, rest, watch)
            why = _refusal(without.after, with_it.after, limit)
            return course.then(with_it if why is None else _left_out(one, why, without))
        why = _refusal(before, made, limit)
        course = course.then(done if why is None else _left_out(one, why, _Course(before)))
    return course


def _left_out(one: Pass, why: str, course: _Course) -> _Course:
    return replace(course, remarks=(Remark(one.name, "", "refused", f"left out: {why}"), *course.remarks))


def replay(program: Program, plan: str, cost: CostModel) -> Optimized:
    """Carry out plans that were saved. PlanError if they are none, or were made for another program."""
    try:
        contents = json.loads(plan)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"these plans are not JSON: {error}") from None
    if not isinstance(contents, list):
        raise PlanError("this is not a list of plans")
    before = simulate(program, cost)
    plans = [Plan.from_json(json.dumps(content)) for content in contents]
    made = program
    for one in plans:
        made = pipeline.carry_out(made, one)
    return Optimized(before, simulate(made, cost), tuple(plans), ())


def parse_bytes(text: str) -> int:
    """How many bytes "70GB", "512 MiB" or "1e9" are. OptionError if it is none of that."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    nbytes = inf
    with suppress(ValueError):  # of such as "1.2.3GB", which is refused with the others
        if found is not None:
            nbytes = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ")
    if nbytes == inf:
        raise OptionError(f"{text!r} is no amount of memory; write such as 70GB, 512MiB or 1000000")
    return round(nbytes)


def _cost(machine: Machine | str | None, cost: CostModel | None) -> CostModel:
    if cost is not None:
        return cost
    if machine is None:
        raise OptionError("for which machine? Give a Machine, the name of a preset, or cost=")
    return Machine.load(machine) if isinstance(machine, str) else machine


def _passes(passes: str | Sequence[Pass] | None) -> Sequence[Pass]:
    if passes is None or isinstance(passes, str):
        text = PRESETS.get(passes or "default", passes or "")
        return parse_pipeline(text, PASSES)
    return passes


def _refusal(before: Timeline, after: Timeline, limit: int | None) -> str | None:
    if after.step_us > before.step_us:
        return f"the step would take {after.step_us - before.step_us:,.1f} us longer"
    if limit is not None and after.peak_bytes > max(limit, before.peak_bytes):
        return f"it would need {after.peak_bytes / 1e9:,.2f} GB, and may have {limit / 1e9:,.2f} GB"
    return None
