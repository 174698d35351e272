"""`micro_pipeline`: a collective and the matmuls around it are cut into chunks that overlap each other."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from weft.cost.model import CostModel, SymmetricModel
from weft.errors import OptionError, PlanError, WeftWarning
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.base import Context, Detail, Plan, Remark, Step, check_fits, fingerprint
from weft.passes.chunking import cut
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.passes.options import pass_text
from weft.passes.parts import exposed, part_of, shortest_us, signature
from weft.passes.region import Region
from weft.passes.regions import Chain, Knot, chains, region_of
from weft.passes.sharing import families, sharing

LOWERINGS = ("auto", "portable", "fused")
_COUNTS = (2, 4, 8)
_HOPELESS = 1.05  # times what it takes whole: if chains in one piece take more, they are not divided either
_WORTH_IT = 0.01  # of what it takes: for less, nothing is cut


@dataclass(frozen=True)
class MicroPipeline:
    """Cut collectives with the matmuls before and after them, so that a chunk is multiplied while the next one travels.

    Where simple overlap hides a collective, it stays whole; as it does where cutting loses: small matmuls are less
    efficient, small messages are mostly latency, and what others need whole has to be put together. Several collectives
    in a row are cut as one where all ops between them work row by row, as in a norm, and that is better.

    There are two ways to do it. `portable`: each chunk has a collective and matmuls of its own, which any backend runs
    and the scheduler sees like everything else. `fused`: one operator of torch's symmetric memory does both, where
    device and group have that; nothing has to be put together then.

    - `lowering`: `portable`, `fused`, or `auto` for the better of the two
    - `chunks`: how many; 0 for what costs least
    - `always`: cut all that can be cut, whatever it costs, each collective by itself
    - `sum_chunks`: matmuls that sum over the rows, as for weight gradients, add up chunks, instead of having them put
      together. That copies less, and rounds the sum once for each chunk
    """

    name: ClassVar[str] = "micro_pipeline"
    exact: ClassVar[bool] = False  # chunks of a reduction may be summed in another order
    reorders: ClassVar[bool] = True

    lowering: str = "auto"
    chunks: int = 0
    always: bool = False
    sum_chunks: bool = False

    def __post_init__(self) -> None:
        if self.lowering not in LOWERINGS:
            there = ", ".join(LOWERINGS)
            raise OptionError(f"micro_pipeline: there is no lowering {self.lowering!r}; there are: {there}")
        if self.chunks < 0 or self.chunks == 1:
            raise OptionError(
                f"micro_pipeline: chunks must be at least 2, or 0 for what costs least, not {self.chunks}"
            )

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each region that is cut, a remark for each collective."""
        cost = context.needed_cost(self.name)
        with warnings.catch_warnings():
            # To look at chunks that are smaller than anything measured is not yet to make them.
            warnings.simplefilter("ignore", WeftWarning)
            search = _Search(self, program, cost, context.memory_limit)
            search.run()
        return Plan(pass_text(self), fingerprint(program), tuple(search.steps), tuple(search.remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Cut what the plan says."""
        check_fits(plan, program)
        if not plan.steps:
            return program.stamped(plan.pass_text)
        matches = [_match(program, step) for step in plan.steps if step.verb == "fuse"]
        regions = [_region(program, step) for step in plan.steps if step.verb != "fuse"]
        if not regions:
            return apply_fused(program, matches, plan.pass_text)
        made = cut(program, sharing(program, regions, self.sum_chunks), plan.pass_text)
        if not matches:
            return made
        fused = apply_fused(made, [_match(made, step) for step in plan.steps if step.verb == "fuse"], "")
        return replace(fused, history=made.history)


def _match(program: Program, step: Step) -> Match:
    found = find_fused(program, step.ops[0]) if len(step.ops) == 1 and step.ops[0] in program else "no such op"
    if isinstance(found, str):
        raise PlanError(f"this cannot be done inside a matmul in this program: {step}: {found}")
    return found


def _region(program: Program, step: Step) -> Region:
    match step.detail:
        case {"start": str(start), "rows": int(rows), "dim": int(dim), "chunks": int(chunks)}:
            if step.verb == "cut" and chunks > 1 and all(name in program for name in step.ops):
                found = region_of(program, step.ops, start, rows, dim, chunks)
                if found is not None:
                    return found
    raise PlanError(f"this cannot be cut in this program: {step}")


_Ends = tuple[int, ...]  # after which collectives a chain is divided


@dataclass(frozen=True)
class _Way:
    """One way to cut chains that share what they make: where each of them is divided, into how many chunks all are cut,
    and how long their part of the step takes then."""

    ends: tuple[_Ends, ...]
    chunks: int
    us: float = 0.0

    def regions(self, chains: Sequence[Chain]) -> list[Region]:
        found = []
        for chain, ends in zip(chains, self.ends, strict=True):
            bounds = zip((0, *ends), (*ends, len(chain.knots)), strict=True)
            found += [chain.region(first, last, self.chunks) for first, last in bounds]
        return found


@dataclass(frozen=True)
class _Fusing:
    """Which of the collectives of some chains, by number, are done inside matmuls, and how long their part of the step
    takes then."""

    numbers: tuple[int, ...]
    us: float = 0.0


@dataclass(frozen=True)
class _Verdict:
    """How long the part of the step around some chains takes as it is, and the best way to cut them, if any."""

    whole_us: float
    way: _Way | _Fusing | None

    @property
    def saved_us(self) -> float:
        return self.whole_us - self.way.us if self.way is not None else 0.0


@dataclass
class _Search:
    options: MicroPipeline
    program: Program
    cost: CostModel
    memory_limit: int | None
    steps: list[Step] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    _known: dict[Hashable, _Verdict] = field(default_factory=dict)
    _others: set[str] = field(default_factory=set)  # whoever takes chunks as they are, if all is cut

    def run(self) -> None:
        starts = exposed(self.program, self.cost, self.memory_limit) if not self.options.always else self.program.starts
        held = {op.name for op in starts}
        for op in self.program.starts:
            if op.name not in held:
                self._remark(op.name, "refused", "other compute hides it as it is")
        found, refused = chains(self.program, starts)
        for name, why in refused.items():
            self._remark(name, "refused", why)
        whole = [chain.region(0, len(chain.knots), 1) for chain in found]
        for region in sharing(self.program, whole, self.options.sum_chunks):
            self._others |= {*region.axes, *region.sums}
        for numbers in families(self.program, whole, self.options.sum_chunks):
            self._decide([found[number] for number in numbers])

    def _decide(self, chains: Sequence[Chain]) -> None:
        verdict = self._apart(chains) if self.options.always else self._verdict(chains)
        why = _refusal(verdict, chains[0].knots[0].size, self.options)
        knots = [knot for chain in chains for knot in chain.knots]
        if why is not None or verdict.way is None:
            for knot in knots:
                self._remark(knot.start.name, "refused", why or "")
            return
        gain = "" if self.options.always else f", which saves {verdict.saved_us:,.1f} of {verdict.whole_us:,.1f} us"
        if isinstance(verdict.way, _Fusing):
            self._fuse(knots, verdict.way, gain)
        else:
            self._cut(chains, verdict.way, gain)

    def _fuse(self, knots: Sequence[Knot], way: _Fusing, gain: str) -> None:
        for number, knot in enumerate(knots):
            found = find_fused(self.program, knot.start.name) if number in way.numbers else None
            if isinstance(found, Match):
                inside = ", ".join(f"%{name}" for name in found.matmuls)
                self._remark(found.start, "done", f"inside {inside}, by symmetric memory{gain}")
                self.steps.append(Step("fuse", (found.start,)))
            else:
                why = (
                    found
                    or f"it stays whole beside the others, {counted(len(way.numbers), 'collective')} inside matmuls"
                )
                self._remark(knot.start.name, "refused", why)

    def _cut(self, chains: Sequence[Chain], way: _Way, gain: str) -> None:
        for region in way.regions(chains):
            starts = [name for name in region.axes if self.program[name].is_start]
            others = f" with {counted(len(starts) - 1, 'other collective')}" if len(starts) > 1 else ""
            what = f"cut into {region.chunks} chunks of {counted(region.size // region.chunks, 'row')}{others}{gain}"
            for name in starts:
                self._remark(name, "done", what)
            self.steps.append(_step(region, starts[0]))

    def _apart(self, chains: Sequence[Chain]) -> _Verdict:
        """Each collective by itself."""
        chunks = self.options.chunks or _COUNTS[0]
        ends = tuple(tuple(range(1, len(chain.knots))) for chain in chains)
        return _Verdict(0.0, None if chains[0].knots[0].size % chunks else _Way(ends, chunks))

    def _verdict(self, chains: Sequence[Chain]) -> _Verdict:
        """Found out once for all that are alike, as layers are."""
        names = [chain.axes(0, len(chain.knots)) for chain in chains]
        part = part_of(self.program, names, self._others)
        key = signature(part, [name for one in names for name in one])
        if key not in self._known:
            self._known[key] = self._tried(chains, part)
        return self._known[key]

    def _tried(self, chains: Sequence[Chain], part: Program) -> _Verdict:
        whole = shortest_us(part, self.cost)
        cut_up = self._best_cut(chains, part, whole) if self.options.lowering != "fused" else None
        fused = self._best_fusing(chains, part) if self.options.lowering != "portable" else None
        ways = [way for way in (cut_up, fused) if way is not None]
        return _Verdict(whole, min(ways, key=lambda way: way.us, default=None))

    def _best_cut(self, chains: Sequence[Chain], part: Program, whole: float) -> _Way | None:
        best: _Way | None = None
        for chunks in (self.options.chunks,) if self.options.chunks else _COUNTS:
            if chains[0].knots[0].size % chunks:
                continue
            way = self._best_way(chains, chunks, part, _HOPELESS * whole)
            if best is None or way.us < best.us:
                best = way
            elif way.us > whole:
                break  # more chunks cost only more
        return best

    def _best_fusing(self, chains: Sequence[Chain], part: Program) -> _Fusing | None:
        """All that can be inside a matmul, without those that had better not be."""
        if not isinstance(self.cost, SymmetricModel):
            return None
        starts = [knot.start for chain in chains for knot in chain.knots]
        matches: dict[int, Match] = {}
        taken: set[str] = set()
        for number, start in enumerate(starts):
            found = find_fused(part, start.name)
            symmetric = start.comm is not None and self.cost.is_symmetric(start.comm.group)
            if isinstance(found, Match) and symmetric and taken.isdisjoint(found.matmuls):
                matches[number] = found
                taken.update(found.matmuls)
        if not matches:
            return None
        best = self._fused(matches, tuple(matches), part)
        for number in matches:
            fewer = tuple(one for one in best.numbers if one != number)
            best = min(best, self._fused(matches, fewer, part), key=lambda way: way.us) if fewer else best
        return best

    def _fused(self, matches: Mapping[int, Match], numbers: tuple[int, ...], part: Program) -> _Fusing:
        made = apply_fused(part, [matches[number] for number in numbers], "")
        return _Fusing(numbers, shortest_us(made, self.cost))

    def _best_way(self, chains: Sequence[Chain], chunks: int, part: Program, hopeless_us: float) -> _Way:
        """All in one piece, and then each chain divided where that is better; unless it is hopeless."""
        best = self._timed(_Way(((),) * len(chains), chunks), chains, part)
        for number, chain in enumerate(chains if best.us < hopeless_us else ()):
            for ends in _divisions(len(chain.knots)):
                divided = (*best.ends[:number], ends, *best.ends[number + 1 :])
                best = min(best, self._timed(_Way(divided, chunks), chains, part), key=lambda way: way.us)
        return best

    def _timed(self, way: _Way, chains: Sequence[Chain], part: Program) -> _Way:
        regions = [replace(region, program=part) for region in way.regions(chains)]
        return replace(way, us=shortest_us(cut(part, sharing(part, regions, self.options.sum_chunks), ""), self.cost))

    def _remark(self, name: str, verdict: str, message: str) -> None:
        self.remarks.append(Remark(self.options.name, name, verdict, message))


def _divisions(knots: int) -> list[_Ends]:
    """Ways to divide a chain: in pairs, in pairs but for the first, everywhere."""
    found = [tuple(range(2, knots, 2)), tuple(range(1, knots, 2)), tuple(range(1, knots))]
    return [ends for ends in dict.fromkeys(found) if ends]


def _refusal(verdict: _Verdict, rows: int, options: MicroPipeline) -> str | None:
    """Why a chain is not cut; None if it is."""
    if verdict.way is None:
        return f"{counted(rows, 'row')} cannot be cut into {options.chunks or 'two'} equal chunks"
    if options.always or verdict.saved_us > _WORTH_IT * verdict.whole_us:
        return None
    how = (
        "to do it inside a matmul"
        if isinstance(verdict.way, _Fusing)
        else f"to cut it, into {verdict.way.chunks} chunks,"
    )
    saved = verdict.saved_us
    return (
        f"the best way {how} would take {-saved:,.1f} us more"
        if saved < 0
        else f"{how} would save {saved:,.1f} us only"
    )


def _step(region: Region, start: str) -> Step:
    sent = region.program[start].refs()[0].name
    given = region.given(region.program[start])
    detail: dict[str, Detail] = {"start": start, "rows": region.size, "dim": given[sent].dim, "chunks": region.chunks}
    return Step("cut", tuple(region.axes), detail)
