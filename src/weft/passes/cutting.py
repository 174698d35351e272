"""Ways to cut chains of collectives, or to do them inside matmuls, and which of them takes least time.

They are tried on a part of the program that has nothing but what is around the chains. What is alike, as layers are, is
tried once; and two of a kind together if there are two, since what the one leaves to do hides what the other sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from math import inf

from weft.cost.model import CostModel, SymmetricModel
from weft.ir.program import Op, Program
from weft.passes.chunking import cut, cut_twice
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.passes.parts import shortest_us
from weft.passes.region import Region
from weft.passes.regions import Chain
from weft.passes.sharing import sharing

COUNTS = (2, 4, 8)
_HOPELESS = 1.05  # times what it takes whole: if chains in one piece take more, they are not divided either

Ends = tuple[int, ...]  # after which collectives a chain is divided


@dataclass(frozen=True)
class Cut:
    """Into chunks: where each chain is divided, into how many chunks all are cut, and how long it takes then."""

    ends: tuple[Ends, ...]
    chunks: int
    us: float = 0.0

    def regions(self, chains: Sequence[Chain]) -> list[Region]:
        found = []
        for chain, ends in zip(chains, self.ends, strict=True):
            bounds = zip((0, *ends), (*ends, len(chain.knots)), strict=True)
            found += [chain.region(first, last, self.chunks) for first, last in bounds]
        return found


@dataclass(frozen=True)
class Fused:
    """Inside matmuls: which of the chains' collectives, by number, and how long it takes then."""

    numbers: tuple[int, ...]
    us: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """How long it takes as it is, and the best way to cut it, if there is any."""

    whole_us: float
    way: Cut | Fused | None

    @property
    def saved_us(self) -> float:
        return self.whole_us - self.way.us if self.way is not None else 0.0


@dataclass(frozen=True)
class Sample:
    """Chains that share what they make, once or several times over, and the part of the program around them all."""

    copies: tuple[Sequence[Chain], ...]
    part: Program

    @property
    def chains(self) -> Sequence[Chain]:
        return self.copies[0]


@dataclass(frozen=True)
class Trials:
    """Finds out what is best for a sample; `chunks` is 0 for any number, `lowering` as `micro_pipeline` has it."""

    cost: CostModel
    lowering: str
    chunks: int
    sum_chunks: bool

    def verdict(self, sample: Sample) -> Verdict:
        whole = shortest_us(sample.part, self.cost)
        in_chunks = self._best_cut(sample, whole) if self.lowering != "fused" else None
        inside = self._best_fused(sample) if self.lowering != "portable" else None
        best = min((way for way in (in_chunks, inside) if way is not None), key=lambda way: way.us, default=None)
        times = len(sample.copies)
        return Verdict(whole / times, replace(best, us=best.us / times) if best is not None else None)

    # In chunks

    def _best_cut(self, sample: Sample, whole: float) -> Cut | None:
        best: Cut | None = None
        for chunks in (self.chunks,) if self.chunks else COUNTS:
            if sample.chains[0].knots[0].size % chunks:
                continue
            found = self._best_divided(sample, chunks, _HOPELESS * whole)
            if best is None or found.us < best.us:
                best = found
            elif found.us > whole:
                break  # more chunks cost only more
        return best if best is not None and best.us < inf else None

    def _best_divided(self, sample: Sample, chunks: int, hopeless_us: float) -> Cut:
        """All in one piece, and then each chain divided where that is better; unless it is hopeless."""
        best = self._timed(Cut(((),) * len(sample.chains), chunks), sample)
        for number, chain in enumerate(sample.chains if best.us < hopeless_us else ()):
            for ends in _divisions(len(chain.knots)):
                divided = (*best.ends[:number], ends, *best.ends[number + 1 :])
                best = min(best, self._timed(Cut(divided, chunks), sample), key=lambda way: way.us)
        return best

    def _timed(self, way: Cut, sample: Sample) -> Cut:
        regions = [replace(region, program=sample.part) for chains in sample.copies for region in way.regions(chains)]
        if cut_twice(regions) is not None:
            return replace(way, us=inf)
        made = cut(sample.part, sharing(sample.part, regions, self.sum_chunks), "")
        return replace(way, us=shortest_us(made, self.cost))

    # Inside matmuls

    def _best_fused(self, sample: Sample) -> Fused | None:
        """All that can be inside a matmul, without those that had better not be."""
        found = [self._matches(sample.part, chains) for chains in sample.copies]
        numbers = tuple(number for number in found[0] if all(number in one for one in found))
        if not numbers:
            return None
        best = self._timed_fused(found, numbers, sample.part)
        for number in numbers:
            fewer = tuple(one for one in best.numbers if one != number)
            best = min(best, self._timed_fused(found, fewer, sample.part), key=lambda way: way.us) if fewer else best
        return best

    def _matches(self, part: Program, chains: Sequence[Chain]) -> Mapping[int, Match]:
        """The collectives, by number, that can be inside matmuls; none of those has two of them inside."""
        found: dict[int, Match] = {}
        taken: set[str] = set()
        for number, start in enumerate(starts_of(chains)):
            match = find_fused(part, start.name) if self._is_symmetric(start) else ""
            if isinstance(match, Match) and taken.isdisjoint(match.matmuls):
                found[number] = match
                taken.update(match.matmuls)
        return found

    def _is_symmetric(self, start: Op) -> bool:
        if start.comm is None or not isinstance(self.cost, SymmetricModel):
            return False
        return self.cost.is_symmetric(start.comm.group)

    def _timed_fused(self, found: Sequence[Mapping[int, Match]], numbers: tuple[int, ...], part: Program) -> Fused:
        made = apply_fused(part, [matches[number] for matches in found for number in numbers], "")
        return Fused(numbers, shortest_us(made, self.cost))


def starts_of(chains: Sequence[Chain]) -> list[Op]:
    """The collectives of some chains, in order."""
    return [knot.start for knot in joined.from_iterable(chain.knots for chain in chains)]


def _divisions(knots: int) -> list[Ends]:
    """Ways to divide a chain: in pairs, in pairs but for the first, everywhere."""
    found = [tuple(range(2, knots, 2)), tuple(range(1, knots, 2)), tuple(range(1, knots))]
    return [ends for ends in dict.fromkeys(found) if ends]
