from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import ancestors, dependencies
from weft.ir import Program


def closure(subject: Program) -> list[set[int]]:
    """For each position, its ancestors: its dependencies, and theirs."""
    found: list[set[int]] = []
    for earlier in dependencies(subject).before:
        found.append(set(earlier).union(*(found[one] for one in earlier)))
    return found


@given(programs(random=True, barriers=True, mutate_inputs=True))
def test_ancestors_are_the_transitive_closure_of_dependencies(subject: Program) -> None:
    expected, is_ancestor = closure(subject), ancestors(subject)
    for later in range(len(subject)):
        assert {earlier for earlier in range(len(subject)) if is_ancestor(earlier, later)} == expected[later]


@given(programs(mutate_inputs=True), st.data())
def test_asking_about_some_ops_gives_the_same_answers_for_those(subject: Program, data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.integers(0, len(subject) - 1)))
    expected, is_ancestor = closure(subject), ancestors(subject, among=asked)
    for later in range(len(subject)):
        assert {earlier for earlier in asked if is_ancestor(earlier, later)} == expected[later] & set(asked)
    for earlier in set(range(len(subject))) - set(asked):
        with pytest.raises(KeyError, match=f"position {earlier} is not among those that were asked for"):
            is_ancestor(earlier, 0)


CHAIN = program("""
    %x: f32[2] = input()
    %a: f32[2] = aten.neg.default(%x)
    %lonely: f32[2] = aten.zeros.default([2])
    %b: f32[2] = aten.neg.default(%a)
""")


def test_an_op_is_no_ancestor_of_itself() -> None:
    is_ancestor = ancestors(CHAIN)
    assert [is_ancestor(position, position) for position in range(4)] == [False] * 4


def test_chains_are_followed_forwards_only() -> None:
    is_ancestor = ancestors(CHAIN)
    found = [(one, other) for one in range(4) for other in range(4) if is_ancestor(one, other)]
    assert found == [(0, 1), (0, 3), (1, 3)]


def test_rows_end_with_their_op_and_are_as_wide_as_the_question() -> None:
    count = 100
    chain = "\n".join(f"%a{i}: f32[2] = aten.neg.default(%a{i - 1})" for i in range(1, count))
    subject = program(f"%a0: f32[2] = input()\n{chain}")
    assert [len(row) for row in ancestors(subject).rows] == [i // 8 + 1 for i in range(count)]
    assert {len(row) for row in ancestors(subject, among=[0, 50, 99]).rows} == {1}


def test_a_program_without_ops_has_no_ancestors() -> None:
    assert ancestors(program("return")).rows == ()
