"""Bytes at every op, worked out by hand."""

from __future__ import annotations

from hypothesis import given

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import memory, pairs, storages
from weft.ir import Program
from weft.ir.args import refs


def bytes_at(ops: str) -> list[tuple[str, int]]:
    subject = program(ops)
    return [(op.name, size) for op, size in zip(subject.ops, memory(subject).bytes_at, strict=True)]


def test_inputs_live_throughout_and_values_from_their_op_to_their_last_use() -> None:
    assert bytes_at("""
        %x: f32[10] = input()
        %y: f32[1] = input()
        %a: f32[2] = aten.zeros.default([2])
        %b: f32[3] = aten.zeros.default([3])
        %c: f32[2] = aten.neg.default(%a)
        %d: f32[4] = aten.zeros.default([4])
        return %c
    """) == [("x", 44), ("y", 44), ("a", 52), ("b", 64), ("c", 60), ("d", 68)]
    # while %d runs: 44 of the inputs, 8 of %c, which is returned, 16 of its own


def test_a_view_holds_its_base_and_takes_nothing_itself() -> None:
    assert bytes_at("""
        %a: f32[4] = aten.zeros.default([4])
        %v: f32[2,2] = aten.view.default(%a, [2, 2])
        %t: f32[2,2] = aten.t.default(%v)
        %b: f32[1] = aten.zeros.default([1])
        %c: f32[2,2] = aten.neg.default(%t)
        %d: f32[1] = aten.zeros.default([1])
    """) == [("a", 16), ("v", 16), ("t", 16), ("b", 20), ("c", 32), ("d", 4)]


def test_an_in_place_result_is_its_input() -> None:
    assert bytes_at("""
        %a: f32[4] = aten.zeros.default([4])
        %b: f32[4] = aten.add_.Scalar(%a, 1)
        %c: f32[4] = aten.mul_.Scalar(%b, 2)
        %d: f32[4] = aten.neg.default(%c)
        %e: f32[1] = aten.zeros.default([1])
        return %d
    """) == [("a", 16), ("b", 16), ("c", 16), ("d", 32), ("e", 20)]


def test_a_collective_holds_what_it_sends_until_its_wait() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %s: f32[4] = all_gather.start(%a) over g
        %b: f32[1] = aten.zeros.default([1])
        %f: f32[4] = wait(%s)
        %c: f32[4] = aten.neg.default(%f)
        return %c
    """) == [("a", 8), ("s", 24), ("b", 28), ("f", 24), ("c", 32)]
    # while %c runs, %a is free: 16 of %s, 16 of %c


def test_a_coalesced_collective_holds_all_that_it_sends_until_its_last_wait() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %b: f32[3] = aten.zeros.default([3])
        %s: (f32[2], f32[3]) = all_reduce.start([%a, %b]) sum over g
        %p: f32[2] = getitem(%s, 0)
        %q: f32[3] = getitem(%s, 1)
        %fp: f32[2] = wait(%p)
        %x: f32[2] = aten.neg.default(%fp)
        %fq: f32[3] = wait(%q)
        %y: f32[3] = aten.neg.default(%fq)
    """) == [
        ("a", 8),
        ("b", 20),
        ("s", 40),
        ("p", 40),
        ("q", 40),
        ("fp", 40),
        ("x", 48),
        ("fq", 32),
        ("y", 24),
    ]


def test_a_collective_in_place_takes_nothing() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %s: f32[2] = all_reduce_.start(%a) sum over g
        %f: f32[2] = wait(%s)
        %c: f32[2] = aten.neg.default(%f)
    """) == [("a", 8), ("s", 8), ("f", 8), ("c", 16)]


def test_a_collective_that_nobody_waits_for_holds_everything_to_the_end() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %s: f32[4] = all_gather.start(%a) over g
        %b: f32[1] = aten.zeros.default([1])
        %c: f32[1] = aten.zeros.default([1])
    """) == [("a", 8), ("s", 24), ("b", 28), ("c", 28)]


def test_a_collective_that_is_waited_for_twice_holds_what_it_sends_until_the_second_time() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %s: f32[4] = all_gather.start(%a) over g
        %f1: f32[4] = wait(%s)
        %b: f32[1] = aten.zeros.default([1])
        %f2: f32[4] = wait(%s)
        %c: f32[1] = aten.zeros.default([1])
    """) == [("a", 8), ("s", 24), ("f1", 24), ("b", 28), ("f2", 24), ("c", 4)]


def test_a_donated_input_dies_after_its_last_use() -> None:
    assert bytes_at("""
        %x: f32[4] = input(donated=True)
        %y: f32[2] = input()
        %a: f32[4] = aten.neg.default(%x)
        %b: f32[4] = aten.neg.default(%a)
        %c: f32[4] = aten.neg.default(%b)
    """) == [("x", 24), ("y", 24), ("a", 40), ("b", 40), ("c", 40)]


def test_a_donated_input_that_is_returned_through_a_view_lives_to_the_end() -> None:
    assert bytes_at("""
        %x: f32[4] = input(donated=True)
        %v: f32[2,2] = aten.view.default(%x, [2, 2])
        %a: f32[1] = aten.zeros.default([1])
        return [%v]
    """) == [("x", 16), ("v", 16), ("a", 20)]


def test_inputs_are_there_before_they_are_listed_and_so_are_attributes() -> None:
    assert bytes_at("""
        %a: f32[1] = aten.zeros.default([1])
        %x: f32[4] = input()
        %w: f32[8] = get_attr("weight")
        %again: f32[8] = get_attr("weight")
        %b: f32[1] = aten.zeros.default([1])
    """) == [("a", 52), ("x", 48), ("w", 48), ("again", 48), ("b", 52)]


def test_host_tensors_and_scalars_take_no_device_memory() -> None:
    assert bytes_at("""
        %x: f32[1000]@cpu = input()
        %n: int = aten.sym_size.int(%x, 0)
        %a: bf16[3] = aten.zeros.default([3])
        return %x, %n, %a
    """) == [("x", 0), ("n", 0), ("a", 6)]


def test_a_value_that_nobody_uses_lives_while_it_is_made() -> None:
    assert bytes_at("""
        %a: f32[2] = aten.zeros.default([2])
        %b: f32[3] = aten.zeros.default([3])
    """) == [("a", 8), ("b", 12)]


def test_the_peak_and_what_lies_there() -> None:
    found = memory(
        program("""
            %x: f32[2] = input()
            %a: f32[4] = aten.zeros.default([4])
            %b: f32[8] = aten.neg.default(%a)
            %c: f32[1]@cpu = aten.zeros.default([1])
            %d: f32[4] = aten.neg.default(%b)
            return %d
        """)
    )
    assert found.peak_bytes == 56
    assert found.live_at(2) == [("b", 32), ("a", 16), ("x", 8)]
    assert found.live_at(3) == [("b", 32), ("x", 8)]
    assert found.live_at(4) == [("b", 32), ("d", 16), ("x", 8)]


def test_a_program_without_ops_needs_no_memory() -> None:
    found = memory(program("return"))
    assert (found.bytes_at, found.peak_bytes) == ((), 0)


def naive(subject: Program) -> list[int]:
    """Ask of every storage at every op: has it been made, and does anybody still need it?"""
    known, matched = storages(subject), pairs(subject)
    end = len(subject)

    def needed_until(storage: int) -> int:
        names = [op.name for op in subject.ops if storage in known.of_value(op.name)]
        last = known.maker[storage]
        for position, op in enumerate(subject.ops):
            if any(ref.name in names for ref in op.refs()):
                last = max(last, position)
                if op.is_start:
                    last = max([last, *(subject.index[wait] for wait in matched.waits[op.name])])
        kept = {ref.name for output in subject.outputs for ref in refs(output)} | {op.name for op in subject.inputs}
        return end if kept & set(names) else last

    def born(storage: int) -> int:
        return 0 if subject.ops[known.maker[storage]].is_input else known.maker[storage]

    lives = [(size, born(storage), needed_until(storage)) for storage, size in enumerate(known.nbytes)]
    return [sum(size for size, birth, death in lives if birth <= position <= death) for position in range(end)]


@given(programs(mutate_inputs=True))
def test_memory_is_what_asking_of_every_storage_at_every_op_gives(subject: Program) -> None:
    found = memory(subject)
    assert list(found.bytes_at) == naive(subject)
    for position in range(len(subject)):
        live = found.live_at(position)
        assert sum(size for _, size in live) == found.bytes_at[position]
        assert [size for _, size in live] == sorted((size for _, size in live), reverse=True)
