"""Every edge of small programs, with its kind."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import Kind, dependencies, pairs, storages
from weft.analysis.dependencies import accesses
from weft.ir import Program


def edges(subject: Program) -> list[str]:
    """`earlier > later: kind`, in the order of the later ones."""
    known = dependencies(subject)
    kinds = {(one, other): kind.value for one, other, kind in known.order}
    return [
        f"{subject.ops[earlier].name} > {subject.ops[later].name}: {kinds.get((earlier, later), 'data')}"
        for later, before in enumerate(known.before)
        for earlier in before
    ]


def test_a_use_is_data_however_deep_it_is_nested_and_however_often_it_is_repeated() -> None:
    subject = program("""
        %x: f32[2] = input()
        %n: int = input()
        %y: f32[4] = aten.cat.default([%x, %x])
        %z: f32[2] = vendor.thing.default([(%y, %x)], by={"key": slice(0, %n, None)}) {pure}
    """)
    assert edges(subject) == ["x > y: data", "x > z: data", "n > z: data", "y > z: data"]


def test_a_write_stays_behind_the_reads_before_it() -> None:
    subject = program("""
        %x: f32[2] = input()
        %r1: f32[2] = aten.neg.default(%x)
        %r2: f32[2] = aten.relu.default(%x)
        %w: f32[2] = aten.zero_.default(%x)
    """)
    assert edges(subject) == ["x > r1: data", "x > r2: data", "x > w: data", "r1 > w: mutation", "r2 > w: mutation"]


def test_a_read_stays_behind_the_write_before_it() -> None:
    subject = program("""
        %x: f32[2] = input()
        %w: f32[2] = aten.zero_.default(%x)
        %r: f32[2] = aten.neg.default(%x)
    """)
    assert edges(subject) == ["x > w: data", "x > r: data", "w > r: mutation"]


def test_writes_keep_their_order() -> None:
    subject = program("""
        %x: f32[2] = input()
        %w1: f32[2] = aten.zero_.default(%x)
        %w2: f32[2] = aten.add_.Scalar(%x, 1)
        %w3: f32[2] = aten.mul_.Scalar(%w2, 2)
    """)
    assert edges(subject) == ["x > w1: data", "x > w2: data", "w1 > w2: mutation", "w2 > w3: data"]


def test_only_the_last_write_and_the_reads_since_are_named() -> None:
    subject = program("""
        %x: f32[2] = input()
        %r1: f32[2] = aten.neg.default(%x)
        %w1: f32[2] = aten.zero_.default(%x)
        %r2: f32[2] = aten.neg.default(%x)
        %w2: f32[2] = aten.zero_.default(%x)
        %r3: f32[2] = aten.neg.default(%x)
    """)
    assert [edge for edge in edges(subject) if not edge.startswith("x > ")] == [
        "r1 > w1: mutation",
        "w1 > r2: mutation",
        "w1 > w2: mutation",
        "r2 > w2: mutation",
        "w2 > r3: mutation",
    ]


def test_memory_is_followed_through_views_and_views_themselves_read_nothing() -> None:
    subject = program("""
        %x: f32[4] = input()
        %v: f32[2,2] = aten.view.default(%x, [2, 2])
        %t: f32[2,2] = aten.t.default(%v)
        %r: f32[2,2] = aten.neg.default(%t)
        %s: f32[2] = aten.slice.Tensor(%x, 0, 0, 2)
        %w: f32[2] = aten.zero_.default(%s)
        %v2: f32[4] = aten.view.default(%v, [4])
        %r2: f32[4] = aten.neg.default(%v2)
    """)
    assert edges(subject) == [
        "x > v: data",
        "v > t: data",
        "t > r: data",
        "x > s: data",
        "r > w: mutation",
        "s > w: data",
        "v > v2: data",
        "w > r2: mutation",
        "v2 > r2: data",
    ]


def test_parts_of_a_split_are_one_memory_and_results_of_an_op_are_not() -> None:
    split = program("""
        %x: f32[4] = input()
        %s: (f32[2], f32[2]) = aten.split.Tensor(%x, 2)
        %a: f32[2] = getitem(%s, 0)
        %b: f32[2] = getitem(%s, 1)
        %w: f32[2] = aten.zero_.default(%a)
        %r: f32[2] = aten.neg.default(%b)
    """)
    assert edges(split)[-2:] == ["b > r: data", "w > r: mutation"]
    results = program("""
        %x: f32[4] = input()
        %m: (f32[2], f32[2]) = vendor.both.default(%x) {pure}
        %a: f32[2] = getitem(%m, 0)
        %b: f32[2] = getitem(%m, 1)
        %w: f32[2] = aten.zero_.default(%a)
        %r: f32[2] = aten.neg.default(%b)
    """)
    assert edges(results)[-2:] == ["a > w: data", "b > r: data"]


def test_a_foreach_reads_all_its_lists_and_writes_the_first() -> None:
    subject = program("""
        %x: f32[2] = input()
        %y: f32[2] = input()
        %g: f32[2] = input()
        %r: f32[2] = aten.neg.default(%y)
        %w: () = aten._foreach_add_.List([%x, %y], [%g, %g])
        %rx: f32[2] = aten.neg.default(%x)
        %wg: f32[2] = aten.zero_.default(%g)
    """)
    assert edges(subject) == [
        "y > r: data",
        "x > w: data",
        "y > w: data",
        "g > w: data",
        "r > w: mutation",
        "x > rx: data",
        "w > rx: mutation",
        "g > wg: data",
        "w > wg: mutation",
    ]


def test_a_collective_reads_what_it_sends_until_its_wait() -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = all_reduce.start(%x) sum over g
        %r: f32[2] = aten.neg.default(%x)
        %f: f32[2] = wait(%a)
        %w: f32[2] = aten.zero_.default(%x)
    """)
    assert edges(subject) == [
        "x > a: data",
        "x > r: data",
        "a > f: data",
        "x > w: data",
        "a > w: mutation",
        "r > w: mutation",
        "f > w: in flight",
    ]


def test_a_collective_writes_its_result_until_its_wait() -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = all_reduce.start(%x) sum over g
        %f: f32[2] = wait(%a)
        %r: f32[2] = aten.neg.default(%a)
        %again: f32[2] = wait(%a)
        %r2: f32[2] = aten.neg.default(%f)
    """)
    assert edges(subject) == [
        "x > a: data",
        "a > f: data",
        "a > r: data",
        "f > r: in flight",
        "a > again: data",
        "f > again: in flight",
        "r > again: in flight",
        "f > r2: data",
        "again > r2: in flight",
    ]


def test_a_collective_in_place_writes_what_it_is_given() -> None:
    subject = program("""
        %x: f32[2] = input()
        %r: f32[2] = aten.neg.default(%x)
        %a: f32[2] = all_reduce_.start(%x) sum over g
        %f: f32[2] = wait(%a)
        %r2: f32[2] = aten.neg.default(%x)
    """)
    assert edges(subject) == [
        "x > r: data",
        "x > a: data",
        "r > a: mutation",
        "a > f: data",
        "x > r2: data",
        "f > r2: in flight",
    ]


def test_a_collective_into_a_buffer_writes_the_buffer() -> None:
    subject = program("""
        %x: f32[2] = input()
        %b: f32[4] = aten.zeros.default([4])
        %r: f32[4] = aten.neg.default(%b)
        %a: f32[4] = all_gather_out.start(%x, out=%b) over g
        %f: f32[4] = wait(%a)
        %r2: f32[4] = aten.neg.default(%b)
    """)
    assert edges(subject) == [
        "b > r: data",
        "x > a: data",
        "b > a: data",
        "r > a: mutation",
        "a > f: data",
        "b > r2: data",
        "f > r2: in flight",
    ]


def test_two_collectives_may_send_the_same_memory_together() -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = all_reduce.start(%x) sum over g
        %b: f32[2] = all_reduce.start(%x) max over g
        %fb: f32[2] = wait(%b)
        %fa: f32[2] = wait(%a)
    """)
    assert edges(subject) == ["x > a: data", "x > b: data", "b > fb: data", "a > fa: data"]


def test_the_waits_of_a_coalesced_start_each_hold_all_that_was_sent() -> None:
    subject = program("""
        %x: f32[2] = input()
        %y: f32[2] = input()
        %a: (f32[2], f32[2]) = all_reduce.start([%x, %y]) sum over g
        %p: f32[2] = getitem(%a, 0)
        %q: f32[2] = getitem(%a, 1)
        %fp: f32[2] = wait(%p)
        %fq: f32[2] = wait(%q)
        %w: f32[2] = aten.zero_.default(%x)
    """)
    assert edges(subject)[-4:] == ["x > w: data", "a > w: mutation", "fp > w: in flight", "fq > w: in flight"]
    assert "fp > fq: in flight" not in edges(subject)


def test_random_ops_form_a_chain() -> None:
    subject = program("""
        %x: f32[2] = input()
        %r1: f32[2] = aten.rand_like.default(%x)
        %y: f32[2] = aten.neg.default(%x)
        %r2: f32[2] = aten.rand_like.default(%r1)
        %r3: f32[2] = aten.rand_like.default(%x)
    """)
    assert edges(subject) == [
        "x > r1: data",
        "x > y: data",
        "r1 > r2: data",
        "x > r3: data",
        "r2 > r3: random",
    ]


def test_a_barrier_stays_behind_all_since_the_last_one_and_before_all_until_the_next() -> None:
    subject = program("""
        %x: f32[2] = input()
        %a: f32[2] = aten.neg.default(%x)
        %b1: () = vendor.mystery.default()
        %c: f32[2] = aten.neg.default(%x)
        %b2: () = vendor.mystery.default()
        %d: f32[2] = aten.neg.default(%a)
    """)
    assert edges(subject) == [
        "x > a: data",
        "a > b1: barrier",
        "x > c: data",
        "b1 > c: barrier",
        "b1 > b2: barrier",
        "c > b2: barrier",
        "a > d: data",
        "b2 > d: barrier",
    ]


def test_inputs_are_there_from_the_beginning_whatever_stands_between() -> None:
    subject = program("""
        %x: f32[2] = input()
        %b: () = vendor.mystery.default()
        %y: f32[2] = input()
    """)
    assert edges(subject) == []


def test_an_edge_has_one_kind_and_data_comes_first() -> None:
    subject = program("""
        %x: f32[2] = input()
        %r: f32[2] = vendor.draw.default(%x) {random, mutates(0)}
        %s: f32[2] = vendor.draw.default(%x, %r) {random, mutates(0)}
        %t: f32[2] = vendor.draw.default(%x) {random, mutates(0)}
    """)
    assert edges(subject) == ["x > r: data", "x > s: data", "r > s: data", "x > t: data", "s > t: mutation"]


def test_uses_before_their_definition_are_left_out() -> None:
    subject = program("""
        %y: f32[2] = aten.neg.default(%z)
        %z: f32[2] = aten.neg.default(%nowhere)
        %self: f32[2] = aten.neg.default(%self)
    """)
    assert edges(subject) == []


def test_after_is_before_the_other_way_round() -> None:
    subject = program("""
        %x: f32[2] = input()
        %y: f32[2] = aten.neg.default(%x)
        %z: f32[2] = aten.add.Tensor(%x, %y)
    """)
    assert dependencies(subject).before == ((), (0,), (0, 1))
    assert dependencies(subject).after() == [[1, 2], [2], []]


@given(programs(random=True, barriers=True, mutate_inputs=True))
def test_any_two_conflicting_accesses_are_ordered_directly_or_through_others(subject: Program) -> None:
    known = dependencies(subject)
    above: list[set[int]] = []
    for direct in known.before:
        above.append(set(direct).union(*(above[one] for one in direct)))
    touched = accesses(subject)
    for later, (reads, writes) in enumerate(touched):
        for earlier in range(later):
            was_read, was_written = touched[earlier]
            if writes & (was_read | was_written) or reads & was_written:
                assert earlier in above[later]
    draws = [position for position, op in enumerate(subject.ops) if op.traits.random]
    for one, other in pairwise(draws):
        assert one in above[other]
    for barrier in (position for position, op in enumerate(subject.ops) if op.traits.barrier):
        for position, op in enumerate(subject.ops):
            if position != barrier and not op.is_input:
                assert min(position, barrier) in above[max(position, barrier)]


@given(programs(random=True, barriers=True, mutate_inputs=True))
def test_edges_go_forward_are_sorted_and_have_a_reason(subject: Program) -> None:
    known = dependencies(subject)
    kinds = {(one, other): kind for one, other, kind in known.order}
    assert [(one, other) for one, other, _ in known.order] == sorted(kinds, key=lambda edge: edge[::-1])
    touched, waits = accesses(subject), pairs(subject).start
    for later, before in enumerate(known.before):
        assert list(before) == sorted(set(before))
        assert all(earlier < later for earlier in before)
        used = {subject.index[ref.name] for ref in subject.ops[later].refs()}
        assert used <= set(before)
        for earlier in set(before) - used:
            kind = kinds[earlier, later]
            ops = subject.ops[earlier], subject.ops[later]
            shared = (
                touched[earlier][1] & (touched[later][0] | touched[later][1]) or touched[earlier][0] & touched[later][1]
            )
            assert bool(shared) or kind in (Kind.RANDOM, Kind.BARRIER)
            assert (kind is Kind.IN_FLIGHT) <= any(op.name in waits for op in ops)
            assert (kind is Kind.RANDOM) <= all(op.traits.random for op in ops)
            assert (kind is Kind.BARRIER) <= any(op.traits.barrier for op in ops)


@given(programs(mutate_inputs=True))
def test_views_access_nothing_and_all_others_read_what_they_are_given_if_somebody_writes_it(subject: Program) -> None:
    known, waits = storages(subject), pairs(subject).start
    written = frozenset[int]().union(*(writes for _, writes in accesses(subject)))
    for op, (reads, writes) in zip(subject.ops, accesses(subject), strict=True):
        if op.name in waits:
            start = subject[waits[op.name]]
            assert reads == known.of_args((*start.args, *start.kwargs.values())) & written
            assert writes == known.of_value(op.name)
        elif op.traits.is_view:
            assert not reads
            assert not writes
        else:
            assert reads == known.of_args((*op.args, *op.kwargs.values())) & written
            own = known.of_args(op.argument(key) for key in op.traits.mutates)
            assert writes == (known.of_value(op.name) if op.is_start else own)
