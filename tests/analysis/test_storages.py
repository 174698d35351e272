from __future__ import annotations

from hypothesis import given

from tests.analysis.texts import program
from tests.programs import programs
from weft.analysis import storages
from weft.ir import Program, parse


def shared(subject: Program) -> dict[str, list[list[str]]]:
    """For each op, by result: the names of the ops that made the storages that it may be."""
    known = storages(subject)

    def makers(result: tuple[int, ...]) -> list[str]:
        return [subject.ops[known.maker[storage]].name for storage in result]

    return {name: [makers(result) for result in results] for name, results in known.of.items()}


def test_every_op_that_is_no_view_makes_storages_of_its_own() -> None:
    known = storages(
        program("""
            %x: f32[2] = input()
            %y: f32[2] = aten.neg.default(%x)
            %n: int = aten.sym_size.int(%x, 0)
            %m: (f32[2], i64[2]) = aten.max.dim(%x, 0)
            %nothing: () = aten._foreach_add_.Scalar([%x], 1)
        """)
    )
    assert known.of == {"x": ((0,),), "y": ((1,),), "n": ((2,),), "m": ((3,), (4,)), "nothing": ()}
    assert known.maker == (0, 1, 2, 3, 3)
    assert known.nbytes == (8, 8, 0, 8, 16)


def test_views_of_views_share_the_storage_of_their_base() -> None:
    found = shared(
        program("""
            %x: f32[2,2] = input()
            %t: f32[2,2] = aten.t.default(%x)
            %v: f32[4] = aten.view.default(%x, [4])
            %s: f32[2] = aten.slice.Tensor(%v, 0, 0, 2)
            %r: f32[2,2] = aten.reshape.default(%t, [2, 2])
        """)
    )
    assert found == {name: [["x"]] for name in "xtvsr"}


def test_in_place_results_share_the_storage_of_their_input() -> None:
    found = shared(
        program("""
            %x: f32[2] = input()
            %y: f32[2] = input()
            %a: f32[2] = aten.add_.Tensor(%x, %y)
            %b: f32[2] = aten.mul_.Scalar(%a, 2)
        """)
    )
    assert found["a"] == found["b"] == [["x"]]


def test_parts_of_a_split_share_one_storage() -> None:
    found = shared(
        program("""
            %x: f32[4] = input()
            %s: (f32[2], f32[2]) = aten.split.Tensor(%x, 2)
            %a: f32[2] = getitem(%s, 0)
            %b: f32[2] = getitem(%s, 1)
        """)
    )
    assert found == {"x": [["x"]], "s": [["x"], ["x"]], "a": [["x"]], "b": [["x"]]}


def test_getitem_takes_one_result_and_not_the_others() -> None:
    subject = program("""
        %x: f32[4] = input()
        %m: (f32[], i64[]) = aten.max.dim(%x, 0)
        %first: f32[] = getitem(%m, 0)
        %last: i64[] = getitem(%m, -1)
    """)
    known = storages(subject)
    assert (known.of["first"], known.of["last"]) == (((1,),), ((2,),))
    assert known.of_value("m") == {1, 2}


def test_getitem_of_nothing_shares_nothing() -> None:
    assert storages(program("%y: f32[2] = getitem()")).of["y"] == ((),)


def test_an_index_that_is_not_known_may_be_any_result() -> None:
    known = storages(
        program("""
            %x: f32[4] = input()
            %i: int = aten.sym_size.int(%x, 0)
            %m: (f32[], f32[]) = aten.max.dim(%x, 0)
            %some: f32[] = getitem(%m, %i)
            %wrong: f32[] = getitem(%m, 7)
        """)
    )
    assert known.of["some"] == known.of["wrong"] == ((2, 3),)


def test_a_list_in_and_a_list_out_share_item_by_item() -> None:
    subject = program("""
        %x: f32[2] = input()
        %y: f32[3] = input()
        %ar: (f32[2], f32[3]) = all_reduce_.start([%x, %y]) sum over g
        %second: f32[3] = getitem(%ar, 1)
        %f: f32[3] = wait(%second)
    """)
    assert shared(subject)["ar"] == [["x"], ["y"]]
    assert shared(subject)["f"] == [["y"]]


def test_an_op_that_views_two_arguments_may_be_either() -> None:
    subject = program("""
        %x: f32[2] = input()
        %y: f32[2] = input()
        %either: f32[2] = vendor.choose.default(%x, %y) {views(0, 1)}
    """)
    assert shared(subject)["either"] == [["x", "y"]]
    assert storages(subject).of_args(subject["either"].args) == {0, 1}


def test_a_collective_has_a_result_of_its_own_and_its_wait_shares_it() -> None:
    found = shared(
        program("""
            %x: f32[2] = input()
            %ag: f32[4] = all_gather.start(%x) over g
            %v: f32[2,2] = aten.view.default(%ag, [2, 2])
            %f: f32[2,2] = wait(%v)
        """)
    )
    assert found == {"x": [["x"]], "ag": [["ag"]], "v": [["ag"]], "f": [["ag"]]}


def test_a_collective_into_a_buffer_shares_the_buffer() -> None:
    found = shared(
        program("""
            %x: f32[2] = input()
            %buffer: f32[4] = aten.zeros.default([4])
            %ag: f32[4] = all_gather_out.start(%x, out=%buffer) over g
        """)
    )
    assert found["ag"] == [["buffer"]]


def test_an_optional_argument_that_was_left_out_is_not_shared() -> None:
    found = shared(
        program("""
            %x: f32[2] = input()
            %y: f32[2] = vendor.maybe.default(%x) {views(out)}
            %z: f32[2] = vendor.maybe.default(%x, out=None) {views(out)}
        """)
    )
    assert (found["y"], found["z"]) == ([["y"]], [["z"]])


def test_an_attribute_that_is_fetched_twice_is_one_tensor() -> None:
    found = shared(
        program("""
            %a: f32[2] = get_attr("weight")
            %b: f32[2] = get_attr("weight")
            %c: f32[2] = get_attr("bias")
        """)
    )
    assert found == {"a": [["a"]], "b": [["a"]], "c": [["c"]]}


def test_host_tensors_and_scalars_take_no_device_memory() -> None:
    known = storages(
        program("""
            %x: f32[1024]@cpu = input()
            %n: int(7) = input()
            %y: bf16[3,5] = input()
        """)
    )
    assert known.nbytes == (0, 0, 30)


def test_symbolic_sizes_count_by_their_hints() -> None:
    known = storages(parse("weft 1\nsymbol n = 10\n%x: f32[2*n + 1,3] = input()\nreturn\n"))
    assert known.nbytes == (21 * 3 * 4,)


def test_values_that_are_not_defined_touch_nothing() -> None:
    subject = program("%v: f32[2] = aten.view.default(%nowhere, [2])\n%g: f32[2] = getitem(%nowhere, 0)")
    known = storages(subject)
    assert known.of_value("nowhere") == frozenset()
    assert known.of_value("g") == frozenset()
    assert known.of_value("v") == {0}


@given(programs(mutate_inputs=True))
def test_every_value_touches_only_storages_that_were_made_before_it(subject: Program) -> None:
    known = storages(subject)
    assert sorted(known.maker) == list(known.maker)
    for position, op in enumerate(subject.ops):
        assert len(known.of[op.name]) == len(op.out)
        assert all(known.maker[storage] <= position for storage in known.of_value(op.name))
        if op.traits.views and op.target != "getitem":
            bases = known.of_args(op.argument(key) for key in op.traits.views)
            assert known.of_value(op.name) <= bases
        elif not op.traits.views:
            assert all(known.maker[storage] == position for storage in known.of_value(op.name))
