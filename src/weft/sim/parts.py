"""A Program as the lower bounds see it: how long each op takes at least, what it keeps busy, what it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.analysis.dependencies import Kind, accesses, arguments, dependencies
from weft.analysis.fusion import fusion
from weft.analysis.kernels import Kernel, input_specs
from weft.analysis.terms import CASTS
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window, companions, windows
from weft.cost.model import CostModel, DivisibleModel, HardwareModel
from weft.cost.prices import Prices
from weft.ir.program import Collective, Program
from weft.sim.chunks import chunks
from weft.sim.closing import closing
from weft.sim.cuts import cuts
from weft.sim.extras import extras
from weft.sim.floors import Floors, Most, ways_of
from weft.sim.mates import Mates, mates
from weft.sim.pieced import dearer

# How much faster the pieces of an op are taken to be than the whole where the cost model does not know.
_CUT_GAIN = 0.01


@dataclass(frozen=True)
class Parts:
    """How long each op is at least, and which edges a cut softens.

    `pieces[i]` is the least that any piece of op i takes. `loads` says for each resource, which can do only one thing
    at a time, how long each op keeps it busy. An edge is hard, (op, False), if the later op cannot begin
    before the earlier one has ended, and soft, (op, True), if both may be cut so that their pieces overlap.
    `whole[i]` says that op i works on the compute stream and is neither cut nor joined with others, whatever is done.

    A collective that a matmul might carry out inside it keeps nothing busy for certain. `extras` says what it adds to
    compute then, and `flights` for each resource how long it would be busy with collectives, these among them, where
    each counts for no more than what delays compute as much as its extra does. `dearer` says for each matmul that might
    be cut by how much its pieces take longer, for each of COUNTS; `closing`, for ops that are never cut, what they have
    to wait for behind the last piece of anything.
    """

    us: tuple[float, ...]
    pieces: tuple[float, ...]
    before: tuple[tuple[tuple[int, bool], ...], ...]
    loads: Mapping[str, Mapping[int, float]]
    whole: tuple[bool, ...]
    extras: Mapping[int, float]
    dearer: Mapping[int, tuple[float, ...]]
    closing: Mapping[int, Sequence[tuple[int, float]]]
    flights: Mapping[str, Mapping[int, float]]
    starts: Starts

    @staticmethod
    def of(program: Program, cost: CostModel, known: Prices) -> Parts:
        together, by_rows, joined = cuts(program), chunks(program), companions(program)
        cuttable = [bool(found) or chunked for found, chunked in zip(together, by_rows, strict=True)]
        faster = [
            bool(found) or (chunked and op.traits.matmul)
            for op, found, chunked in zip(program.ops, together, by_rows, strict=True)
        ]
        us = _least_compute(program, cost, known, faster, joined)
        added = extras(program, cost, us)
        matmuls = [
            place for place, op in enumerate(program.ops) if op.traits.matmul and cuttable[place] and us[place] > 0
        ]
        pieced = dearer(program, cost, matmuls, us)
        work = {place: time for place, time in enumerate(us) if time > 0}
        whole = tuple(us[place] > 0 and not cuttable[place] and place not in joined for place in range(len(us)))
        last = closing(program, cost, us, whole)
        before = tuple(_edges(program, together, by_rows))
        starts = Starts.of(program, cost, mates(program, before))
        pieces, busy = [0.0] * len(us), starts.loads()
        for place, (comm, _) in starts.known.items():
            piece = starts.floors.least_us(comm)
            us[place] = max(busy[_stream(comm)][place], piece)
            if place in added:
                us[place] = min(us[place], added[place])
            else:
                pieces[place] = piece
        slowed = 1 - 1 / known.slowdown
        as_bad = {place: extra / slowed for place, extra in added.items()} if slowed > 0 else {}
        loads, flights = {"compute": work}, dict[str, dict[int, float]]()
        for name, each in busy.items():
            loads[name] = {place: 0.0 if place in added else load for place, load in each.items()}
            flights[name] = {place: min(load, as_bad.get(place, load)) for place, load in each.items()}
        return Parts(tuple(us), tuple(pieces), before, loads, whole, added, pieced, last, flights, starts)

    def heads(self, least: Sequence[float]) -> list[tuple[float, float]]:
        """For each op, the earliest time at which its first piece can begin, and at which its last can end; `least` is
        what is known of the first."""
        found: list[tuple[float, float]] = []
        for place, edges in enumerate(self.before):
            begin, end = least[place], 0.0
            for other, soft in edges:
                first, last = found[other]
                begin = max(begin, first + self.pieces[other] if soft else last)
                end = max(end, last + self.pieces[place])
            found.append((begin, max(end, begin + self.us[place])))
        return found

    def tails(self, least: Sequence[float]) -> list[float]:
        """For each op, how long the step goes on at least after its last piece has ended; `least` is what is known of
        that."""
        found = list(least)
        for place in reversed(range(len(self.us))):
            for other, soft in self.before[place]:
                rest = (self.pieces[place] if soft else self.us[place]) + found[place]
                found[other] = max(found[other], rest)
        return found


@dataclass(frozen=True)
class Starts:
    """The starts of a Program, by position, with their floors; `known` has what each sends, and its bytes."""

    floors: Floors
    mates: Mates
    known: Mapping[int, tuple[Collective, int]]

    @staticmethod
    def of(program: Program, cost: CostModel, beside: Mates) -> Starts:
        known = {place: (op.comm, total_bytes(op)) for place, op in enumerate(program.ops) if op.comm is not None}
        made = Starts(Floors(cost), beside, known)
        for place, (comm, _) in known.items():
            made.floors.expect(comm, made._most(place))
        return made

    def load_us(self, place: int) -> float:
        """How long a start keeps its group's stream busy at the very least."""
        comm, nbytes = self.known[place]
        return self.floors.load_us(comm, nbytes, self._most(place))

    def link_us(self, place: int) -> Mapping[str, float]:
        """How long a start keeps each link busy at the very least."""
        cost = self.floors.cost
        if not isinstance(cost, HardwareModel):
            return {}
        comm, nbytes = self.known[place]
        busy = self.floors.link_us(cost, comm, nbytes, self._most(place))
        return {f"link {name}": us for name, us in busy.items()}

    def loads(self) -> dict[str, dict[int, float]]:
        """For each group and link how long each start keeps it busy at the very least."""
        found: dict[str, dict[int, float]] = {}
        for place, (comm, _) in self.known.items():
            for name, us in {_stream(comm): self.load_us(place), **self.link_us(place)}.items():
                found.setdefault(name, {})[place] = us
        return found

    def whole_us(self, place: int) -> float:
        """How long a start takes at the very least if it is not cut, by itself or in a bucket."""
        comm, nbytes = self.known[place]
        return min(sum(self.floors.cost.collective_us(one, nbytes) for one in way) for way in ways_of(comm))

    def cut_us(self, place: int, counts: Sequence[int]) -> list[float]:
        """For each of some counts, how long a start keeps its group's stream busy at the very least if it is cut into
        so many equal pieces or more."""
        comm, nbytes = self.known[place]
        mosts = [self._most(place, count) for count in counts]
        floors = Floors(self.floors.cost)
        for most in mosts:
            floors.expect(comm, most)
        return [floors.load_us(comm, nbytes, most) for most in mosts]

    def pieces_us(self, place: int, counts: Sequence[float]) -> list[float]:
        """For each of some counts, how long any one piece of a start takes at the very least if it is cut into no more
        equal pieces than these."""
        comm, nbytes = self.known[place]
        cost, sizes = self.floors.cost, [max(1, int(nbytes / count)) for count in counts]
        return [min(sum(cost.collective_us(one, size) for one in way) for way in ways_of(comm)) for size in sizes]

    def _most(self, place: int, count: int = 1) -> Most:
        """The bytes of the largest bucket that any of so many equal pieces may be in."""
        own = -(-self.known[place][1] // count)
        return lambda comm: self.mates.most(place, comm.kind, own)


def _stream(comm: Collective) -> str:
    """What a group's stream is called among the resources."""
    return f"group {comm.group.name}"


def _least_compute(
    program: Program, cost: CostModel, known: Prices, faster: Sequence[bool], joined: frozenset[int]
) -> list[float]:
    """For each op the least that it adds to the compute stream, in any bucket and any pieces.

    A bucket may join the kernels that prepare its members or go on with their results, and save launches but no bytes.
    """
    us = list(known.us)
    if isinstance(cost, HardwareModel):
        for window in windows(program).values():
            _join(program, window, cost, us)
    else:
        for place in joined:
            us[place] = 0.0
    cut = [place for place, found in enumerate(faster) if found and us[place] > 0]
    if not isinstance(cost, DivisibleModel):
        for place in cut:
            us[place] *= 1 - _CUT_GAIN
        return us
    kinds = fusion(program).kinds
    for place in cut:
        op = program.ops[place]
        # Kernels that fuse move bytes, and pieces of them as many; what has a collective inside is in pieces already.
        if kinds[place] is Kernel.ALONE and op.inside is None:
            us[place] = min(us[place], cost.pieces_us(op, input_specs(program, op)))
    return us


def _join(program: Program, window: Window, cost: HardwareModel, us: list[float]) -> None:
    """Take from the kernels that belong to a collective what a bucket could save of their launches.

    Results that kernels go on with together are in one buffer, unless they are converted, which one kernel can do
    wherever they are. For that, what is sent is copied into one, if no kernel that prepares it can write there.
    """
    launch, start = cost.launch_us, window.start
    assert start.comm is not None, "a start communicates"
    before, behind = ([place for place in places if us[place] > 0] for places in (window.prelude, window.family))
    saved = launch * (len(before) + len(behind))
    converted = any(program.ops[place].target in CASTS for place in behind)
    if not before and not converted and start.comm.kind in ("reduce_scatter", "all_reduce"):
        saved -= cost.moved_us(2 * total_bytes(start))
    for place in (*before, *behind):
        less = max(0.0, min(us[place], launch, saved))
        us[place] -= less
        saved -= less


def _edges(
    program: Program, together: Sequence[frozenset[int]], by_rows: Sequence[bool]
) -> Iterator[tuple[tuple[int, bool], ...]]:
    """What each op must wait for, whatever is done to the program."""
    known = dependencies(program)
    lost = set(_lost(program, by_rows))
    for place, earlier in enumerate(known.before):
        needed = [other for other in earlier if (other, place) not in lost] if lost else earlier
        yield tuple(
            [
                (other, (by_rows[other] and by_rows[place]) or not together[other].isdisjoint(together[place]))
                for other in needed
            ]
        )


def _lost(program: Program, by_rows: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The edges that are not there for data and do not bind whoever copies, or does not wait.

    A collective that is copied into a bucket no longer reads its input until the wait, nor overwrites it from the start
    on; a chunk of an op that writes in place may write elsewhere. Then only those who read what was written have to
    wait. And an order that a start must keep says when it is launched, not when it has ended.
    """
    order = dependencies(program).order
    if not order:
        return
    flying = _flying(program)
    touched = accesses(program)
    for earlier, later, kind in order:
        copied = program.ops[later].is_start or (by_rows[earlier] and by_rows[later])
        flows = not copied or kind is not Kind.MUTATION or not touched[earlier][1].isdisjoint(touched[later][0])
        if kind is Kind.IN_FLIGHT or flying[earlier] or not flows:
            yield earlier, later


def _flying(program: Program) -> list[bool]:
    """Which ops give something that is still under way: starts, and views of their results before the wait."""
    found: list[bool] = []
    for op, given in zip(program.ops, arguments(program), strict=True):
        found.append(op.is_start or (not op.is_wait and any(found[other] for other in given)))
    return found
