"""What it adds to compute, at least, if a matmul carries a collective out inside it. docs/bounds.md has the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from weft.analysis.insides import Neighbours, insides
from weft.analysis.kernels import input_specs
from weft.analysis.traffic import total_bytes
from weft.cost.model import CostModel, SymmetricModel
from weft.ir.program import Program
from weft.sim.beside import beside_us
from weft.sim.floors import ways_of

_MANY = 4  # matmuls of one collective: which of more than these would be done with it is not asked


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
    between, ranks = sum(us[one] for one in way.between), start.comm.group.size
    if len(way.matmuls) > _MANY:
        return fixed + travel - between - sum(us[one] for one in way.matmuls)
    added = []
    for some in _some(way.matmuls):
        ops = [(program.ops[one], input_specs(program, program.ops[one])) for one in some]
        apart, as_one = (max(work, work / ranks + travel) for work in cost.multiplied_us(ops, ranks))
        added.append(min(apart, as_one + beside_us(program, cost, some)) - sum(us[one] for one in some))
    return fixed + min(added) - between


def _some(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Every choice of one or more."""
    return chain.from_iterable(combinations(places, count) for count in range(1, len(places) + 1))


def _lower(us: list[float], places: Sequence[int], by: float) -> None:
    """Take so much from what these ops take, as far as there is anything to take."""
    for place in places:
        less = min(us[place], by)
        us[place] -= less
        by -= less
