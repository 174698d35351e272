from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import programs
from weft.errors import ProgramError
from weft.ir import Editor, Op, Program, Ref, TensorSpec, parse
from weft.ir.targets import traits_of

SPEC = TensorSpec((2,), "f32")
BASE = parse("""\
weft 1
history "capture"
group dp = 0, 1

%a: f32[2] = input()
%b: f32[2] = input()
%s: f32[2] = all_reduce.start(%a) sum over dp
%w: f32[2] = wait(%s)
%y: f32[2] = aten.mul.Tensor(%b, %w)
return %y, [%w, None]
""")


def _neg(name: str, of: str, sources: tuple[str, ...] = ()) -> Op:
    traits = traits_of("aten.neg.default")
    return Op(name, "aten.neg.default", (Ref(of),), {}, (SPEC,), traits, sources=sources)


def _order(editor: Editor) -> str:
    return " ".join(op.name for op in editor)


def _ops(program: Program) -> str:
    """The program without its header."""
    return str(program).partition("\n\n")[2]


# Looking


def test_an_editor_shows_the_ops_in_their_present_order() -> None:
    editor = Editor(BASE)
    assert list(editor) == list(BASE.ops)
    assert editor["w"] is BASE["w"]
    editor.move_before("b", "a")
    assert _order(editor) == "b a s w y"


def test_without_changes_only_the_history_grows() -> None:
    assert Editor(BASE).finish("nothing") == replace(BASE, history=("capture", "nothing"))


def test_the_program_is_not_touched() -> None:
    before = str(BASE)
    editor = Editor(BASE)
    editor.insert_after("a", _neg("n", "a"))
    editor.remove("y", use="w")
    editor.move_after("b", "w")
    editor.replace(_neg("s", "a"))
    editor.finish("changed")
    assert str(BASE) == before


def test_what_the_importer_left_is_handed_on() -> None:
    source = object()
    assert Editor(replace(BASE, source=source)).finish("kept").source is source


def test_an_empty_program_can_be_edited() -> None:
    assert Editor(Program(())).finish("empty") == Program((), (), ("empty",))


# Moving


@pytest.mark.parametrize(
    ("name", "anchor", "before", "after"),
    [
        ("b", "y", "a s w b y", "a s w y b"),
        ("y", "a", "y a b s w", "a y b s w"),
        ("a", "b", "a b s w y", "b a s w y"),
        ("b", "a", "b a s w y", "a b s w y"),
        ("s", "s", "a b s w y", "a b s w y"),
        ("a", "a", "a b s w y", "a b s w y"),
        ("y", "y", "a b s w y", "a b s w y"),
    ],
)
def test_moving_before_and_after(name: str, anchor: str, before: str, after: str) -> None:
    editor = Editor(BASE)
    editor.move_before(name, anchor)
    assert _order(editor) == before
    editor = Editor(BASE)
    editor.move_after(name, anchor)
    assert _order(editor) == after


def test_moves_may_be_made_behind_the_iterator() -> None:
    editor, seen = Editor(BASE), []
    for op in editor:
        seen.append(op.name)
        if op.name == "s":
            editor.move_before("a", "b")
            editor.insert_before("a", _neg("n", "b"))
    assert seen == ["a", "b", "s", "w", "y"]
    assert _order(editor) == "n a b s w y"


def test_a_whole_new_order() -> None:
    editor = Editor(BASE)
    editor.reorder(iter(["b", "a", "s", "w", "y"]))
    editor.move_after("b", "w")
    assert (
        _ops(editor.finish("reordered"))
        == """\
%a: f32[2] = input()
%s: f32[2] = all_reduce.start(%a) sum over dp
%w: f32[2] = wait(%s)
%b: f32[2] = input()
%y: f32[2] = aten.mul.Tensor(%b, %w)
return %y, [%w, None]
"""
    )


@pytest.mark.parametrize("order", ["a b s w", "a b s w y y", "a b s w w", "a b s w z", ""])
def test_a_new_order_names_every_op_once(order: str) -> None:
    editor = Editor(BASE)
    with pytest.raises(ProgramError, match="a new order must name every op of the program exactly once"):
        editor.reorder(order.split())
    assert _order(editor) == "a b s w y"


# Inserting, replacing, removing


def test_inserting() -> None:
    editor = Editor(BASE)
    first = editor.insert_before("a", _neg("first", "a"))
    last = editor.insert_after("y", _neg("last", "y"))
    assert (first, last) == (Ref("first"), Ref("last"))
    assert _order(editor) == "first a b s w y last"


def test_a_name_that_is_taken_gets_a_number() -> None:
    editor = Editor(BASE)
    refs = [editor.insert_after("y", _neg("a", "y")) for _ in range(3)]
    assert refs == [Ref("a_w1"), Ref("a_w2"), Ref("a_w3")]
    assert _order(editor) == "a b s w y a_w3 a_w2 a_w1"
    assert editor["a_w2"].name == "a_w2"


def test_the_name_of_a_removed_op_stays_taken() -> None:
    editor = Editor(BASE)
    editor.remove("y", use="w")
    assert editor.insert_after("w", _neg("y", "w")) == Ref("y_w1")


def test_the_name_of_an_inserted_and_removed_op_stays_taken() -> None:
    editor = Editor(BASE)
    editor.insert_after("w", _neg("new", "w"))
    editor.remove("new", use="w")
    again = editor.insert_after("w", _neg("new", "w"))
    editor.replace(replace(editor["y"], args=(Ref("b"), again)))
    assert again == Ref("new_w1")
    assert editor.finish("done")["y"].args == (Ref("b"), again)


def test_removals_never_go_in_a_circle(soon: None) -> None:
    editor = Editor(BASE)
    editor.insert_after("w", _neg("one", "w"))
    two = editor.insert_after("w", _neg("two", "w"))
    editor.remove("one", use=two.name)
    again = editor.insert_after("w", _neg("one", "w"))
    editor.remove(two.name, use=again.name)
    assert len(editor.finish("done")) == len(BASE) + 1


def test_replacing_keeps_the_place() -> None:
    editor = Editor(BASE)
    editor.replace(_neg("s", "b"))
    assert _order(editor) == "a b s w y"
    assert editor["s"] == _neg("s", "b")


def test_removing_hands_the_users_over() -> None:
    editor = Editor(BASE)
    editor.remove("w", use="b")
    assert (
        _ops(editor.finish("unwaited"))
        == """\
%a: f32[2] = input()
%b: f32[2] = input()
%s: f32[2] = all_reduce.start(%a) sum over dp
%y: f32[2] = aten.mul.Tensor(%b, %b)
return %y, [%b, None]
"""
    )


def test_removing_hands_over_again_when_the_heir_is_removed() -> None:
    editor = Editor(BASE)
    editor.remove("w", use="s")
    editor.remove("s", use="a")
    program = editor.finish("gone")
    assert program["y"].args == (Ref("b"), Ref("a"))
    assert program.outputs == (Ref("y"), (Ref("a"), None))


def test_removing_what_nobody_uses() -> None:
    editor = Editor(BASE)
    editor.insert_after("w", _neg("dead", "w"))
    editor.remove("dead")
    assert editor.finish("swept").ops == BASE.ops


def test_users_in_keywords_and_containers_are_handed_over_too() -> None:
    program = parse(
        'weft 1\n%a: f32[2] = input()\n%b: f32[2] = f()\n%c: f32[2] = g([%b, (%b,)], k={"x": %b})\nreturn %c'
    )
    editor = Editor(program)
    editor.remove("b", use="a")
    assert (
        _ops(editor.finish(""))
        == """\
%a: f32[2] = input()
%c: f32[2] = g([%a, (%a,)], k={"x": %a})
return %c
"""
    )


# Sources


def test_sources_name_ops_of_the_first_program() -> None:
    editor = Editor(BASE)
    editor.insert_after("y", _neg("one", "y", sources=("s", "w")))
    editor.insert_after("one", _neg("two", "y", sources=("one", "y", "s")))
    assert editor["two"].sources == ("s", "w", "y")


def test_sources_are_flattened_when_an_op_is_replaced() -> None:
    editor = Editor(BASE)
    editor.insert_after("a", _neg("n", "a", sources=("s",)))
    editor.replace(replace(editor["y"], sources=("n", "w")))
    assert editor["y"].sources == ("s", "w")


def test_sources_may_name_what_was_removed() -> None:
    editor = Editor(BASE)
    editor.remove("y", use="w")
    editor.insert_after("w", _neg("n", "w", sources=("y",)))
    assert editor["n"].sources == ("y",)


def test_sources_reach_through_programs() -> None:
    first = Editor(BASE)
    first.insert_after("w", _neg("n", "w", sources=("y",)))
    first.remove("y", use="n")
    second = Editor(first.finish("first"))
    second.insert_after("n", _neg("m", "n", sources=("n",)))
    assert second["m"].sources == ("y",)


def test_an_op_keeps_sources_that_an_earlier_program_has_lost() -> None:
    first = Editor(BASE)
    first.insert_after("w", _neg("n", "w", sources=("y",)))
    first.remove("y", use="n")
    second = Editor(first.finish("first"))
    second.replace(replace(second["n"], origin="elsewhere"))
    assert second.insert_after("n", replace(second["n"], args=(Ref("b"),))) == Ref("n_w1")
    assert [second[name].sources for name in ("n", "n_w1")] == [("y",), ("y",)]


# Refusing


def test_two_ops_of_one_name_are_no_program() -> None:
    with pytest.raises(ProgramError, match="an op needs a name of its own; 'a' is taken"):
        Editor(Program((_neg("a", "x"), _neg("a", "x"))))


def test_an_op_without_a_name_is_refused() -> None:
    with pytest.raises(ProgramError, match="an op needs a name of its own; '' is empty"):
        Editor(Program((_neg("", "x"),)))


@pytest.mark.parametrize("method", ["insert_before", "insert_after"])
def test_an_op_without_a_name_is_not_inserted(method: str) -> None:
    editor = Editor(BASE)
    with pytest.raises(ProgramError, match="an op needs a name of its own; '' is empty"):
        getattr(editor, method)("a", _neg("", "a"))
    assert _order(editor) == "a b s w y"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("__getitem__", ("z",)),
        ("move_before", ("z", "a")),
        ("move_before", ("a", "z")),
        ("move_after", ("z", "a")),
        ("move_after", ("a", "z")),
        ("move_after", ("z", "z")),
        ("insert_before", ("z", _neg("n", "a"))),
        ("insert_after", ("z", _neg("n", "a"))),
        ("replace", (_neg("z", "a"),)),
        ("remove", ("z",)),
    ],
)
def test_an_op_that_is_not_there_is_refused(method: str, arguments: tuple[object, ...]) -> None:
    editor = Editor(BASE)
    with pytest.raises(ProgramError, match="there is no op called %z in this program"):
        getattr(editor, method)(*arguments)
    assert editor.finish("tried").ops == BASE.ops


@pytest.mark.parametrize("heir", ["z", "y", ""])
def test_a_removal_without_a_living_heir_changes_nothing(heir: str) -> None:
    editor = Editor(BASE)
    with pytest.raises(ProgramError):
        editor.remove("y", use=heir)
    assert editor.finish("tried").ops == BASE.ops


@pytest.mark.parametrize("method", ["insert_before", "insert_after"])
def test_a_source_that_never_was_is_refused(method: str) -> None:
    editor = Editor(BASE)
    with pytest.raises(ProgramError, match="%n names %z as its source, and there is no such op"):
        getattr(editor, method)("a", _neg("n", "a", sources=("z",)))
    assert _order(editor) == "a b s w y"


def test_a_use_before_its_definition_is_refused() -> None:
    editor = Editor(BASE)
    editor.move_before("y", "w")
    message = r"%y \(aten.mul.Tensor\) would come before %w, whose value it uses"
    with pytest.raises(ProgramError, match=message):
        editor.finish("moved too far")


def test_a_use_of_itself_is_refused() -> None:
    editor = Editor(BASE)
    editor.replace(_neg("y", "y"))
    with pytest.raises(ProgramError, match="whose value it uses"):
        editor.finish("a circle")


def test_a_use_of_what_was_removed_is_refused() -> None:
    editor = Editor(BASE)
    editor.remove("w")
    with pytest.raises(ProgramError, match=r"%y \(aten.mul.Tensor\) would use %w, which was removed"):
        editor.finish("removed too much")


def test_returning_what_was_removed_is_refused() -> None:
    editor = Editor(BASE)
    editor.remove("y")
    with pytest.raises(ProgramError, match="%y"):
        editor.finish("removed too much")


# Any sequence of moves

_moves = st.lists(
    st.tuples(st.sampled_from(["move_before", "move_after"]), st.integers(0), st.integers(0)), max_size=30
)


@given(programs(), _moves)
def test_any_moves_give_the_order_that_a_list_would_give(program: Program, moves: list[tuple[str, int, int]]) -> None:
    editor, names = Editor(program), [op.name for op in program.ops]
    for method, one, other in moves:
        name, anchor = names[one % len(names)], names[other % len(names)]
        getattr(editor, method)(name, anchor)
        if name != anchor:
            names.remove(name)
            names.insert(names.index(anchor) + (method == "move_after"), name)
    assert [op.name for op in editor] == names
    assert [editor[name] for name in names] == list(editor)


@given(programs(), _moves)
def test_legal_moves_permute_the_ops_and_finish(program: Program, moves: list[tuple[str, int, int]]) -> None:
    editor, order = Editor(program), [op.name for op in program.ops]
    for method, one, other in moves:
        before = list(order)
        name, anchor = order[one % len(order)], order[other % len(order)]
        if name != anchor:
            order.remove(name)
            order.insert(order.index(anchor) + (method == "move_after"), name)
        if _is_legal(program, order):
            getattr(editor, method)(name, anchor)
        else:
            order = before
    moved = editor.finish("moved")
    assert [op.name for op in moved.ops] == order
    assert sorted(moved.ops, key=lambda op: op.name) == sorted(program.ops, key=lambda op: op.name)
    assert moved.outputs == program.outputs


@given(programs(), st.randoms(use_true_random=False))
def test_an_order_that_breaks_no_definition_is_accepted_and_any_other_refused(program: Program, random: Random) -> None:
    order = [op.name for op in program.ops]
    random.shuffle(order)
    editor = Editor(program)
    editor.reorder(order)
    if _is_legal(program, order):
        assert [op.name for op in editor.finish("shuffled").ops] == order
    else:
        with pytest.raises(ProgramError, match="would come before"):
            editor.finish("shuffled")


def _is_legal(program: Program, order: list[str]) -> bool:
    place = {name: index for index, name in enumerate(order)}
    return all(place[ref.name] < place[op.name] for op in program.ops for ref in op.refs())
