"""The shortest step over all legal orders of a small Program, found by CP-SAT. Prices must be whole microseconds."""

from __future__ import annotations

from itertools import combinations

from ortools.sat.python import cp_model

from weft.analysis import dependencies, pairs
from weft.cost.prices import Prices
from weft.ir import Program


def optimum(program: Program, priced: Prices) -> tuple[int, Program]:
    """The least step_us of any legal order, and the program in such an order.

    The same rules as `simulate`, without sharing of links and without slowdown: the compute stream runs one op at a
    time, a start and a wait are moments on it, a group's collectives run one at a time in the order of their launch.
    """
    model = cp_model.CpModel()
    horizon = round(sum(priced.us) + sum(priced.comm_us))
    begin = [model.new_int_var(0, horizon, op.name) for op in program.ops]
    size = [round(us) for us in priced.us]
    fly = {place: model.new_int_var(0, horizon, f"fly {place}") for place, op in enumerate(program.ops) if op.is_start}
    length = {place: round(priced.comm_us[place]) for place in fly}
    step = model.new_int_var(0, horizon, "step")
    for place, earlier in enumerate(dependencies(program).before):
        model.add(begin[place] + size[place] <= step)
        for other in earlier:
            model.add(begin[other] + size[other] <= begin[place])
    for place, flight in fly.items():
        model.add(begin[place] <= flight)
        model.add(flight + length[place] <= step)
    for wait, start in pairs(program).start.items():
        at = program.index[start]
        model.add(fly[at] + length[at] <= begin[program.index[wait]])
    _one_at_a_time(model, program, begin, size)
    _queues(model, program, begin, fly, length)
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    # In one moment: what takes no time goes first, and starts go in the order in which their collectives run.
    moments = {
        place: (solver.value(begin[place]), size[place] > 0, solver.value(fly[place]) if place in fly else 0)
        for place in _on_stream(program, size)
    }
    return round(solver.objective_value), _ordered(program, moments)


def _on_stream(program: Program, size: list[int]) -> list[int]:
    """What has its moment on the compute stream: everything but views."""
    return [place for place, op in enumerate(program.ops) if size[place] or op.is_start or op.is_wait]


def _one_at_a_time(model: cp_model.CpModel, program: Program, begin: list[cp_model.IntVar], size: list[int]) -> None:
    """Nothing happens on the compute stream while an op is at work there."""
    for one, other in combinations(_on_stream(program, size), 2):
        if size[one] or size[other]:
            first = model.new_bool_var("")
            model.add(begin[one] + size[one] <= begin[other]).only_enforce_if(first)
            model.add(begin[other] + size[other] <= begin[one]).only_enforce_if(~first)


def _queues(
    model: cp_model.CpModel,
    program: Program,
    begin: list[cp_model.IntVar],
    fly: dict[int, cp_model.IntVar],
    length: dict[int, int],
) -> None:
    """A group's collectives are launched in some order and run in that order, one at a time."""
    for one, other in combinations(fly, 2):
        mine, theirs = program.ops[one].comm, program.ops[other].comm
        assert mine is not None
        assert theirs is not None
        if mine.group.name != theirs.group.name:
            continue
        first = model.new_bool_var("")
        for earlier, later, chosen in ((one, other, first), (other, one, ~first)):
            model.add(begin[earlier] <= begin[later]).only_enforce_if(chosen)
            model.add(fly[earlier] + length[earlier] <= fly[later]).only_enforce_if(chosen)


def _ordered(program: Program, moments: dict[int, tuple[int, bool, int]]) -> Program:
    """The program in the order of its moments; views come with what needs them."""
    before = dependencies(program).before
    done: set[int] = set()
    order: list[int] = []
    for place in (*sorted(moments, key=lambda place: moments[place]), *range(len(program))):
        _put(place, before, done, order)
    return Program(tuple(program.ops[place] for place in order), program.outputs)


def _put(place: int, before: tuple[tuple[int, ...], ...], done: set[int], order: list[int]) -> None:
    if place in done:
        return
    for other in before[place]:
        _put(other, before, done, order)
    done.add(place)
    order.append(place)
