"""Where a collective may stand if everything but collectives, and what belongs to them, stays where it is.

A start takes along what only prepares its input (its *prelude*: views and casts that nobody else uses). Behind it come
its waits and all that is made of its result alone, element by element (its *family*: views, casts, scaling, copies
into a buffer, packs), down to the first op that is no such thing. So any set of collectives may be launched together at
a place that is in the window of each, and such places never contradict each other, whatever other sets are launched
where.

Why they never do: all other ops keep their order. Suppose that a collective x needs the result of another one, y. If
an op that stays lies between them, y stands before that op and x behind it. If x is given a member of y's family, then
x does not move up (`ready` is its own place), and y stands before the place where x was (`due`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from weft.analysis.dependencies import accesses, dependencies
from weft.analysis.kernels import KERNELS, Kernel, only_moves, read_names
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages
from weft.ir.program import Op, Program


@dataclass(frozen=True)
class Window:
    """A collective may be launched directly behind any position q of the program with `ready` <= q < `due`.

    Its waits may come as late as before the op at `used`, the first to use the result, and not before the op at
    `settled`, such as a barrier; the op at `overwritten` is the first to write to what is sent, so it must have landed
    by then. `prelude` and `family` are the positions of the ops that come along, in order; the
    waits are among the family, and `flying` are those of it that stand before the first of them.
    """

    start: Op
    position: int
    ready: int
    due: int
    settled: int
    used: int
    prelude: tuple[int, ...]
    family: tuple[int, ...]
    flying: tuple[int, ...]
    overwritten: int

    @cached_property
    def launched(self) -> tuple[int, ...]:
        """What stands where it is launched: the prelude, the start, and views of what is still in flight."""
        return (*self.prelude, self.position, *self.flying)

    @cached_property
    def waited(self) -> tuple[int, ...]:
        """What stands where it is waited for: the waits, and all of the family that comes before the first use."""
        return tuple([place for place in self.family[len(self.flying) :] if place < self.used])


def windows(program: Program) -> Mapping[str, Window]:
    """The window of each start that somebody waits for, in program order."""
    return program.fact(_windows)


def companions(program: Program) -> frozenset[int]:
    """The ops that belong to a collective, prelude or family: a bucket may do with one of them for all its members."""
    found = windows(program).values()
    return frozenset(place for one in found for place in (*one.prelude, *one.family))


def sent_on(program: Program) -> Mapping[str, Sequence[str]]:
    """For each start that sends what others have received, or what is made of that alone: those others, in order."""
    return program.fact(_sent_on)


def _sent_on(program: Program) -> Mapping[str, Sequence[str]]:
    before, known = dependencies(program).before, windows(program)
    received = {place: name for name, one in known.items() for place in one.family}
    found: dict[str, Sequence[str]] = {}
    for name, one in known.items():
        sent = [place for moving in (one.position, *one.prelude) for place in before[moving]]
        if givers := {received[place] for place in sent if place in received}:
            found[name] = sorted(givers, key=program.index.__getitem__)
    return found


def inputs_end(program: Program) -> int:
    """The position of the last input, which no start comes before; -1 if there is none.

    An input that comes late, behind a start, does not count: it would hold up starts that do not use it.
    """
    first_start = program.index[program.starts[0].name] if program.starts else len(program)
    return max((place for place, op in enumerate(program.ops[:first_start]) if op.is_input), default=-1)


def _windows(program: Program) -> Mapping[str, Window]:
    before = dependencies(program).before
    after = dependencies(program).after()
    waits = pairs(program).waits
    overwritten = _overwritten(program)
    owner = _owners(program, after)
    families: dict[int, list[int]] = {}
    for position, start in owner.items():
        families.setdefault(start, []).append(position)
    earliest = inputs_end(program)
    found = {}
    for op in program.starts:
        if not waits[op.name]:
            continue
        position = program.index[op.name]
        family = families[position]
        members = {*family}
        first = family.index(program.index[waits[op.name][0]])
        used = _first_user(family[first:], after, members)  # of the first wait, and of all that may follow it
        due = min(_first_user(family[:first], after, members), used)
        prelude = _prelude(program, position, after, owner, due)
        moving = {position, *prelude}
        needed = {other for place in moving for other in before[place]} - moving
        ready = position if any(other in owner for other in needed) else max({earliest, *needed})
        held = {other for name in waits[op.name] for other in before[program.index[name]]} - members
        found[op.name] = Window(
            op,
            position,
            ready,
            due=due,
            settled=max(held, default=-1),
            used=used,
            prelude=tuple(sorted(prelude)),
            family=tuple(family[1:]),
            flying=tuple(family[1:first]),
            overwritten=min(_moved(overwritten.get(name, len(program)), members, used) for name in waits[op.name]),
        )
    return found


def _first_user(places: Sequence[int], after: Sequence[Sequence[int]], members: Collection[int]) -> int:
    """The first of those behind these places that is no member of the family; if there is none, the program's end."""
    return min([other for place in places for other in after[place] if other not in members], default=len(after))


def _moved(writer: int, members: set[int], used: int) -> int:
    """Where one who overwrites what is sent will stand: a member of the family goes to before the first use."""
    return used if writer in members and writer < used else writer


def _overwritten(program: Program) -> Mapping[str, int]:
    """For each wait, the first op behind it that writes to what its collective sends, if there is one."""
    start, touched, before = pairs(program).start, accesses(program), dependencies(program).before
    found: dict[str, int] = {}
    for later, (_, written) in enumerate(touched):
        for earlier in before[later] if written else ():
            wait = program.ops[earlier].name
            if wait in start and wait not in found:
                sent = storages(program).of_args(program[start[wait]].args)
                if not sent.isdisjoint(written):
                    found[wait] = later
    return found


def _owners(program: Program, after: Sequence[Sequence[int]]) -> dict[int, int]:
    """For each op of the family of a start, and for the start itself, the position of the start; in program order."""
    owner: dict[int, int] = {}
    start_of: dict[str, int] = {}  # the same by name
    todo = [position for position, op in enumerate(program.ops) if op.comm is not None]  # it rises, so it is a heap
    reached = {*todo}  # most ops are not: they have nothing to do with any start
    while todo:
        position = heappop(todo)
        op = program.ops[position]
        start = position if op.comm is not None else _led_by(op, start_of)
        if start is None:
            continue
        owner[position] = start_of[op.name] = start
        for later in after[position]:
            if later not in reached:
                reached.add(later)
                heappush(todo, later)
    return owner


def _led_by(op: Op, start_of: Mapping[str, int]) -> int | None:
    """The start whose family an op belongs to: it reads nothing but what is of that family."""
    # Who copies into a buffer may go wherever the numbers go; whoever else uses the buffer is one who uses them.
    read = read_names(op)
    start = start_of.get(read[0]) if read else None
    if start is None or not _follows(op):
        return None
    return start if all(start_of.get(name) == start for name in read) else None


def _follows(op: Op) -> bool:
    """Whether an op may go wherever the one it reads goes: it computes an element from an element, wherever it puts
    that, and has no effect but to overwrite a buffer."""
    effects = (op.traits.mutates and op.target != "aten.copy_.default") or op.traits.random or op.traits.barrier
    by_element = KERNELS.get(op.target) is Kernel.POINTWISE or op.target == "weft.pack.default"
    return op.is_wait or op.traits.is_view or (by_element and not effects)


def _prelude(program: Program, position: int, after: list[list[int]], owner: Mapping[int, int], due: int) -> list[int]:
    """The ops that only move data and that make the input of a start, for it alone. Who writes to what they read, as
    optimisers do, must come behind them: that is no matter if he comes behind all that the start can be moved to."""
    found: list[int] = []
    moving = {position}
    todo = [position]
    while todo:
        for name in program.ops[todo.pop()].given:
            place = program.index.get(name)
            if place is None or place in moving or place in owner or not only_moves(program.ops[place]):
                continue
            others = [other for other in after[place] if other not in moving]
            if all(other >= due and other not in owner and name not in program.ops[other].given for other in others):
                found.append(place)
                moving.add(place)
                todo.append(place)
    return found
