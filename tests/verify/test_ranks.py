from __future__ import annotations

import pytest

from tests.analysis.texts import program
from weft.errors import VerifyError
from weft.ir import Program
from weft.verify import verify_ranks

BOTH = "group g = 0..1\n"


def reduce(*values: str, how: str = "all_reduce.start({}) sum over g") -> Program:
    """One collective after the other, each waited for at once."""
    ops = ["%a: f32[2] = input()", "%b: f32[4] = input()"]
    for value in values:
        shape = "f32[2]" if value == "a" else "f32[4]"
        ops += [f"%s{value}: {shape} = {how.format('%' + value)}", f"%f{value}: {shape} = wait(%s{value})"]
    return program("\n".join(ops), BOTH)


def complaints(programs: dict[int, Program]) -> list[str]:
    with pytest.raises(VerifyError) as caught:
        verify_ranks(programs)
    return [str(one) for one in caught.value.violations]


def test_ranks_with_the_same_program_agree() -> None:
    verify_ranks({0: reduce("a", "b"), 1: reduce("a", "b")})


def test_one_rank_alone_and_no_rank_at_all_agree() -> None:
    verify_ranks({0: reduce("a", "b")})
    verify_ranks({})


def test_another_order_is_a_disagreement() -> None:
    assert complaints({0: reduce("a", "b"), 1: reduce("b", "a")}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues all_reduce %sa of 8 bytes (f32, sum) "
        "and rank 1 issues all_reduce %sb of 16 bytes (f32, sum)"
    ]


def test_another_kind_is_a_disagreement() -> None:
    assert complaints({0: reduce("a"), 1: reduce("a", how="broadcast.start({}, 0) over g")}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues all_reduce %sa of 8 bytes (f32, sum) "
        "and rank 1 issues broadcast %sa of 8 bytes (f32, from rank 0)"
    ]


def test_another_size_is_a_disagreement() -> None:
    assert complaints({0: reduce("a"), 1: reduce("b")}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues all_reduce %sa of 8 bytes (f32, sum) "
        "and rank 1 issues all_reduce %sb of 16 bytes (f32, sum)"
    ]


def test_another_reduction_is_a_disagreement() -> None:
    assert complaints({0: reduce("a"), 1: reduce("a", how="all_reduce.start({}) max over g")}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues all_reduce %sa of 8 bytes (f32, sum) "
        "and rank 1 issues all_reduce %sa of 8 bytes (f32, max)"
    ]


def test_another_root_is_a_disagreement() -> None:
    roots = {rank: reduce("a", how=f"broadcast.start({{}}, {rank}) over g") for rank in (0, 1)}
    assert complaints(roots) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues broadcast %sa of 8 bytes (f32, from rank 0) "
        "and rank 1 issues broadcast %sa of 8 bytes (f32, from rank 1)"
    ]


def test_another_dtype_of_the_same_size_is_a_disagreement() -> None:
    half = program(
        "%a: bf16[4] = input()\n%sa: bf16[4] = all_reduce.start(%a) sum over g\n%f: bf16[4] = wait(%sa)", BOTH
    )
    assert complaints({0: reduce("a"), 1: half}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues all_reduce %sa of 8 bytes (f32, sum) "
        "and rank 1 issues all_reduce %sa of 8 bytes (bf16, sum)"
    ]


def test_a_missing_collective_is_a_disagreement() -> None:
    assert complaints({0: reduce("a", "b"), 1: reduce("a")}) == [
        "group_order: collective 1 among ranks [0, 1]: rank 0 issues all_reduce %sb of 16 bytes (f32, sum) "
        "and rank 1 issues nothing more"
    ]
    assert complaints({0: reduce(), 1: reduce("a")}) == [
        "group_order: collective 0 among ranks [0, 1]: rank 0 issues nothing more "
        "and rank 1 issues all_reduce %sa of 8 bytes (f32, sum)"
    ]


def test_every_rank_is_compared_with_the_first() -> None:
    group = "group g = 0..2\n"

    def of(value: str) -> Program:
        return program(
            f"%a: {value} = input()\n%s: {value} = all_reduce.start(%a) sum over g\n%f: {value} = wait(%s)", group
        )

    assert complaints({0: of("f32[2]"), 1: of("f32[3]"), 2: of("f32[4]")}) == [
        "group_order: collective 0 among ranks [0, 1, 2]: rank 0 issues all_reduce %s of 8 bytes (f32, sum) "
        "and rank 1 issues all_reduce %s of 12 bytes (f32, sum)",
        "group_order: collective 0 among ranks [0, 1, 2]: rank 0 issues all_reduce %s of 8 bytes (f32, sum) "
        "and rank 2 issues all_reduce %s of 16 bytes (f32, sum)",
    ]


def test_an_uneven_all_to_all_is_no_disagreement() -> None:
    def sends(sent: str, received: str, rows: int) -> Program:
        start = f"%s: f32[{rows}] = all_to_all.start(%a, {received}, {sent}) over g"
        return program(f"%a: f32[4] = input()\n{start}\n%f: f32[{rows}] = wait(%s)", BOTH)

    verify_ranks({0: sends("[1, 3]", "[1, 2]", 3), 1: sends("[2, 2]", "[3, 2]", 5)})


def test_a_rank_that_is_not_in_the_group_may_not_communicate_in_it() -> None:
    assert complaints({0: reduce("a"), 1: reduce("a"), 2: reduce("a")}) == [
        "group_order: rank 2 issues all_reduce %sa of 8 bytes (f32, sum) among ranks [0, 1], and is none of them"
    ]
    assert complaints({4: reduce("b")}) == [
        "group_order: rank 4 issues all_reduce %sb of 16 bytes (f32, sum) among ranks [0, 1], and is none of them"
    ]


# Waits


def in_order(*ops: str, inputs: str = "%x: f32[2] = input()") -> str:
    """`s:g` starts a collective over g, `w:g` waits for it."""
    lines = [inputs]
    for op in ops:
        verb, group = op.split(":")
        start = f"%s_{group}: f32[2] = all_reduce.start(%x) sum over {group}"
        lines.append(start if verb == "s" else f"%w_{group}: f32[2] = wait(%s_{group})")
    return "\n".join(lines)


def test_a_wait_cycle_across_two_groups_is_found() -> None:
    groups = "group wide = 0..2\ngroup pair = 0..1\n"
    found = complaints(
        {
            0: program(in_order("s:wide", "w:wide", "s:pair", "w:pair"), groups),
            1: program(in_order("s:pair", "w:pair", "s:wide", "w:wide"), groups),
            2: program(in_order("s:wide", "w:wide"), groups),
        }
    )
    assert found == [
        "wait_cycle: rank 0 waits for ever at %w_wide: ranks [1] never start that collective",
        "wait_cycle: rank 1 waits for ever at %w_pair: ranks [0] never start that collective",
        "wait_cycle: rank 2 waits for ever at %w_wide: ranks [1] never start that collective",
    ]


def test_the_same_orders_without_the_waits_in_between_finish() -> None:
    groups = "group wide = 0..2\ngroup pair = 0..1\n"
    verify_ranks(
        {
            0: program(in_order("s:wide", "s:pair", "w:wide", "w:pair"), groups),
            1: program(in_order("s:pair", "s:wide", "w:pair", "w:wide"), groups),
            2: program(in_order("s:wide", "w:wide"), groups),
        }
    )


def test_a_wait_cycle_around_three_ranks_is_found() -> None:
    groups = "group ab = 0, 1\ngroup bc = 1, 2\ngroup ca = 0, 2\n"
    found = complaints(
        {
            0: program(in_order("s:ab", "w:ab", "s:ca", "w:ca"), groups),
            1: program(in_order("s:bc", "w:bc", "s:ab", "w:ab"), groups),
            2: program(in_order("s:ca", "w:ca", "s:bc", "w:bc"), groups),
        }
    )
    assert found == [
        "wait_cycle: rank 0 waits for ever at %w_ab: ranks [1] never start that collective",
        "wait_cycle: rank 1 waits for ever at %w_bc: ranks [2] never start that collective",
        "wait_cycle: rank 2 waits for ever at %w_ca: ranks [0] never start that collective",
    ]


def mesh_rank(row: str, column: str) -> Program:
    """A rank of a two by two mesh: it reduces along its row and gathers along its column, twice, overlapped."""
    return program(
        """
        %x: f32[2] = input()
        %r1: f32[2] = all_reduce.start(%x) sum over row
        %c1: f32[4] = all_gather.start(%x) over column
        %fr1: f32[2] = wait(%r1)
        %r2: f32[2] = all_reduce.start(%fr1) max over row
        %fc1: f32[4] = wait(%c1)
        %c2: f32[8] = all_gather.start(%fc1) over column
        %fr2: f32[2] = wait(%r2)
        %fc2: f32[8] = wait(%c2)
        return %fr2, %fc2
        """,
        f"group row = {row}\ngroup column = {column}\n",
    )


def test_a_mesh_of_four_ranks_agrees() -> None:
    verify_ranks(
        {
            0: mesh_rank("0, 1", "0, 2"),
            1: mesh_rank("0, 1", "1, 3"),
            2: mesh_rank("2, 3", "0, 2"),
            3: mesh_rank("2, 3", "1, 3"),
        }
    )


def test_one_rank_of_a_mesh_that_leaves_out_a_collective_is_found_by_its_column_only() -> None:
    lazy = program(
        """
        %x: f32[2] = input()
        %r1: f32[2] = all_reduce.start(%x) sum over row
        %fr1: f32[2] = wait(%r1)
        %r2: f32[2] = all_reduce.start(%fr1) max over row
        %fr2: f32[2] = wait(%r2)
        return %fr2
        """,
        "group row = 2, 3\n",
    )
    programs = {
        0: mesh_rank("0, 1", "0, 2"),
        1: mesh_rank("0, 1", "1, 3"),
        2: mesh_rank("2, 3", "0, 2"),
        3: lazy,
    }
    assert complaints(programs) == [
        "group_order: collective 0 among ranks [1, 3]: rank 1 issues all_gather %c1 of 16 bytes (f32) "
        "and rank 3 issues nothing more"
    ]
