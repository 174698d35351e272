"""What-if: a step planned for several world sizes, machines and memory limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from weft.cli.planning import Case, Planned, Steps, planned
from weft.cost.arithmetic import matmul_flops
from weft.errors import OptionError
from weft.ir.notebook import shown
from weft.passes import Pass
from weft.report.sweep import Point, Side
from weft.sim.timeline import Timeline
from weft.sim.units import size_text, time_text

SWEPT = ("world-size", "machine", "memory-limit")
_DEFAULT_MACHINE = "h100-ib400"

Typed = Mapping[str, str | None]  # what the plain options of these names say


def axes_of(sweeps: Sequence[str], typed: Typed) -> dict[str, tuple[str, ...]]:
    """The values to try, by name, in the order in which they were given."""
    axes: dict[str, tuple[str, ...]] = {}
    for text in sweeps:
        name, equals, rest = text.partition("=")
        values = tuple(value.strip() for value in rest.split(","))
        if name not in SWEPT or not equals or not all(values):
            example = "--sweep world-size=8,64,512"
            raise OptionError(f"{shown(text, 80)!r} is no sweep; write such as {example}: one of {', '.join(SWEPT)}")
        if name in axes or len(set(values)) < len(values):
            raise OptionError(f"--sweep {name} has something twice; give each name and each value once")
        if typed[name] is not None:
            raise OptionError(f"--{name} and --sweep {name} say two things: give one of them")
        axes[name] = values
    return axes


def cases_of(axes: Mapping[str, tuple[str, ...]], typed: Typed) -> list[Case]:
    """Every combination of the values; the last axis changes fastest."""
    return [_case({**typed, **dict(zip(axes, values, strict=True))}) for values in product(*axes.values())]


def points_of(steps: Steps, cases: Sequence[Case], passes: Sequence[Pass]) -> tuple[Point, ...]:
    """Each case planned, and how well it scales against the first with the same machine and memory limit."""
    points: list[Point] = []
    first: dict[tuple[str, int | None], Planned] = {}
    for case in cases:
        one = planned(steps, case, passes)
        base = first.setdefault((case.machine_text, case.memory_limit), one)
        work = _work_ratio(base, one)
        before, after = (
            _side(was, now, work)
            for was, now in [(base.made.before, one.made.before), (base.made.after, one.made.after)]
        )
        points.append(
            Point(case.world_size, case.machine_text, case.memory_limit, before, after, limit_text=case.limit_text)
        )
    return tuple(points)


def table(points: Sequence[Point], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """A header and a row for each point; scaling is shown where world sizes are swept."""
    scaling = "world-size" in axes
    header = ("step before", "step", "exposed", "of step", *(("efficiency",) if scaling else ()), "peak memory")
    rows = [(*axes, *header)]
    for point in points:
        after = point.after
        share = f"{after.exposed_us / after.step_us:.1%}" if after.step_us else ""
        figures = (time_text(point.before.step_us), time_text(after.step_us), time_text(after.exposed_us), share)
        efficiency = (f"{after.efficiency:.1%}",) if scaling else ()
        over = " (over the limit)" if point.memory_limit is not None and after.peak_bytes > point.memory_limit else ""
        peak = f"{size_text(after.peak_bytes)}{over}"
        rows.append((*(point.text(axis) for axis in axes), *figures, *efficiency, peak))
    return rows


def content(step: str, points: Sequence[Point]) -> dict[str, Any]:
    """The points as plain data."""
    return {"step": step, "points": [asdict(point) for point in points]}


def _case(typed: Typed) -> Case:
    machine = typed["machine"] if typed["machine"] is not None else _DEFAULT_MACHINE
    return Case.of(typed["world-size"], machine, typed["memory-limit"])


def _work_ratio(base: Planned, one: Planned) -> float:
    """How much a rank has to multiply, against the first: less where more ranks share the same work."""
    was, now = matmul_flops(base.program), matmul_flops(one.program)
    return now / was if was and now else 1.0


def _side(base: Timeline, one: Timeline, work: float) -> Side:
    efficiency = work * base.step_us / one.step_us if one.step_us else 1.0
    return Side(one.step_us, one.exposed_us, one.peak_bytes, efficiency)
