"""`micro_pipeline`: a collective and the matmuls around it are cut into chunks that overlap each other."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import ClassVar

from weft.analysis.axes import Axis
from weft.cost.model import CostModel
from weft.errors import OptionError, PlanError, WeftWarning
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.base import Context, Detail, Plan, Remark, Step, check_fits, fingerprint
from weft.passes.chunking import cut
from weft.passes.cutting import COUNTS, Sample, Trials, Verdict, Way, starts_of
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.passes.options import pass_text
from weft.passes.parts import exposed, part_of, shortest_us, signature
from weft.passes.region import Region
from weft.passes.regions import Chain, chains, region_of
from weft.passes.sharing import families, sharing

LOWERINGS = ("auto", "portable", "fused")
_NEAR = 2.5  # times the ops around one: with more there are others between two, whose collectives a part has not
_EFFORT = 4096  # ops: a step with as many, for each kind of chains that is cut, is tried as a whole
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
        return self.carried_out(program, plan.steps, plan.pass_text)

    def carried_out(self, program: Program, steps: Sequence[Step], stamp: str) -> Program:
        """The program after these steps."""
        regions = [_region(program, step) for step in steps if step.verb != "fuse"]
        made = program.stamped(stamp)
        if regions:
            made = cut(program, sharing(program, regions, self.sum_chunks), stamp)
        matches = [_match(made, step) for step in steps if step.verb == "fuse"]
        return replace(apply_fused(made, matches, ""), history=made.history) if matches else made


def _match(program: Program, step: Step) -> Match:
    is_there, joined = len(step.ops) == 1 and step.ops[0] in program, step.detail.get("joined", False) is True
    found = find_fused(program, step.ops[0], joined) if is_there else "no such op"
    if isinstance(found, str):
        raise PlanError(f"this cannot be done inside a matmul in this program: {step}: {found}")
    return found


def _region(program: Program, step: Step) -> Region:
    match step.detail:
        case {"start": str(start), "rows": int(rows), "dim": int(dim), "chunks": int(chunks)}:
            inner = step.detail.get("inner", 1)
            known = step.verb == "cut" and chunks > 1 and all(name in program for name in step.ops)
            if known and isinstance(inner, int) and inner > 0:
                found = region_of(program, step.ops, start, rows, Axis(dim, inner=inner), chunks)
                if found is not None:
                    return found
    raise PlanError(f"this cannot be cut in this program: {step}")


@dataclass
class _Search:
    options: MicroPipeline
    program: Program
    cost: CostModel
    memory_limit: int | None
    steps: list[Step] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    _claimed: set[str] = field(default_factory=set)  # the ops that are cut, or have a collective inside

    def run(self) -> None:
        always = self.options.always
        starts = self.program.starts if always else exposed(self.program, self.cost, self.memory_limit)
        held = {op.name for op in starts}
        for op in self.program.starts:
            if op.name not in held:
                self._remark(op.name, "refused", "other compute hides it as it is")
        found, refused = chains(self.program, starts)
        for name, why in refused.items():
            self._remark(name, "refused", why)
        whole = [chain.region(0, len(chain.knots), 1) for chain in found]
        related = [
            [found[number] for number in numbers] for numbers in families(self.program, whole, self.options.sum_chunks)
        ]
        if always:
            verdicts = [self._apart(one) for one in related]
        else:
            verdicts = self._confirmed(related, self._verdicts(related, whole))
        self._decide_all(related, verdicts)

    def _decide_all(self, related: Sequence[Sequence[Chain]], verdicts: Sequence[Verdict]) -> None:
        for one, verdict in zip(related, verdicts, strict=True):
            self._decide(one, verdict)

    def _apart(self, chains: Sequence[Chain]) -> Verdict:
        """Each collective by itself."""
        chunks = self.options.chunks or COUNTS[0]
        spans = tuple(tuple((at, at + 1) for at in range(len(chain.knots))) for chain in chains)
        return Verdict(0.0, None if chains[0].knots[0].size % chunks else Way(spans, chunks))

    def _verdicts(self, related: Sequence[Sequence[Chain]], whole: Sequence[Region]) -> list[Verdict]:
        """What is best for chains that share what they make: found out once for all that are alike."""
        options = self.options
        trials = Trials(self.cost, options.lowering, options.chunks, options.sum_chunks)
        others: set[str] = set()  # whoever takes chunks as they are, if all is cut
        for region in sharing(self.program, whole, options.sum_chunks):
            others |= {*region.axes, *region.sums}
        alike: dict[Hashable, list[Sequence[Chain]]] = {}
        keys = []
        for one in related:
            keys.append(signature(self.program, [name for chain in one for name in chain.names]))
            alike.setdefault(keys[-1], []).append(one)
        found = {key: trials.verdict(self._sample(copies, others)) for key, copies in alike.items()}
        return [found[key] for key in keys]

    def _confirmed(self, related: Sequence[Sequence[Chain]], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts with less of a kind cut where that makes the whole step shorter: in a part, something may be
        exposed that other compute hides. And with nothing cut if all of it together is not worth it. Only small steps
        are looked at so."""
        kinds = [kind for kind in dict.fromkeys(verdicts) if _refusal(kind, 0, self.options) is None]
        if not kinds or len(kinds) * len(self.program) > _EFFORT:
            return [*verdicts]
        now = {kind: kind for kind in kinds}
        best = self._step_us(related, verdicts)
        for kind in kinds:
            whole = inf
            for way in kind.way.fewer() if kind.way is not None else ():  # the first of them does nothing
                tried = {**now, kind: Verdict(inf, way)}
                us = self._step_us(related, [tried.get(verdict, verdict) for verdict in verdicts])
                whole = us if way.is_nothing else whole
                if us < best:
                    now[kind], best = Verdict(whole, replace(way, us=us)), us
        untouched = shortest_us(self.program, self.cost)
        if best > (1 - _WORTH_IT) * untouched:
            now = {kind: Verdict(untouched, kind.way.nothing(untouched)) for kind in kinds if kind.way is not None}
        return [now.get(verdict, verdict) for verdict in verdicts]

    def _step_us(self, related: Sequence[Sequence[Chain]], verdicts: Sequence[Verdict]) -> float:
        """How long the whole step takes after these verdicts."""
        trial = _Search(self.options, self.program, self.cost, self.memory_limit)
        trial._decide_all(related, verdicts)
        return shortest_us(self.options.carried_out(self.program, trial.steps, ""), self.cost)

    def _sample(self, alike: Sequence[Sequence[Chain]], others: Collection[str]) -> Sample:
        """Of some that are alike the two that are nearest to each other, if that is near; otherwise one alone."""
        one, *other = nearest(self.program, alike)
        alone = part_of(self.program, [chain.names for chain in one], others)
        if other:
            both = part_of(self.program, _stretches(one, *other), others)
            if len(both) < _NEAR * len(alone):
                return Sample((one, *other), both)
        return Sample((one,), alone)

    def _decide(self, chains: Sequence[Chain], verdict: Verdict) -> None:
        why = _refusal(verdict, chains[0].knots[0].size, self.options)
        if why is not None or verdict.way is None:
            for start in starts_of(chains):
                self._remark(start.name, "refused", why or "")
            return
        gain = "" if self.options.always else f", which saves {verdict.saved_us:,.1f} of {verdict.whole_us:,.1f} us"
        self._cut(chains, verdict.way, gain)
        self._fuse(chains, verdict.way, gain)

    def _fuse(self, chains: Sequence[Chain], way: Way, gain: str) -> None:
        cut = {name for region in way.regions(chains) for name in region.axes}
        what = "not cut" if way.is_cut else "not inside a matmul"
        for number, start in enumerate(starts_of(chains)):
            if start.name in cut:
                continue
            joined = number in way.joined
            found = (
                find_fused(self.program, start.name, joined)
                if number in way.inside
                else "what is around it hides it better"
            )
            if isinstance(found, str):
                self._remark(start.name, "refused", f"{what}, as others near by are: {found}")
                continue
            if not self._claim(start.name, found.matmuls):
                continue
            inside = ", ".join(f"%{name}" for name in found.matmuls) + (" as one" if found.as_one else "")
            self._remark(found.start, "done", f"inside {inside}, by symmetric memory{gain}")
            self.steps.append(Step("fuse", (found.start,), {"joined": True} if joined else {}))

    def _cut(self, chains: Sequence[Chain], way: Way, gain: str) -> None:
        for region in way.regions(chains):
            starts = [name for name in region.axes if self.program[name].is_start]
            others = f" with {counted(len(starts) - 1, 'other collective')}" if len(starts) > 1 else ""
            what = f"cut into {region.chunks} chunks of {counted(region.size // region.chunks, 'row')}{others}{gain}"
            if not self._claim(starts[0], region.axes):
                continue
            for name in starts:
                self._remark(name, "done", what)
            self.steps.append(_step(region, starts[0]))

    def _claim(self, start: str, names: Iterable[str]) -> bool:
        """Whether ops are free to be cut with a collective; they are not for another one any more."""
        wanted = set(names)
        other = min(wanted & self._claimed, default=None)
        if other is not None:
            self._remark(start, "refused", f"%{other} is cut with another collective, along other rows")
            return False
        self._claimed |= wanted
        return True

    def _remark(self, name: str, verdict: str, message: str) -> None:
        self.remarks.append(Remark(self.options.name, name, verdict, message))


def nearest(program: Program, alike: Sequence[Sequence[Chain]]) -> tuple[Sequence[Chain], ...]:
    """Of some that are alike, in order, two neighbours with as few ops from the one to the other as any have; or the
    only one that there is."""

    def extent(two: tuple[Sequence[Chain], ...]) -> int:
        places = [[program.index[name] for name in names] for names in _stretches(*two)]
        return sum(max(one) - min(one) for one in places)

    return min(pairwise(alike), key=extent) if len(alike) > 1 else (alike[0],)


def _stretches(one: Sequence[Chain], other: Sequence[Chain]) -> list[tuple[str, ...]]:
    """The ops of two that are alike, chain by chain."""
    return [(*first.names, *second.names) for first, second in zip(one, other, strict=True)]


def _refusal(verdict: Verdict, rows: int, options: MicroPipeline) -> str | None:
    """Why a chain is not cut; None if it is."""
    way, saved = verdict.way, verdict.saved_us
    if way is None and options.lowering == "fused":
        return "nothing of it can be done inside a matmul here"
    if way is None:
        return f"{counted(rows, 'row')} cannot be cut into {options.chunks or 'two'} equal chunks"
    if way.is_nothing:
        return "cut or inside a matmul, it makes the whole step longer or hardly shorter, unlike what is around it"
    if options.always or saved > _WORTH_IT * verdict.whole_us:
        return None
    how = f"to cut it, into {way.chunks} chunks," if way.is_cut else "to do it inside a matmul"
    return f"the best way {how} would {f'take {-saved:,.1f} us more' if saved < 0 else f'save {saved:,.1f} us only'}"


def _step(region: Region, start: str) -> Step:
    sent = region.program[start].given[0]
    given = region.given(region.program[start])
    axis = given[sent]
    detail: dict[str, Detail] = {"start": start, "rows": region.size, "dim": axis.dim, "chunks": region.chunks}
    if axis.inner > 1:  # so many elements of that dimension belong to a row
        detail["inner"] = axis.inner
    return Step("cut", tuple(region.axes), detail)
