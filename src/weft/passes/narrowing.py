"""The rule `narrow` of `dedupe`: what is cast to fewer bytes after a gather or an exchange is cast before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.analysis.pairs import pairs
from weft.analysis.terms import CASTS
from weft.analysis.traffic import total_bytes
from weft.ir.args import Ref
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.ir.specs import DTYPES, TensorSpec
from weft.passes.base import Step
from weft.passes.findings import Findings
from weft.passes.results import not_just_waited

# They move elements, so it is the same whether those are cast before or after.
_MOVING = ("all_gather", "all_to_all")


def find_casts(found: Findings) -> None:
    """A step for each collective whose result is only ever cast to one smaller dtype."""
    facts = found.facts
    for start in facts.program.starts:
        waits = pairs(facts.program).waits[start.name] if facts.is_plain(start) else ()
        readers = [user for wait in waits for user in facts.users.get(wait, ())]
        casts = [op for op in readers if op.target in CASTS and _sizes(start, op)[0] != _sizes(start, op)[1]]
        shrinks = any(DTYPES[narrow] < DTYPES[wide] for wide, narrow in (_sizes(start, op) for op in casts))
        # That what was reduced is cast to a larger dtype is as it should be.
        if casts and (shrinks or _kind(start) in _MOVING):
            _narrow(found, start, casts, readers)


def _narrow(found: Findings, start: Op, casts: Sequence[Op], readers: Sequence[Op]) -> None:
    facts = found.facts
    assert start.comm is not None, "a start communicates"
    (wide, narrow), whole = _sizes(start, casts[0]), total_bytes(start)
    cast = f"%{casts[0].name} casts it from {wide} to {narrow}"
    small = whole * DTYPES[narrow] // DTYPES[wide]
    why = _obstacle(found, start, casts, readers) or (
        f"{small:,} bytes would be sent instead of {whole:,}" if small >= whole else None
    )
    if why is not None:
        found.refuse(start, f"{cast}, and {why}")
        return
    first, death, size = facts.lifetime(start.name)
    value = start.args[0]
    assert isinstance(value, Ref), "it is plain"
    sent = facts.program[value.name].out[0].nbytes * DTYPES[narrow] // DTYPES[wide]
    ends = [facts.lifetime(op.name) for op in casts]
    waited = facts.program.index[pairs(facts.program).waits[start.name][-1]]
    leases = [(first, death, -size), (first, waited, sent)]
    leases += [(birth, end, -nbytes) for birth, end, nbytes in ends]
    leases.append((first, max(end for _, end, _ in ends), size * DTYPES[narrow] // DTYPES[wide]))
    us = facts.start_us(start) - facts.us(start.comm, small)
    what = f"{cast}, which is now done before it: {small:,} bytes instead of {whole:,}"
    if found.decide(start, leases, what + facts.saved(us)):
        found.reserve(start.name, *(op.name for op in casts))
        found.steps.append(Step("narrow", (start.name, *(op.name for op in casts))))


def _obstacle(found: Findings, start: Op, casts: Sequence[Op], readers: Sequence[Op]) -> str | None:
    facts = found.facts
    if _kind(start) not in _MOVING:
        return "to reduce what was cast is not to cast what was reduced"
    other = next((op for op in readers if op not in casts or op.out != casts[0].out), None)
    if other is not None:
        return f"%{other.name} reads it otherwise"
    if any(_elsewhere(start, op) for op in casts):
        return "it is moved to another device, or laid out otherwise, as well"
    if facts.is_returned(start.name):
        return "it is returned as it is"
    if (why := not_just_waited(facts.program, start)) is not None:
        return why
    if found.is_taken(start.name):
        return "it has part in another change; another run may see to it"
    if any(op.refs() != (Ref(_wait(op)),) for op in casts):
        return f"%{casts[0].name} is given more than that"
    writer = facts.writer((start.name, *(op.name for op in casts)))
    if writer is not None:
        return f"%{writer.name} writes to one of them"
    if sum(facts.is_returned(op.name) for op in casts) > 1:
        return "the results of several casts are returned, which would be one tensor"
    return None


def _elsewhere(start: Op, cast: Op) -> bool:
    """Whether a cast does more than cast: its result lies on another device, or otherwise."""
    (made,), (given,) = cast.out, start.out
    if not isinstance(made, TensorSpec) or not isinstance(given, TensorSpec):
        return True
    return made.strides is not None or made.device != given.device


def _kind(start: Op) -> str:
    assert start.comm is not None, "a start communicates"
    return start.comm.kind


def _wait(cast: Op) -> str:
    value = cast.args[0] if cast.args else None
    return value.name if isinstance(value, Ref) else ""


def _sizes(start: Op, cast: Op) -> tuple[str, str]:
    """The dtypes before and after a cast."""
    given, made = start.out[0], cast.out[0]
    return given.dtype, made.dtype if isinstance(made, TensorSpec) else given.dtype


def narrow(editor: Editor, program: Program, start: str, casts: Sequence[str]) -> list[str]:
    """Cast what is sent instead of what is received; the result stands for these casts."""
    op, cast, waits = program[start], program[casts[0]], pairs(program).waits[start]
    (made,) = cast.out
    assert isinstance(made, TensorSpec)
    assert isinstance(op.args[0], Ref)
    given = program[op.args[0].name].out[0]
    assert isinstance(given, TensorSpec)
    less = replace(given, dtype=made.dtype)
    before = replace(cast, name="narrow", args=(op.args[0], *cast.args[1:]), out=(less,), sources=())
    sent = editor.insert_before(start, before)
    made = TensorSpec(made.shape, made.dtype, None, made.device)
    sends = replace(op, name="narrowed", args=(sent, *op.args[1:]), out=(made,), sources=(start,))
    started = editor.insert_before(start, sends)
    wait = replace(program[waits[0]], name="narrowed_done", args=(started,), out=(made,), sources=tuple(casts))
    done = editor.insert_before(waits[0], wait)
    for name in casts:
        editor.remove(name, use=done.name)
    for name in (*waits, start):
        editor.remove(name)
    return [*casts, *waits, start]
