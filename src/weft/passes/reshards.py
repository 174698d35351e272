"""The rules `scatter` and `drop` of `dedupe`: reductions of which a rank needs its own part, gathers of own parts.

Which part is a rank's own can be told only of a program that knows its rank. A plan for one rank serves the others:
`verify` finds out on each of them that it is their own part, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.analysis.pairs import pairs
from weft.analysis.traffic import total_bytes
from weft.ir.args import Ref, refs
from weft.ir.editor import Editor
from weft.ir.program import Collective, Group, Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.targets import traits_of
from weft.passes.base import Step
from weft.passes.findings import Facts, Findings
from weft.passes.results import not_just_waited

_VIEW = "aten.view.default"
_ACROSS = "such parts do not lie one behind the other"


def find_gathers_of_parts(found: Findings) -> None:
    """A step for each gather of every rank's own part of what all of them have."""
    facts, table, terms = found.facts, found.facts.table, found.facts.terms.of
    holders: dict[int, str] = {}  # for each term, the first value that has it
    for op in facts.program.ops:
        if op.comm is not None and op.comm.kind == "all_gather" and facts.is_plain(op):
            sent, made = facts.terms.sent[op.name], terms[op.name]
            across = table.cut_across(sent, op.comm.group.size)
            if made != table.term("gather", op.comm.group, sent):
                if made in holders:
                    _drop(found, op, holders[made])
            elif across is not None and across[1] in holders:
                found.refuse(op, f"it gathers parts of %{holders[across[1]]} along dimension {across[0]}: {_ACROSS}")
            elif (part := table.part_of(sent)) is not None and part.count == op.comm.group.size and part.of in holders:
                why = _not_own(facts, op.comm.group, part.number) or "ranks are not known to have the same there"
                found.refuse(op, f"it gathers part {part.number} of %{holders[part.of]}: {why}")
        elif op.comm is None and op.name in terms and _in_rows(op):
            holders.setdefault(terms[op.name], op.name)


def _in_rows(op: Op) -> bool:
    """Whether the result of an op lies row by row, so that it can be looked at in any shape."""
    return isinstance(op.out[0], TensorSpec) and op.out[0].strides is None


def _drop(found: Findings, start: Op, whole: str) -> None:
    facts = found.facts
    why = _in_the_way(facts, start, whole)
    if why is not None:
        found.refuse(start, f"it gives %{whole} back, of which it gathers the parts, and {why}")
        return
    (birth, death, size), (_, end, held) = facts.lifetime(start.name), facts.lifetime(whole)
    what = f"it gives %{whole} back, of which it gathers the parts: {total_bytes(start):,} bytes"
    what += facts.saved(facts.start_us(start))
    if found.decide(start, [(end + 1, death, held), (birth, death, -size)], what):
        found.reserve(start.name, whole)
        found.steps.append(Step("drop", (start.name, whole)))


def _in_the_way(facts: Facts, start: Op, whole: str) -> str | None:
    if (why := not_just_waited(facts.program, start)) is not None:
        return why
    if (writer := facts.writer((whole, start.name))) is not None:
        return f"%{writer.name} writes to one of them"
    if facts.is_returned(start.name) and facts.is_returned(whole):
        return "both are returned: the caller would have one tensor for two"
    return None


def _not_own(facts: Facts, group: Group, number: int) -> str | None:
    own = facts.table.own(group)
    if own is None:
        return "whether that is the rank's own cannot be told, as the program does not say of which rank it is"
    return None if own == number else f"the rank's own is part {own}"


def find_reductions_to_parts(found: Findings) -> None:
    """A step for each all-reduce of which nobody reads more than the rank's own part."""
    facts = found.facts
    sums = [op for op in facts.program.starts if op.comm is not None and op.comm.kind == "all_reduce"]
    inside: dict[int, list[Op]] = {}
    for op in facts.program.ops if sums else ():
        if op.traits.views and not op.is_start:
            for storage in facts.known.of_value(op.name):
                inside.setdefault(storage, []).append(op)
    for start in sums:
        if facts.is_plain(start):
            (storage,) = facts.known.of_value(start.name)
            _scatter(found, start, inside.get(storage, []))


def _scatter(found: Findings, start: Op, views: Sequence[Op]) -> None:
    """Decide about an all-reduce, whose result is looked at in these ways."""
    facts, comm = found.facts, start.comm
    assert comm is not None, "a start communicates"
    terms = {op.name: facts.terms.of.get(op.name) for op in views}
    own = facts.table.term("scatter", comm.group, comm.reduce_op, facts.terms.sent[start.name])
    used = [op for op in views if facts.users.get(op.name) or facts.is_returned(op.name)]
    taken = [op for op in used if terms[op.name] == own]
    if not taken:
        _not_taken(found, start, used)
        return
    why = _reads_more(facts, views, terms, own) or _unfit(found, start, taken)
    if why is not None:
        found.refuse(start, f"%{taken[0].name} takes the rank's own part of it, {why}")
        return
    firsts = [op for op in views if terms[op.name] == own and terms.get(_base(op)) != own]
    birth, death, size = facts.lifetime(start.name)
    after = Collective("reduce_scatter", comm.group, comm.reduce_op)
    us = facts.start_us(start) - facts.us(after, size)
    if us < 0:
        found.refuse(
            start, f"%{taken[0].name} takes the rank's own part of it, and a reduce-scatter takes {-us:,.0f} us more"
        )
        return
    what = f"became a reduce-scatter: of {size:,} bytes the rank's own {size // comm.group.size:,} are read"
    if found.decide(start, [(birth, death, size // comm.group.size - size)], what + facts.saved(us)):
        found.reserve(start.name)
        found.steps.append(Step("scatter", (start.name, *(op.name for op in firsts))))


def _not_taken(found: Findings, start: Op, used: Sequence[Op]) -> None:
    """Say why a part of an all-reduce that somebody takes is not what a reduce-scatter would give."""
    facts, group, whole = found.facts, _group(start), found.facts.terms.of[start.name]
    for op in used:
        if op.name not in facts.terms.of:
            continue
        part = facts.table.part_of(facts.terms.of[op.name])
        across = facts.table.cut_across(facts.terms.of[op.name], group.size)
        if part is not None and (part.of, part.count) == (whole, group.size):
            why = _not_own(facts, group, part.number)
            found.refuse(start, f"%{op.name} takes part {part.number} of it: {why}")
            return
        if across is not None and across[1] == whole:
            found.refuse(start, f"%{op.name} takes a part of it along dimension {across[0]}: {_ACROSS}")
            return


def _reads_more(facts: Facts, views: Sequence[Op], terms: dict[str, int | None], own: int) -> str | None:
    """Who reads something else than the rank's own part."""
    names = {op.name for op in views}
    for op in views:
        if terms[op.name] == own:
            continue
        for user in facts.users.get(op.name, ()):
            if user.name not in names:
                return f"and %{user.name} reads more"
    returned = [ref.name for output in facts.program.outputs for ref in refs(output)]
    more = next((name for name in returned if name in names and terms[name] != own), None)
    return f"and %{more} is returned" if more is not None else None


def _unfit(found: Findings, start: Op, taken: Sequence[Op]) -> str | None:
    facts = found.facts
    if found.is_taken(start.name):
        return "and it has part in another change; another run may see to it"
    if (why := not_just_waited(facts.program, start)) is not None:
        return f"and {why}"
    if (writer := facts.writer((start.name,))) is not None:
        return f"and %{writer.name} writes to it"
    value = start.args[0]
    given = facts.program[value.name].out[0] if isinstance(value, Ref) else None
    if not isinstance(given, TensorSpec) or given.strides is not None:
        return "and its input does not lie row by row"
    if any(isinstance(op.out[0], TensorSpec) and op.out[0].strides is not None for op in taken if _returned(facts, op)):
        return "and returns it with the strides of the whole"
    return None


def _returned(facts: Facts, op: Op) -> bool:
    return any(Ref(op.name) in refs(output) for output in facts.program.outputs)


def _base(op: Op) -> str:
    value = op.args[0] if op.args else None
    return value.name if isinstance(value, Ref) else ""


def _group(start: Op) -> Group:
    assert start.comm is not None, "a start communicates"
    return start.comm.group


def drop(editor: Editor, program: Program, start: str, whole: str) -> list[str]:
    """Let the whole stand for the gather of its parts."""
    waits = pairs(program).waits[start]
    for wait in waits:
        op = program[wait]
        spec = op.out[0]
        view = Op("whole", _VIEW, (Ref(whole), spec.shape), {}, op.out, traits_of(_VIEW), None, op.origin, (wait,))
        editor.remove(wait, use=editor.insert_before(wait, view).name)
    editor.remove(start)
    return [start, *waits]


def scatter(editor: Editor, program: Program, start: str, parts: Sequence[str]) -> list[str]:
    """Put a reduce-scatter in the place of an all-reduce; its result stands for these parts."""
    op, (spec,) = program[start], program[parts[0]].out
    assert op.comm is not None, "a start communicates"
    assert isinstance(spec, TensorSpec)
    assert isinstance(op.args[0], Ref)
    size, sent = op.comm.group.size, op.args[0]
    given = program[sent.name].out[0]
    result = TensorSpec(spec.shape, spec.dtype)
    if spec.shape[:1] == () or (spec.shape[0] * size, *spec.shape[1:]) != given.shape:
        flat = TensorSpec((spec.numel * size,), spec.dtype)
        sent = editor.insert_before(start, _view("flat", sent, flat, op.origin))
        result = TensorSpec((spec.numel,), spec.dtype)
    comm = Collective("reduce_scatter", op.comm.group, op.comm.reduce_op)
    target = "reduce_scatter.start"
    made = Op("scattered", target, (sent,), op.kwargs, (result,), traits_of(target), comm, op.origin, (start,))
    started = editor.insert_before(start, made)
    wait, *_ = pairs(program).waits[start]
    done = Op("scattered_done", "wait", (started,), {}, (result,), traits_of("wait"), None, program[wait].origin)
    finished = editor.insert_before(wait, done)
    for part in parts:
        (spec,) = program[part].out
        assert isinstance(spec, TensorSpec)
        own = _view("own", finished, TensorSpec(spec.shape, spec.dtype), program[part].origin, (part,))
        editor.remove(part, use=editor.insert_before(part, own).name)
    views = _views(program, start, parts)
    for name in views:
        editor.remove(name)
    return [*views, *parts]


def _views(program: Program, start: str, parts: Sequence[str]) -> list[str]:
    """A start and all that looks at its result, without these parts and what looks at them."""
    found = {start: None}
    for op in program.ops[program.index[start] + 1 :]:
        if op.name not in parts and any(name in found for name in op.given):
            found[op.name] = None
    return list(found)


def _view(name: str, value: Ref, spec: TensorSpec, origin: str, sources: tuple[str, ...] = ()) -> Op:
    return Op(name, _VIEW, (value, spec.shape), {}, (spec,), traits_of(_VIEW), None, origin, sources)
