"""Rules between a Program and the one that was made from it. Each yields (op at fault in `after`, what is wrong)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.analysis.dependencies import Kind, dependencies
from weft.ir.args import Arg, refs
from weft.ir.program import Op, Program
from weft.ir.specs import Spec, TensorSpec
from weft.ir.text import print_program, print_spec
from weft.verify.change import Change
from weft.verify.excerpts import cut, named, short
from weft.verify.heirs import Heirs, families


def inputs_kept(change: Change) -> Iterator[tuple[str, str]]:
    """The same inputs in the same order."""
    had, has = ([(op.name, op.out) for op in program.inputs] for program in (change.before, change.after))
    if had != has:
        names = [", ".join(f"%{name}" for name, _ in entries) or "none" for entries in (had, has)]
        same = "the same names with other types" if names[0] == names[1] else names[1]
        yield "", f"the inputs were {names[0]} and are {same}"


def outputs_kept(change: Change) -> Iterator[tuple[str, str]]:
    """The same outputs: the same values, of the same type."""
    before, after, heirs = change.before, change.after, change.heirs
    if len(before.outputs) != len(after.outputs):
        yield "", f"the program returned {len(before.outputs)} values and returns {len(after.outputs)}"
        return
    for number, (was, now) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if not heirs.same(was, now):
            yield _first_name(now), f"output {number} was {_shown(was)} and is {_shown(now)}"
            continue
        for old, new in zip(refs(was), refs(now), strict=True):
            if before[old.name].out != after[new.name].out:
                types = [", ".join(map(print_spec, op.out)) for op in (before[old.name], after[new.name])]
                yield new.name, f"output {number} was {types[0]} and is {types[1]}"


def arguments_kept(change: Change) -> Iterator[tuple[str, str]]:
    """An op that is still there does the same to the same values. One that says what it stands for is another op."""
    before, heirs = change.before, change.heirs
    known = {*map(id, before.ops)}
    for op in [op for op in change.after.ops if id(op) not in known]:  # an op never changes
        if op.name not in before:
            continue
        old = before[op.name]
        if op.sources == old.sources and not _does_the_same(old, op, heirs):
            said = old.collective
            ranks = "" if said is None or said == op.collective else f" (ranks {list(said.group.ranks)})"
            yield op.name, f"%{op.name} was another op before: {short(old)}{ranks}"


def random_order(change: Change) -> Iterator[tuple[str, str]]:
    """Random ops draw the same numbers in the same order, and none is lost or added."""
    yield from _order_kept(change, Kind.RANDOM, "draw random numbers")
    drew, draws = ([op for op in program.ops if op.traits.random] for program in (change.before, change.after))
    yield from _not_lost(change, "draws random numbers", drew)
    yield from _not_added(change, "draws random numbers", draws)
    yield from _drawn_alike(change, draws)


def barriers(change: Change) -> Iterator[tuple[str, str]]:
    """Nothing crosses a barrier, and none is lost or added."""
    yield from _order_kept(change, Kind.BARRIER, "are kept apart by a barrier")
    yield from _not_lost(change, "is a barrier", [op for op in change.before.ops if op.traits.barrier])
    yield from _not_added(change, "is a barrier", [op for op in change.after.ops if op.traits.barrier])


def _drawn_alike(change: Change, draws: Iterable[Op]) -> Iterator[tuple[str, str]]:
    """To draw once for two, or twice for one, is to draw other numbers."""
    before, after, heirs = change.before, change.after, change.heirs
    for old, new in families({op.name: heirs.origins(op) for op in draws}):
        was, now = [before[name] for name in old], [after[name] for name in new]
        if [(op.target, op.out) for op in was] != [(op.target, op.out) for op in now]:
            yield new[-1], f"{named(new)} draws other random numbers than {named(old)}, which it stands for"


def _does_the_same(old: Op, new: Op, heirs: Heirs) -> bool:
    if (old.target, old.traits, tuple(old.kwargs)) != (new.target, new.traits, tuple(new.kwargs)):
        return False
    if (old.comm, old.inside) != (new.comm, new.inside):
        return False
    if old.out is not new.out and list(map(_type, old.out)) != list(map(_type, new.out)):
        return False
    if len(old.args) != len(new.args):
        return False
    pairs = zip((*old.args, *old.kwargs.values()), (*new.args, *new.kwargs.values()), strict=True)
    return all(heirs.same(was, now) for was, now in pairs)


def _type(spec: Spec) -> Spec:
    """What must stay: strides may change where nobody sees them."""
    return TensorSpec(spec.shape, spec.dtype, None, spec.device) if isinstance(spec, TensorSpec) else spec


def _first_name(arg: Arg) -> str:
    return next((ref.name for ref in refs(arg)), "")


def _shown(arg: Arg) -> str:
    return cut(print_program(Program((), (arg,))).splitlines()[-1].removeprefix("return "))


def _order_kept(change: Change, kind: Kind, why: str) -> Iterator[tuple[str, str]]:
    before, after, heirs = change.before, change.after, change.heirs
    for first, second, found in dependencies(before).order:
        if found is not kind:
            continue
        one, other = before.ops[first], before.ops[second]
        places = [[after.index[name] for name in heirs.of(op.name)] for op in (one, other)]
        if all(places) and max(places[0]) >= min(places[1]) and places[0] != places[1]:  # unless they became one
            culprit = after.ops[min(places[1])].name
            yield culprit, f"%{one.name} must stay before %{other.name}: they {why}"


def _not_lost(change: Change, what: str, ops: Iterable[Op]) -> Iterator[tuple[str, str]]:
    for op in ops:
        if not change.heirs.of(op.name):
            yield "", f"%{op.name} ({op.target}) {what}, and is gone"


def _not_added(change: Change, what: str, ops: Iterable[Op]) -> Iterator[tuple[str, str]]:
    for op in ops:
        if not change.heirs.origins(op):
            yield op.name, f"%{op.name} ({op.target}) {what}, and was not there before"
