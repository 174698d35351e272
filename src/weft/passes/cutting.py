"""Ways to cut chains of collectives, or to do them inside matmuls, and which of them takes least time.

They are tried on a part of the program that has nothing but what is around the chains. What is alike, as layers are, is
tried once; and two of a kind together if there are two, since what the one leaves to do hides what the other sends.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from itertools import combinations
from math import inf

from weft.cost.model import CostModel, SymmetricModel
from weft.ir.program import Op, Program
from weft.passes.chunking import cut, cut_twice
from weft.passes.fusing import Match, apply_fused, find_fused
from weft.passes.parts import exposed_in_part, shortest_us
from weft.passes.region import Region
from weft.passes.regions import Chain
from weft.passes.sharing import sharing

COUNTS = (2, 4, 8)
_STRETCHES = 32  # of chains are tried, about: the more collectives there are, the shorter are those that are looked at
_HOPELESS = 1.05  # times what it takes whole: if chains in one piece take more, they are not divided either

_NONE: frozenset[int] = frozenset()

Span = tuple[int, int]  # from which collective of a chain up to which, without it


@dataclass(frozen=True)
class Way:
    """What is done with the collectives of some chains, and how long it takes then.

    - `spans`: for each chain, the stretches that are cut as one, in order
    - `chunks`: into how many chunks all of them are cut
    - `inside`: which collectives are done inside matmuls, by their number among those of all chains
    - `joined`: which of these are inside one matmul for several

    Whatever is neither cut nor inside a matmul stays as it is.
    """

    spans: tuple[tuple[Span, ...], ...]
    chunks: int = 0
    inside: tuple[int, ...] = ()
    joined: frozenset[int] = _NONE
    us: float = 0.0

    def regions(self, chains: Sequence[Chain]) -> list[Region]:
        pairs = zip(chains, self.spans, strict=True)
        return [chain.region(first, last, self.chunks) for chain, spans in pairs for first, last in spans]

    @property
    def is_cut(self) -> bool:
        return any(self.spans)

    @property
    def is_nothing(self) -> bool:
        return not self.is_cut and not self.inside

    def nothing(self, us: float) -> Way:
        """The way that leaves all as it is, which takes so long."""
        return replace(self, spans=((),) * len(self.spans), inside=(), joined=_NONE, us=us)

    def outside(self, numbers: Container[int]) -> Way:
        """The way with these collectives outside of matmuls."""
        inside = tuple(one for one in self.inside if one not in numbers)
        return replace(self, inside=inside, joined=self.joined & {*inside})

    def fewer(self) -> Iterator[Way]:
        """The ways with less of it: nothing at all; or without a stretch, or a collective at the end of one or inside a
        matmul."""
        yield self.nothing(self.us)
        for number, spans in enumerate(self.spans):
            for at, (first, last) in enumerate(spans):
                shorter = [((first + 1, last),), ((first, last - 1),)] if last - first > 1 else []
                for left in ((), *shorter):
                    yield _with(self, number, (*spans[:at], *left, *spans[at + 1 :]))
        for number in self.inside:
            yield self.outside((number,))


@dataclass(frozen=True)
class Verdict:
    """How long it takes as it is, and the best way to cut it, if there is any."""

    whole_us: float
    way: Way | None

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
        as_it_is = Way(((),) * len(sample.chains), us=whole)
        inside = self._best_fused(sample, as_it_is) if self.lowering != "portable" else None
        ways = [inside] if inside is not None else []
        if self.lowering != "fused":
            base = min([as_it_is, *ways], key=_us)
            ways += [*self._best_cuts(sample, whole), *self._partly_cut(sample, base)]
        best = min(ways, key=_us, default=None)
        times = len(sample.copies)
        return Verdict(whole / times, replace(best, us=best.us / times) if best is not None else None)

    # In chunks

    def _counts(self, sample: Sample) -> list[int]:
        counts = (self.chunks,) if self.chunks else COUNTS
        return [count for count in counts if not sample.chains[0].knots[0].size % count]

    def _best_cuts(self, sample: Sample, whole: float) -> list[Way]:
        """All collectives cut, for each number of chunks as long as more of them might be better."""
        found: list[Way] = []
        for chunks in self._counts(sample):
            found.append(self._best_divided(sample, chunks, _HOPELESS * whole))
            if found[-1].us > max(whole, min(map(_us, found))):
                break  # more chunks cost only more
        return [way for way in found if way.us < inf]

    def _best_divided(self, sample: Sample, chunks: int, hopeless_us: float) -> Way:
        """All in one piece, and then each chain divided where that is better; unless it is hopeless."""
        best = self._timed(Way(tuple(((0, len(chain.knots)),) for chain in sample.chains), chunks), sample)
        for number, chain in enumerate(sample.chains if best.us < hopeless_us else ()):
            for spans in _divisions(len(chain.knots)):
                best = min(best, self._timed(_with(best, number, spans), sample), key=_us)
        return best

    def _partly_cut(self, sample: Sample, base: Way) -> Iterator[Way]:
        """Stretches of the chains that have something to hide cut where that is better, one after the other, and all
        else as in `base`."""
        made = self._made(base, sample)
        held = exposed_in_part(made, self.cost) if made is not None else frozenset[str]()
        longest, least = max(1, _STRETCHES // len(starts_of(sample.chains))), base.us
        for chunks in self._counts(sample):
            best, first = replace(base, chunks=chunks), 0
            for number, chain in enumerate(sample.chains):
                for span in stretches([knot.start.name in held for knot in chain.knots], longest):
                    way = _with(best, number, _fitting(best.spans[number], span))
                    way = way.outside(range(first + span[0], first + span[1]))
                    best = min(best, self._timed(way, sample), key=_us)
                first += len(chain.knots)
            if best.us >= least:
                return  # more chunks cost only more
            least = best.us
            yield best

    # Inside matmuls

    def _best_fused(self, sample: Sample, as_it_is: Way) -> Way | None:
        """All that can be inside a matmul, without those that had better not be."""
        found = [self._matches(sample.part, chains) for chains in sample.copies]
        numbers = tuple(number for number in found[0] if all(number in one for one in found))
        if not numbers:
            return None
        several = frozenset(number for number in numbers if all(one[number].can_be_joined for one in found))
        apart = replace(as_it_is, inside=numbers)
        best = min(
            (self._timed(replace(apart, joined=one), sample) for one in dict.fromkeys([_NONE, several])), key=_us
        )
        for number in numbers:
            fewer = best.outside((number,))
            best = min(best, self._timed(fewer, sample), key=_us) if fewer.inside else best
        for number in sorted(best.joined):
            best = min(best, self._timed(replace(best, joined=best.joined - {number}), sample), key=_us)
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

    # Either

    def _timed(self, way: Way, sample: Sample) -> Way:
        """The way with how long it takes; infinitely long if it cannot be gone."""
        made = self._made(way, sample)
        return replace(way, us=shortest_us(made, self.cost) if made is not None else inf)

    def _made(self, way: Way, sample: Sample) -> Program | None:
        """What becomes of the part; None if the way cannot be gone."""
        regions = [replace(region, program=sample.part) for chains in sample.copies for region in way.regions(chains)]
        if cut_twice(regions) is not None:
            return None
        made = cut(sample.part, sharing(sample.part, regions, self.sum_chunks), "") if regions else sample.part
        starts = [(starts_of(chains)[number].name, number) for chains in sample.copies for number in way.inside]
        matches = [find_fused(made, name, number in way.joined) for name, number in starts]
        fused = [match for match in matches if isinstance(match, Match)]
        if len(fused) < len(matches):  # its matmul is cut
            return None
        return apply_fused(made, fused, "") if fused else made


def starts_of(chains: Sequence[Chain]) -> list[Op]:
    """The collectives of some chains, in order."""
    return [knot.start for knot in joined.from_iterable(chain.knots for chain in chains)]


def _divisions(knots: int) -> list[tuple[Span, ...]]:
    """Ways to divide a chain: in pairs, in pairs but for the first, everywhere."""
    ends = [tuple(range(2, knots, 2)), tuple(range(1, knots, 2)), tuple(range(1, knots))]
    return [tuple(zip((0, *one), (*one, knots), strict=True)) for one in dict.fromkeys(ends) if one]


def stretches(held: Sequence[bool], longest: int) -> list[Span]:
    """The stretches of a chain that have a collective that is exposed, without those that have too many collectives."""
    spans = combinations(range(len(held) + 1), 2)
    return [(first, last) for first, last in spans if last - first <= longest and any(held[first:last])]


def _with(way: Way, number: int, spans: tuple[Span, ...]) -> Way:
    """The way with other spans in the chain of that number."""
    return replace(way, spans=(*way.spans[:number], spans, *way.spans[number + 1 :]))


def _fitting(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """These spans with another one, without those that have collectives in common with it."""
    return tuple(sorted([span, *(one for one in spans if one[1] <= span[0] or one[0] >= span[1])]))


def _us(way: Way) -> float:
    return way.us
