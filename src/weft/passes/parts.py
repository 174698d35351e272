"""A part of a Program as a Program of its own, to try things on: small, and tried once for all parts that are alike."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from weft.analysis.kernels import only_moves
from weft.analysis.orders import reordered
from weft.analysis.pairs import pairs
from weft.analysis.users import users
from weft.cost.model import CostModel
from weft.cost.prices import prices
from weft.ir.args import Arg, Ref, map_leaves
from weft.ir.program import Op, Program
from weft.ir.traits import BARRIER
from weft.passes.fitting_in import Limits
from weft.passes.listing import in_turn, listed
from weft.passes.placing import best_placement
from weft.passes.results import returned
from weft.sim.contract import contract
from weft.sim.simulate import simulate
from weft.sim.sketch import Run, Sketch

_HIDDEN = 0.05  # a collective of which less than this share is exposed counts as hidden
_LITTLE = 0.005  # of the step: where no more is exposed, everything counts as hidden
_REACH = 16  # how far ahead compute is looked for, in times of the longest that is exposed


def exposed(program: Program, cost: CostModel, memory_limit: int | None) -> list[Op]:
    """The collectives that simple overlap does not hide: launches and waits are moved, and nothing else."""
    priced = prices(program, cost)
    now = simulate(program, cost, priced=priced)
    if now.exposed_us <= _LITTLE * now.step_us:
        return []
    sketch = contract(program, priced)
    shares = _shares(sketch, best_placement(sketch, Limits(memory_limit)).run)
    return [op for op in program.starts if shares.get(op.name, 0.0) > _HIDDEN]


def part_of(program: Program, stretches: Iterable[Iterable[str]], others: Collection[str] = ()) -> Program:
    """For each stretch, all from the first of its ops to the last and what only moves that about right behind it, one
    stretch after the other with a barrier between, without other collectives than are among them: what those bring is
    given, as is all that comes from elsewhere. What is used later is returned, unless it is by one of the `others`
    alone."""
    chosen = [set(names) for names in stretches]
    places = [[program.index[name] for name in names] for names in chosen]
    covered = sorted({place for one in places for place in range(min(one), _moved_until(program, max(one)) + 1)})
    first = {min(one) for one in places} - {covered[0]}
    starts, collectives = pairs(program).start, set[str]().union(*chosen)
    inside: dict[str, Op] = {}
    given: dict[str, Op] = {}
    for place in covered:
        op = program.ops[place]
        if place in first:
            inside[f"before {op.name}"] = Op(f"before {op.name}", "barrier", traits=BARRIER)
        if op.is_start and op.name not in collectives:
            continue
        if op.is_input or (op.is_wait and starts.get(op.name) not in inside):
            given[op.name] = Op(op.name, "input", out=op.out)
            continue
        for ref in op.refs():
            if ref.name not in inside:
                given[ref.name] = Op(ref.name, "input", out=program[ref.name].out)
        inside[op.name] = op
    behind, known = returned(program), users(program)
    needed = {
        name
        for name in inside
        if name in behind or any(user.name not in inside and user.name not in others for user in known.get(name, ()))
    }
    outputs = tuple(Ref(name) for name in inside if name in needed)
    return Program((*given.values(), *inside.values()), outputs, rank=program.rank)


def _moved_until(program: Program, place: int) -> int:
    """The position of the last op after this one up to which there is nothing but views, copies and casts. What is put
    together there from chunks need not be put together before."""
    while place + 1 < len(program) and only_moves(program.ops[place + 1]):
        place += 1
    return place


def signature(program: Program, chosen: Iterable[str]) -> Hashable:
    """The same for ops that differ in names only, as those of layers do: what each does, to which of the others."""
    number = {name: place for place, name in enumerate(chosen)}

    def told(leaf: Arg) -> Arg:
        return number.get(leaf.name, -1) if isinstance(leaf, Ref) else leaf

    return tuple(
        (op.target, op.out, op.comm, repr([map_leaves(arg, told) for arg in (*op.args, *op.kwargs.values())]))
        for op in map(program.__getitem__, number)
    )


def shortest_us(program: Program, cost: CostModel) -> float:
    """How long a small Program takes if its collectives are launched when their time has come, and compute is moved to
    where it hides them."""
    return _shortest(program, cost)[1].step_us


def exposed_in_part(program: Program, cost: CostModel) -> frozenset[str]:
    """The collectives of a small Program that are not hidden even so."""
    return frozenset(name for name, share in _shares(*_shortest(program, cost)).items() if share > _HIDDEN)


def _shortest(program: Program, cost: CostModel) -> tuple[Sketch, Run]:
    priced = prices(program, cost)
    sketch = contract(program, priced)
    run = best_placement(sketch, Limits(), rounds=2).run
    held = max(run.held, default=0.0)
    if held == 0:
        return sketch, run
    order = listed(program, priced, in_turn, _REACH * held, patient=True)
    moved = contract(reordered(program, order), priced.reordered(order))
    return min((sketch, run), (moved, best_placement(moved, Limits(), rounds=2).run), key=lambda one: one[1].step_us)


def _shares(sketch: Sketch, run: Run) -> dict[str, float]:
    """Of each collective, by its name, the share that is exposed."""
    return {piece.name: held / (piece.us or 1.0) for piece, held in zip(sketch.pieces, run.held, strict=True)}
