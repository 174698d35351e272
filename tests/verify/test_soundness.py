"""Careless edits: whatever `verify` lets pass computes the same, bit for bit, on virtual ranks.

The edits here know nothing of dependencies. They move ops to any place, merge collectives with their parts put
anywhere, give ops other values, and drop ops; most of what they make is wrong. A test that says how many are accepted
guards against a verifier that is sound because it rejects everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import assume, event, given, note
from hypothesis import strategies as st

from tests.programs import programs
from tests.test_properties import inputs
from weft.analysis import pairs
from weft.errors import ProgramError
from weft.ir import Editor, Op, Program, Ref, TensorSpec
from weft.ir.args import map_leaves
from weft.ir.targets import traits_of
from weft.run import virtual
from weft.verify import violations

Edit = Callable[[Program, st.DataObject], Program]


def move(before: Program, data: st.DataObject) -> Program:
    """Some ops to any other places."""
    editor = Editor(before)
    ops = st.sampled_from([op.name for op in before.ops])
    for _ in range(data.draw(st.integers(1, 3))):
        name, anchor = data.draw(ops), data.draw(ops)
        data.draw(st.sampled_from([editor.move_before, editor.move_after]))(name, anchor)
    return editor.finish("move")


def rewire(before: Program, data: st.DataObject) -> Program:
    """An op that is given another value of the same type."""
    able = [op for op in before.ops if list(op.refs())]
    assume(able)
    op = data.draw(st.sampled_from(able))
    ref = data.draw(st.sampled_from(list(op.refs())))
    alike = [other.name for other in before.ops if other.out == before[ref.name].out]
    other = Ref(data.draw(st.sampled_from(alike)))
    editor = Editor(before)
    args = tuple(map_leaves(arg, lambda leaf: other if leaf == ref else leaf) for arg in op.args)
    editor.replace(replace(op, args=args))
    return editor.finish("rewire")


def drop(before: Program, data: st.DataObject) -> Program:
    """An op that is gone, and perhaps another value in its stead."""
    name = data.draw(st.sampled_from([op.name for op in before.ops]))
    alike = [other.name for other in before.ops if other.out == before[name].out and other.name != name]
    editor = Editor(before)
    editor.remove(name, use=data.draw(st.sampled_from(alike)) if alike else None)
    return editor.finish("drop")


def repeat(before: Program, data: st.DataObject) -> Program:
    """An op that is done again somewhere, and says that it stands for the first."""
    able = [op for op in before.ops if not op.is_input]
    assume(able)
    op = data.draw(st.sampled_from(able))
    anchor = data.draw(st.sampled_from([op.name for op in before.ops]))
    editor = Editor(before)
    editor.insert_after(anchor, replace(op, sources=(op.name,)))
    return editor.finish("repeat")


def merge(before: Program, data: st.DataObject) -> Program:
    """Two all-reduces that became one. Where its parts are put is left to chance."""
    waits = pairs(before).waits
    able = [
        op for op in before.starts if op.target == "all_reduce.start" and len(op.out) == 1 and len(waits[op.name]) == 1
    ]
    able = [op for op in able if isinstance(op.args[0], Ref) and before[waits[op.name][0]].args == (Ref(op.name),)]
    twos = [(a, b) for a in able for b in able if a is not b and a.comm == b.comm and _dtype(a) == _dtype(b)]
    assume(twos)
    members = data.draw(st.sampled_from(twos))
    return _merged(before, members, data)


def _merged(before: Program, members: tuple[Op, ...], data: st.DataObject) -> Program:
    ends = [before[pairs(before).waits[op.name][0]] for op in members]
    at = sorted(data.draw(st.lists(st.sampled_from(range(len(before))), min_size=3, max_size=3)))
    if data.draw(st.booleans()):  # where it is most likely to be right
        at = [before.index[members[0].name]] * 2 + [before.index[ends[0].name]]
    anchors = [before.ops[position].name for position in at]
    editor = Editor(before)

    def add(anchor: str, name: str, target: str, *args: object, out: tuple[int, ...], of: tuple[Op, ...] = ()) -> Ref:
        spec = TensorSpec(out, _dtype(members[0]))
        comm = members[0].comm if target.endswith(".start") else None
        sources = tuple(op.name for op in of)
        op = Op(name, target, args, {}, (spec,), traits_of(target), comm, "", sources)  # type: ignore[arg-type]
        return editor.insert_before(anchor, op)

    sizes = [_numel(op) for op in members]
    flat = [
        add(anchors[0], "flat", "aten.view.default", op.args[0], (size,), out=(size,))
        for op, size in zip(members, sizes, strict=True)
    ]
    both = add(anchors[0], "both", "aten.cat.default", tuple(flat), out=(sum(sizes),))
    start = add(anchors[1], "bucket", "all_reduce.start", both, out=(sum(sizes),), of=members)
    done = add(anchors[2], "done", "wait", start, out=(sum(sizes),), of=tuple(ends))
    begin = 0
    for end, size in zip(ends, sizes, strict=True):
        part = add(anchors[2], "part", "aten.slice.Tensor", done, 0, begin, begin + size, out=(size,))
        shape = _shape(end)
        piece = add(anchors[2], "piece", "aten.view.default", part, shape, out=shape, of=(end,))
        editor.remove(end.name, use=piece.name)
        begin += size
    for op in members:
        editor.remove(op.name)
    return editor.finish("merge")


def _shape(op: Op) -> tuple[int, ...]:
    return tuple(size for size in op.out[0].shape if isinstance(size, int))


def _numel(op: Op) -> int:
    return prod(_shape(op))


def _dtype(op: Op) -> str:
    return op.out[0].dtype


def bits(results: Sequence[Sequence[torch.Tensor | None]]) -> list[object]:
    """Something that is equal only if all bits are; NaN is a number like any other."""
    flat = [[value.flatten().tolist() for value in rank if value is not None] for rank in results]
    return [[[number.hex() for number in value] for value in rank] for rank in flat]


EDITS: dict[str, Edit] = {edit.__name__: edit for edit in (move, rewire, drop, repeat, merge)}
subjects = programs(mutate_inputs=True)


@pytest.mark.property
@pytest.mark.parametrize("name", EDITS)
@given(before=subjects, data=st.data())
def test_what_is_accepted_computes_the_same(name: str, before: Program, data: st.DataObject) -> None:
    try:
        after = EDITS[name](before, data)
    except ProgramError:  # the Editor saw it
        assume(False)
        return
    accepted = not violations(before, after)
    event(f"{name} accepted: {accepted}")
    if not accepted:
        return
    note(f"{before}became\n{after}")
    given_before = inputs(before)
    expected = bits(virtual(before, given_before))
    for reads in ("early", "late"):
        given_after = inputs(before)
        assert bits(virtual(after, given_after, reads=reads)) == expected
        assert bits(given_after) == bits(given_before)
