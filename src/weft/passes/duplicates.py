"""The rule `once` of `dedupe` and `gather_once`: the same collective of the same value is done once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from weft.analysis.pairs import pairs
from weft.analysis.traffic import total_bytes
from weft.ir.args import Ref
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.ir.text import counted
from weft.passes.base import Step
from weft.passes.budget import Budget
from weft.passes.findings import Facts, Findings
from weft.passes.leaving_out import Verb
from weft.passes.results import not_just_waited


@dataclass
class _Keeper:
    """The collective that is done, for itself and for those that are not.

    Its result lives until `death`, and the caller gets it if `returned`.
    """

    start: Op
    death: int
    returned: bool
    others: list[str] = field(default_factory=list)


def find_duplicates(found: Findings) -> None:
    """A step for each collective that another one can stand for; of those that look like it, why not."""
    facts = found.facts
    keepers: dict[object, _Keeper] = {}
    looks: dict[object, Op] = {}  # by what is the same at first sight
    kept: list[_Keeper] = []
    for start in facts.program.starts:
        if not facts.is_plain(start) or found.is_taken(start.name):
            continue
        value = start.args[0]
        assert isinstance(value, Ref), "it is plain"
        term = facts.terms.of[start.name]
        like = start.target, facts.terms.of[value.name], start.args[1:]
        key = start.target, start.comm, term, start.args[1:], facts.terms.sent[start.name], start.out
        keeper, other = keepers.get(key), looks.setdefault(like, start)
        if keeper is None and other is not start:
            _differs(found, other, start)
        if keeper is None or not _merged(found, keeper, start):
            keepers[key] = _Keeper(start, facts.lifetime(start.name)[1], facts.is_returned(start.name))
            kept.append(keepers[key])
            looks[like] = start
    for keeper in kept:
        if keeper.others:
            found.reserve(keeper.start.name, *keeper.others)
            found.steps.append(Step("once", (keeper.start.name, *keeper.others)))


def duplicates(facts: Facts) -> list[Step]:
    """The steps that there would be if memory were no matter."""
    found = Findings("", facts, Budget(facts.program, None))  # nobody reads its remarks
    find_duplicates(found)
    return found.steps


def _differs(found: Findings, other: Op, start: Op) -> None:
    """Say why two collectives that look alike are not."""
    assert other.comm is not None, "a start communicates"
    assert start.comm is not None, "a start communicates"
    if other.comm.group != start.comm.group:
        found.refuse(start, f"%{other.name} sends the same over {other.comm.group.name}, which is another group")
    elif other.comm == start.comm and (writer := next(_between(found, other, start), None)) is not None:
        found.refuse(start, f"%{other.name} sends the same value, and %{writer.name} writes to it in between")


def _between(found: Findings, other: Op, start: Op) -> Iterator[Op]:
    facts, index = found.facts, found.facts.program.index
    for storage in sorted(facts.known.of_args(start.args)):
        for writer in facts.writers.get(storage, ()):
            if index[other.name] < index[writer.name] < index[start.name]:
                yield writer


def _merged(found: Findings, keeper: _Keeper, start: Op) -> bool:
    facts, kept = found.facts, keeper.start
    why = _obstacle(found, keeper, start)
    if why is not None:
        found.refuse(start, f"it is the same as %{kept.name}, and {why}")
        return False
    birth, death, size = facts.lifetime(start.name)
    longer = max(0, birth - keeper.death - 1)
    what = f"%{kept.name} has done it already: {total_bytes(start):,} bytes{facts.saved(facts.start_us(start))}"
    what += f"; its result is held for {counted(longer, 'op')} more" if longer else ""
    if not found.decide(start, [(keeper.death + 1, death, size), (birth, death, -size)], what):
        return False
    keeper.death = max(keeper.death, death)
    keeper.returned |= facts.is_returned(start.name)
    keeper.others.append(start.name)
    return True


def _obstacle(found: Findings, keeper: _Keeper, start: Op) -> str | None:
    facts, program, kept = found.facts, found.facts.program, keeper.start
    if (why := not_just_waited(program, kept) or not_just_waited(program, start)) is not None:
        return why
    if (writer := facts.writer((kept.name, start.name))) is not None:
        return f"%{writer.name} writes to the result"
    if keeper.returned and facts.is_returned(start.name):
        return "both are returned: the caller would have one tensor for two"
    last = max(program.index[wait] for one in (kept, start) for wait in pairs(program).waits[one.name])
    if (barrier := facts.barrier(program.index[kept.name], last)) is not None:
        return f"the barrier %{barrier.name} is between them"
    return None


def _do_once(editor: Editor, program: Program, starts: tuple[str, ...]) -> list[str]:
    """Let the first start stand for all. Returns the ops that were removed."""
    first, *others = starts
    waits = sorted((wait for start in starts for wait in pairs(program).waits[start]), key=program.index.__getitem__)
    kept, *rest = waits
    editor.replace(replace(editor[first], sources=starts))
    editor.replace(replace(editor[kept], args=(Ref(first),), sources=tuple(waits)))
    for wait in rest:
        editor.remove(wait, use=kept)
    for start in others:
        editor.remove(start)
    return [*rest, *others]


ONCE: Mapping[str, Verb] = {"once": lambda editor, program, step: _do_once(editor, program, step.ops)}
