"""What it adds to compute, at least, if a matmul carries a collective out inside it. docs/bounds.md has the proof."""

from __future__ import annotations

from collections.abc import Sequence

from weft.analysis.insides import Neighbours, insides
from weft.analysis.kernels import input_specs
from weft.analysis.traffic import total_bytes
from weft.cost.model import CostModel, SymmetricModel
from weft.ir.program import Program
from weft.sim.floors import ways_of


def extras(program: Program, cost: CostModel, us: list[float]) -> dict[int, float]:
    """For each start that might be inside a matmul, by position, what that adds to compute at the least.

    `us` is what ops take. Where an op with a collective inside it may take less than the ops that it does away with,
    it adds nothing, and `us` of these is lowered.
    """
    if not isinstance(cost, SymmetricModel):
        return {}
    found: dict[int, float] = {}
    taken = [*us]
    for place, ways in insides(program).items():
        comm = program.ops[place].comm
        if comm is None or not cost.is_symmetric(comm.group):
            continue
        added = [_added(program, cost, place, way, us) for way in ways]
        # Of an all-reduce, one half may be inside a matmul, or each half inside another one.
        least = min(*added, sum(added)) if len(added) > 1 else added[0]
        if least < 0:
            _lower(taken, [one for way in ways for one in (*way.between, *way.matmuls)], -least)
        found[place] = max(0.0, least)
    us[:] = taken
    return found


def _added(program: Program, cost: SymmetricModel, place: int, way: Neighbours, us: Sequence[float]) -> float:
    """What it adds if any of the matmuls are done with the collective, and nothing of what is between them and it."""
    start = program.ops[place]
    assert start.comm is not None, "a start communicates"
    half = ways_of(start.comm)[-1][0 if way.matmuls[0] < place else -1]  # of an all-reduce; otherwise itself
    fixed, travel = cost.inside_us(half, total_bytes(start))
    matmuls, ranks = [program.ops[one] for one in way.matmuls], start.comm.group.size
    least = cost.multiplied_us([(op, input_specs(program, op)) for op in matmuls], ranks)
    each = [*zip((us[one] for one in way.matmuls), least, strict=True)]
    faster = sum(max(0.0, whole - inside) for whole, inside in each)
    meanwhile = sum(max(0.0, whole - inside / ranks) for whole, inside in each)
    return fixed + max(-faster, travel - meanwhile) - sum(us[one] for one in way.between)


def _lower(us: list[float], places: Sequence[int], by: float) -> None:
    """Take so much from what these ops take, as far as there is anything to take."""
    for place in places:
        less = min(us[place], by)
        us[place] -= less
        by -= less
