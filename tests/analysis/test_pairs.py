from __future__ import annotations

from hypothesis import given

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import Pairs, pairs
from weft.ir import Program


def test_a_wait_belongs_to_the_start_that_it_names() -> None:
    found = pairs(
        program("""
            %x: f32[2] = input()
            %a: f32[2] = all_reduce.start(%x) sum over g
            %b: f32[2] = all_reduce.start(%x) max over g
            %fb: f32[2] = wait(%b)
            %fa: f32[2] = wait(%a)
        """)
    )
    assert found == Pairs({"a": ("fa",), "b": ("fb",)}, {"fb": "b", "fa": "a"}, ())


def test_views_between_a_start_and_its_wait_are_looked_through() -> None:
    found = pairs(
        program("""
            %x: f32[2,2] = input()
            %a: f32[4,2] = all_gather.start(%x) over g
            %t: f32[2,4] = aten.t.default(%a)
            %v: f32[1,2,4] = aten.unsqueeze.default(%t, 0)
            %f: f32[1,2,4] = wait(%v)
        """)
    )
    assert found == Pairs({"a": ("f",)}, {"f": "a"}, ())


def test_a_coalesced_start_has_a_wait_for_each_result() -> None:
    found = pairs(
        program("""
            %x: f32[2] = input()
            %y: f32[3] = input()
            %a: (f32[2], f32[3]) = all_reduce.start([%x, %y]) sum over g
            %p: f32[2] = getitem(%a, 0)
            %q: f32[3] = getitem(%a, 1)
            %fq: f32[3] = wait(%q)
            %fp: f32[2] = wait(%p)
        """)
    )
    assert found == Pairs({"a": ("fq", "fp")}, {"fq": "a", "fp": "a"}, ())


def test_two_waits_for_one_start_are_in_program_order() -> None:
    found = pairs(
        program("""
            %x: f32[2] = input()
            %a: f32[2] = all_reduce.start(%x) sum over g
            %f2: f32[2] = wait(%a)
            %f1: f32[2] = wait(%a)
        """)
    )
    assert found == Pairs({"a": ("f2", "f1")}, {"f2": "a", "f1": "a"}, ())


def test_a_start_that_nobody_waits_for_has_no_waits() -> None:
    found = pairs(program("%x: f32[2] = input()\n%a: f32[2] = all_reduce.start(%x) sum over g"))
    assert found == Pairs({"a": ()}, {}, ())


def test_waits_for_what_no_start_made_are_strays() -> None:
    found = pairs(
        program("""
            %x: f32[2] = input()
            %a: f32[2] = all_reduce.start(%x) sum over g
            %f: f32[2] = wait(%a)
            %of_an_input: f32[2] = wait(%x)
            %of_a_wait: f32[2] = wait(%f)
            %c: f32[2] = aten.clone.default(%a)
            %of_a_copy: f32[2] = wait(%c)
            %of_nothing: f32[2] = wait(%nowhere)
            %of_a_number: f32[2] = wait(1)
        """)
    )
    assert found.strays == ("of_an_input", "of_a_wait", "of_a_copy", "of_nothing", "of_a_number")
    assert found.start == {"f": "a"}


def test_the_input_that_is_reduced_in_place_is_not_the_collective() -> None:
    found = pairs(
        program("""
            %x: f32[2] = input()
            %a: f32[2] = all_reduce_.start(%x) sum over g
            %stray: f32[2] = wait(%x)
            %f: f32[2] = wait(%a)
        """)
    )
    assert found == Pairs({"a": ("f",)}, {"f": "a"}, ("stray",))


@given(programs())
def test_in_a_valid_program_every_wait_has_a_start_and_every_start_a_wait(subject: Program) -> None:
    found = pairs(subject)
    assert found.strays == ()
    assert found.start.keys() == {op.name for op in subject.ops if op.is_wait}
    assert list(found.waits) == [op.name for op in subject.starts]
    assert all(found.waits.values())
    for start, waits in found.waits.items():
        assert [found.start[wait] for wait in waits] == [start] * len(waits)
        positions = [subject.index[name] for name in (start, *waits)]
        assert positions == sorted(positions)
