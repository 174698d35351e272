"""A graph that must launch what other ranks launch.

A rank that compiles a step once more by itself, since it alone saw another length, has no say: the others will not
compile, and go on with what was agreed upon. And ranks that have shards of different sizes go by the plan of the lowest
of them, if they came to others. So a rank puts the same collectives into the same buckets and launches them in the same
order, whatever it would have decided for its own sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from weft.analysis.dependencies import dependencies
from weft.analysis.orders import depth_first, reordered
from weft.analysis.windows import windows
from weft.cost.model import CostModel
from weft.errors import AgreementError, WeftError
from weft.ir.program import Program
from weft.optimizer import Optimized, optimize
from weft.passes import PASSES, Plan, parse_pipeline
from weft.passes.base import Context, Step, fingerprint
from weft.passes.combine import place
from weft.passes.dedupe import Dedupe
from weft.passes.duplicates import duplicates
from weft.passes.findings import Facts
from weft.passes.members import apply_buckets, bucket_step
from weft.pipeline import carry_out
from weft.run.claims import FEWER, launch_lines
from weft.run.settings import Settings
from weft.sim import simulate
from weft.verify import verify

# What `launches` writes of a collective or a bucket: which numbers are in it, and whether it has a result for each.
_LINE = re.compile(rf".* over group \d+ of \d+: (?P<members>\d+(, \d+)*)(?P<several> as \d+)?({FEWER})?")
_WAYS = ("default", "custom_op", "multidtype")  # through one buffer; the line does not say how it is filled


def followed(
    before: Program, agreed: Sequence[str], role: str, settings: Settings, cost: CostModel | None = None
) -> Optimized:
    """A graph that launches what others launch. AgreementError if this one cannot.

    `cost` is for settings that measure, which cannot tell by themselves what ops take.
    """
    cost, difference = settings.cost() if cost is None else cost, ""
    unclear = next((line for line in agreed if _LINE.fullmatch(line) is None), None)
    if unclear is not None:
        raise _cannot_follow(role, f"it is more than a bucket: {unclear}")
    less = _less(before, agreed, settings, cost)
    for way in _WAYS:
        try:
            made = _in_order(_merged(before, less, agreed, way), before, agreed)
            verify(less, made, reorders=True)
        except WeftError as error:
            difference = difference or str(error)
            continue
        lines = launch_lines(before, made)
        if lines == tuple(agreed):
            return _scheduled(before, made, agreed, cost)
        difference = difference or _first_difference(lines, agreed)
    raise _cannot_follow(role, difference)


def _cannot_follow(role: str, difference: str) -> AgreementError:
    return AgreementError(f"here, a {role} graph cannot launch what other ranks launch: {difference}")


def _less(before: Program, agreed: Sequence[str], settings: Settings, cost: CostModel) -> Program:
    """The program without the communication that the others left out.

    Whether something is sent once for several is a question of memory, so that the lines have the say.
    """
    program = before
    for one in settings.pipeline:
        if isinstance(one, Dedupe):
            plan = one.plan(program, Context.of(program, cost, settings.limit))
            rest = tuple(step for step in plan.steps if step.verb != "once")
            program = carry_out(program, replace(plan, steps=rest))
    shared = [{*_names(program, before, line)} for line in agreed if line.endswith(FEWER)]
    if not shared:
        return program
    alike = duplicates(Facts.of(program, None))
    found = ([name for name in step.ops if name in names] for step in alike for names in shared)
    steps = tuple(Step("once", tuple(names)) for names in found if len(names) > 1)
    return carry_out(program, Plan(Dedupe.name, fingerprint(program), steps))


def _merged(before: Program, program: Program, agreed: Sequence[str], way: str) -> Program:
    """The program with the buckets that the lines name; they number the collectives of what it was before."""
    found, steps = windows(program), []
    for line in agreed:
        names = _names(program, before, line)
        if len(names) > 1:
            if {*names} - found.keys() or place([found[name] for name in names]) is None:
                raise AgreementError(f"here, these have no place in common: {line}")
            way_of_it = "coalesced" if _read(line)["several"] else way
            steps.append(bucket_step(program, [found[name] for name in names], way_of_it))
    return apply_buckets(program, Plan("bucket", fingerprint(program), tuple(steps)))


def _names(program: Program, before: Program, line: str) -> list[str]:
    """The collectives of a program that stand for those of a line, each of them once."""
    stands = {source: op.name for op in program.communicating for source in op.sources or (op.name,)}
    numbers = [int(number) for number in _read(line)["members"].split(", ")]
    names = [before.communicating[number].name for number in numbers if number < len(before.communicating)]
    return [*dict.fromkeys(stands.get(name, name) for name in names)]


def _read(line: str) -> re.Match[str]:
    read = _LINE.fullmatch(line)
    assert read is not None, "lines that say more are not followed"
    return read


def _in_order(program: Program, before: Program, agreed: Sequence[str]) -> Program:
    """The program with its collectives launched in the order of the lines, where what they need allows it.

    A collective comes before all that are launched after it, so its place is at most theirs.
    """
    turn = {line: number for number, line in enumerate(agreed)}
    lines = dict(zip((op.name for op in program.communicating), launch_lines(before, program), strict=True))
    starts = sorted(program.communicating, key=lambda op: turn.get(lines[op.name], len(turn)))
    place_of = {position: (position, 0, 0) for position in range(len(program))}
    latest = len(program)
    for number, op in reversed([*enumerate(starts)]):
        latest = min(latest, program.index[op.name])
        place_of[program.index[op.name]] = (latest, -1, number)
    needs = [sorted(earlier, key=place_of.__getitem__) for earlier in dependencies(program).before]
    order = depth_first(sorted(place_of, key=place_of.__getitem__), needs)
    return reordered(program, [*order])


def _scheduled(before: Program, made: Program, agreed: Sequence[str], cost: CostModel) -> Optimized:
    """The same launches in the same order at better places, if there are such."""
    keeping = parse_pipeline("schedule{keep_order=true}", PASSES)
    better = optimize(made, cost=cost, passes=keeping)
    if launch_lines(before, better.program) == tuple(agreed):
        made = better.program
    return Optimized(simulate(before, cost), simulate(made, cost), (), ())


def _first_difference(lines: Sequence[str], agreed: Sequence[str]) -> str:
    for number, (here, there) in enumerate(zip(lines, agreed, strict=False)):
        if here != there:
            return f"launch {number} is '{here}' here and '{there}' there"
    return f"there are {len(lines)} launches here and {len(agreed)} there"
