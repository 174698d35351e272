"""What is known of a reordered Program is what would be found out anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.orders import reordered as shuffled
from tests.programs import programs
from weft.analysis import dependencies, memory, pairs, storages
from weft.analysis.dependencies import accesses
from weft.analysis.memory import kept
from weft.analysis.orders import note_order, reordered
from weft.analysis.reordering import reordering
from weft.analysis.storages import uses
from weft.analysis.windows import windows
from weft.cost import Machine, prices
from weft.ir import Program
from weft.sim import simulate
from weft.sim.contract import contract
from weft.verify import violations

MACHINE = Machine.load("h100-ib400")


def order_of(program: Program, made: Program) -> list[int]:
    return [program.index[op.name] for op in made.ops]


def named(program: Program, found: Sequence[int] | frozenset[int]) -> list[tuple[str, int]]:
    """Storages by who makes them, and which of its results they are: their numbers may differ."""
    makers = storages(program).maker
    return sorted((program.ops[makers[one]].name, one - makers.index(makers[one])) for one in found)


def everything(program: Program) -> dict[str, object]:
    """All facts that are carried over, and some that follow from them, in terms that numbers have no part in."""
    known, used, lives = storages(program), uses(program), memory(program)
    sketch = contract(program, prices(program, MACHINE))
    everyone = range(len(known.maker))
    return {
        "storages": {name: [named(program, one) for one in found] for name, found in known.of.items()},
        "all": {name: named(program, found) for name, found in known.all_of.items()},
        "lives": sorted(
            (named(program, [one]), known.nbytes[one], sorted(used[one]), lives.births[one], lives.deaths[one])
            for one in everyone
        ),
        "kept": named(program, kept(program)),
        "bytes": lives.bytes_at,
        "pairs": (list(pairs(program).waits.items()), list(pairs(program).start.items()), pairs(program).strays),
        "dependencies": dependencies(program),
        "accesses": [(named(program, reads), named(program, writes)) for reads, writes in accesses(program)],
        "windows": dict(windows(program)),
        "prices": prices(program, MACHINE),
        "sketch": replace(sketch, holds=tuple(sorted(sketch.holds, key=repr))),
        "times": (simulate(program, MACHINE).begins, simulate(program, MACHINE).ends),
        "violations": violations(program),
    }


@given(programs(random=True, barriers=True), st.integers(0, 2**32))
def test_facts_are_those_that_would_be_found(program: Program, seed: int) -> None:
    random = Random(seed)
    made = reordered(program, order_of(program, shuffled(program, random)))
    again = reordered(made, order_of(made, shuffled(made, random)))
    for one in (made, again):
        how = reordering(one)
        assert how is not None
        assert how.original is program
        assert everything(one) == everything(replace(one))


TEXT = """weft 1
group "dp" = 0..1
%x: f32[8] = input()
%a: f32[8] = aten.relu.default(%x)
%b: f32[8] = aten.neg.default(%x)
%c: f32[8] = aten.add.Tensor(%a, %b)
return %c
"""


def test_an_order_that_breaks_a_dependency_is_not_trusted() -> None:
    program = weft.parse(TEXT)
    made = reordered(program, [0, 3, 1, 2])
    assert reordering(made) is None
    assert dependencies(made).before == ((), (), (0,), (0,))


def test_a_program_is_no_reordering_of_itself() -> None:
    program = weft.parse(TEXT)
    note_order(program, program, range(len(program)))
    same = program.stamped("nothing")
    note_order(program, same, range(len(program)))
    assert reordering(program) is None
    assert reordering(same) is None


def test_a_program_that_uses_what_is_not_defined_is_not_trusted() -> None:
    program = weft.parse(TEXT)
    broken = replace(program, ops=program.ops[1:])
    assert reordering(reordered(broken, [1, 0, 2])) is None


def test_an_attribute_that_is_fetched_twice_is_not_trusted() -> None:
    program = weft.parse(
        """weft 1
%a: f32[8] = get_attr("w")
%b: f32[8] = get_attr("w")
return %a, %b
"""
    )
    made = reordered(program, [1, 0])
    assert reordering(made) is None
    assert storages(made).maker == (0,)


def test_facts_survive_a_pass_that_changes_nothing() -> None:
    program = weft.parse(TEXT)
    found = dependencies(program)
    same = program.stamped("nothing")
    assert same.history == ("nothing",)
    assert same.ops is program.ops
    assert dependencies(same) is found
