"""Careless edits: whatever `verify` lets pass computes the same, bit for bit, on virtual ranks.

The edits here know nothing of dependencies. They move ops to any place, merge collectives with their parts put
anywhere, give ops other values, drop and repeat them; most of what they make is wrong. That what is right is accepted,
the goldens `safe__*` show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, note
from hypothesis import strategies as st

from tests.analysis.texts import program
from tests.programs import programs
from tests.values import assert_computes_the_same
from weft.analysis import pairs
from weft.errors import ProgramError
from weft.ir import Arg, Editor, Op, Program, Ref, TensorSpec
from weft.ir.args import map_leaves
from weft.ir.targets import traits_of
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


def once(before: Program, data: st.DataObject) -> Program:
    """A collective that is said to stand for another one, too."""
    waits = pairs(before).waits
    able = [op for op in before.starts if len(waits[op.name]) == 1 and not op.traits.mutates]
    alike = [(a, b) for i, a in enumerate(able) for b in able[i + 1 :] if (a.target, a.out) == (b.target, b.out)]
    assume(alike)
    likely = [(a, b) for a, b in alike if a.args == b.args]
    first, second = data.draw(st.sampled_from(likely or alike))
    kept, gone = (before[waits[op.name][0]] for op in (first, second))
    editor = Editor(before)
    editor.replace(replace(first, sources=(first.name, second.name)))
    editor.replace(replace(kept, sources=(kept.name, gone.name)))
    editor.remove(gone.name, use=kept.name)
    editor.remove(second.name)
    return editor.finish("once")


class Rebuilding:
    """Takes reductions of four numbers out of a program and puts other ops in, at places that are left to chance."""

    def __init__(self, before: Program, count: int, data: st.DataObject) -> None:
        waits = pairs(before).waits
        able = [op for op in before.starts if op.target == "all_reduce.start" and op.out == (_four(4),)]
        able = [op for op in able if len(waits[op.name]) == 1 and before[waits[op.name][0]].args == (Ref(op.name),)]
        assume(len(able) >= count)
        self.starts = data.draw(st.permutations(able))[:count]
        self.waits = [before[waits[op.name][0]] for op in self.starts]
        self.before, self.data, self.editor = before, data, Editor(before)
        made = max(before.index[ref.name] for op in self.starts for ref in op.refs())
        used = [at for at, op in enumerate(before.ops) for ref in op.refs() if before[ref.name] in self.waits]
        self._next, self._last = made + 1, min([*used, len(before) - 1])
        assume(self._next <= self._last)

    def step(self) -> None:
        """From here on, ops are put in a little later, or where the first of the starts or waits is."""
        likely = [self.before.index[op.name] for op in (self.starts[0], self.waits[0])]
        able = range(self._next, self._last + 1)
        self._next = self.data.draw(st.sampled_from([*(at for at in likely if at in able), *able]))

    def add(self, name: str, target: str, *args: Arg, size: int, of: Sequence[Op] = ()) -> Ref:
        comm = self.starts[0].comm if target == "all_reduce.start" else None
        sources = tuple(op.name for op in of)
        op = Op(name, target, args, {}, (_four(size),), traits_of(target), comm, "", sources)
        return self.editor.insert_before(self.before.ops[self._next].name, op)

    def finish(self, results: Sequence[Ref]) -> Program:
        for wait, result in zip(self.waits, results, strict=True):
            self.editor.remove(wait.name, use=result.name)
        for start in self.starts:
            self.editor.remove(start.name)
        return self.editor.finish("rebuilt")


def _four(size: int) -> TensorSpec:
    return TensorSpec((size,), "f32")


def merge(before: Program, data: st.DataObject) -> Program:
    """Two all-reduces that became one."""
    work = Rebuilding(before, 2, data)
    both = work.add("both", "aten.cat.default", tuple(op.args[0] for op in work.starts), size=8)
    work.step()
    bucket = work.add("bucket", "all_reduce.start", both, size=8, of=work.starts)
    work.step()
    done = work.add("done", "wait", bucket, size=8, of=work.waits)
    work.step()
    parts = [
        work.add("part", "aten.slice.Tensor", done, 0, 4 * place, 4 * place + 4, size=4, of=(wait,))
        for place, wait in enumerate(work.waits)
    ]
    return work.finish(parts)


def split(before: Program, data: st.DataObject) -> Program:
    """An all-reduce that became two."""
    work = Rebuilding(before, 1, data)
    sent = work.starts[0].args[0]
    halves = [work.add("half", "aten.slice.Tensor", sent, 0, at, at + 2, size=2) for at in (0, 2)]
    chunks = []
    for half in halves:
        work.step()
        chunks.append(work.add("chunk", "all_reduce.start", half, size=2, of=work.starts))
    done = []
    for chunk in chunks:
        work.step()
        done.append(work.add("done", "wait", chunk, size=2))
    work.step()
    return work.finish([work.add("whole", "aten.cat.default", tuple(done), size=4, of=work.waits)])


@st.composite
def reductions(draw: st.DrawFn) -> Program:
    """Programs that reduce a lot, and write to what they reduce and to what comes of it."""
    base = {name: name for name in "abc"}
    lines = [f"%{name}: f32[4] = input()" for name in base]
    flights: dict[str, str] = {}  # start -> what it sends
    for number in range(draw(st.integers(6, 16))):
        ready = sorted(set(base) - set(flights))
        value = draw(st.sampled_from(ready))
        match draw(st.sampled_from(["neg", "add", "write", "write", "start", "start", "start", "wait", "wait"])):
            case "neg":
                lines.append(f"%n{number}: f32[4] = aten.neg.default(%{value})")
                base[f"n{number}"] = f"n{number}"
            case "add":
                other = draw(st.sampled_from(ready))
                lines.append(f"%n{number}: f32[4] = aten.add.Tensor(%{value}, %{other})")
                base[f"n{number}"] = f"n{number}"
            case "write" if base[value] not in flights.values():
                lines.append(f"%n{number}: f32[4] = aten.mul_.Scalar(%{value}, 2)")
                base[f"n{number}"] = base[value]
            case "start":
                lines.append(f"%s{number}: f32[4] = all_reduce.start(%{value}) sum over pair")
                flights[f"s{number}"], base[f"s{number}"] = base[value], f"s{number}"
            case "wait" if flights:
                start = draw(st.sampled_from(sorted(flights)))
                lines.append(f"%f{number}: f32[4] = wait(%{start})")
                del flights[start]
                base[f"f{number}"] = base.pop(start)
    lines += [f"%last_{start}: f32[4] = wait(%{start})" for start in flights]
    values = [*sorted(set(base) - set(flights)), *(f"last_{start}" for start in flights)]
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=6))
    return program("\n".join([*lines, "return " + ", ".join(f"%{name}" for name in outputs)]), "group pair = 0..1\n")


EDITS: dict[str, Edit] = {edit.__name__: edit for edit in (move, rewire, drop, repeat, once, merge, split)}
subjects = programs(mutate_inputs=True) | reductions()


@pytest.mark.parametrize("name", EDITS)
@given(data=st.data())
def test_what_is_accepted_computes_the_same(name: str, data: st.DataObject) -> None:
    before = data.draw(reductions() if name in ("once", "merge", "split") else subjects)
    try:
        after = EDITS[name](before, data)
    except ProgramError:  # the Editor saw it
        event(f"{name} impossible")
        return
    accepted = not violations(before, after)
    event(f"{name} accepted: {accepted}")
    if not accepted:
        return
    note(f"{before}became\n{after}")
    assert_computes_the_same(before, after)
