"""The best cuts of a chain: against all other cuts, and against the greedy rule that is known as MG-WFBP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.passes.chains import Link, Stream, best_buckets, soonest_cuts

LATENCY = 10.0


Copying = Callable[[int], float]


def cuts_of(
    links: list[Link], copy_us: Copying, *, compute_us: float | None = None, drag: float = 0.0, slack: float = 0.0
) -> list[int]:
    compute = links[-1].ready if compute_us is None else compute_us
    buckets = best_buckets(links, Stream(us, copy_us, compute, drag), slack)
    assert [bucket.first for bucket in buckets] == [0, *(bucket.last for bucket in buckets[:-1])]
    return [bucket.last for bucket in buckets]


def us(nbytes: int) -> float:
    return LATENCY + nbytes / 8


def step(links: Sequence[Link], cuts: Sequence[int], copy_us: Copying, compute_us: float, drag: float = 0.0) -> float:
    """How long the step takes if the chain is cut there."""
    end = delay = 0.0
    first = 0
    for cut in cuts:
        nbytes = sum(link.nbytes for link in links[first:cut])
        copies = copy_us(nbytes) if cut - first > 1 else 0.0
        end = max(end, links[cut - 1].ready + delay + copies) + us(nbytes)
        delay = delay + copies + us(nbytes) * drag
        first = cut
    return max(end, compute_us + delay)


def greedy(links: Sequence[Link]) -> list[int]:
    """MG-WFBP: a gradient joins the one before it if it is ready before that one has paid its start-up."""
    cuts: list[int] = []
    end = 0.0
    first = 0
    for number, link in enumerate(links):
        start = max(end, link.ready)
        following = links[number + 1].ready if number + 1 < len(links) else float("inf")
        if following < start + LATENCY:
            continue
        end = start + us(sum(one.nbytes for one in links[first : number + 1]))
        cuts.append(number + 1)
        first = number + 1
    return cuts


def soonest_end(links: Sequence[Link], copy_us: Copying) -> float:
    """The recurrence as it is written, over all j: when the chain ends if nothing delays compute."""
    sums = [*accumulate((link.nbytes for link in links), initial=0)]
    ends = [0.0]
    for last, link in enumerate(links):
        sizes = [sums[last + 1] - sums[first] for first in range(link.reach, last + 1)]
        copies = [*map(copy_us, sizes[:-1]), 0.0]
        starts = [max(end, link.ready) for end in ends[link.reach :]]
        ends.append(min(start + us(size) + copy for start, size, copy in zip(starts, sizes, copies, strict=True)))
    return ends[-1]


def end_of(links: Sequence[Link], cuts: Sequence[int], copy_us: Copying) -> float:
    """When a chain that is cut there ends if nothing delays compute."""
    end = 0.0
    for first, cut in pairwise([0, *cuts]):
        nbytes = sum(link.nbytes for link in links[first:cut])
        end = max(end, links[cut - 1].ready) + (us(nbytes) + (copy_us(nbytes) if cut - first > 1 else 0.0))
    return end


def every_cut(links: Sequence[Link]) -> list[list[int]]:
    """All ways to cut a chain in which no link is in a bucket with one beyond its reach."""
    inner = range(1, len(links))
    every = [[*cuts, len(links)] for count in range(len(links)) for cuts in combinations(inner, count)]
    return [cuts for cuts in every if all(a >= links[b - 1].reach for a, b in pairwise([0, *cuts]))]


def long_chain(seed: int, busy: float) -> list[Link]:
    """Hundreds of links, whose collectives take about `busy` times as long as compute; some cannot reach far."""
    random = Random(seed)
    ready, reach, links = 0.0, 0, []
    for place in range(random.choice([200, 350, 500])):
        ready += random.choice([0, 1, 5, 20, 60]) * random.random() * 6 / busy
        reach = max(reach, random.choice([0, 0, place - 40, place - 3, place]))
        links.append(Link(ready, random.choice([1, 8, 80, 400, 2000]), reach))
    return links


def chained(pairs: list[tuple[int, int]]) -> list[Link]:
    """A chain of links that are so far apart and have so many bytes."""
    times = accumulate(gap for gap, _ in pairs)
    return [Link(float(time), nbytes) for time, (_, nbytes) in zip(times, pairs, strict=True)]


chains = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 400)), min_size=1, max_size=9).map(chained)
COPYING: list[Copying] = [lambda nbytes: 0.0, lambda nbytes: nbytes / 40, lambda nbytes: 3 + nbytes / 10]
copying = st.sampled_from(COPYING)


# Gaps of about a latency, and links so small that it matters little which bucket they are in.
close = st.lists(st.tuples(st.integers(0, 14), st.sampled_from([0, 8, 16, 80, 400])), min_size=1, max_size=9)


@st.composite
def reaching(draw: st.DrawFn) -> list[Link]:
    """Chains in which not all can be together."""
    links = draw(chains | close.map(chained))
    reach = [draw(st.integers(0, place)) for place in range(len(links))]
    return [replace(link, reach=far) for link, far in zip(links, accumulate(reach, max), strict=True)]


@given(chains, copying, st.sampled_from([0.0, 0.2]))
def test_no_other_cuts_are_better(links: list[Link], copy_us: Copying, drag: float) -> None:
    compute_us = links[-1].ready
    found = cuts_of(links, copy_us, drag=drag)
    best = min(step(links, cuts, copy_us, compute_us, drag) for cuts in every_cut(links))
    assert step(links, found, copy_us, compute_us, drag) == best


@given(reaching(), copying)
def test_no_other_cuts_end_sooner(links: list[Link], copy_us: Copying) -> None:
    found = soonest_cuts(links, Stream(us, copy_us, 0.0))
    assert found in every_cut(links)
    assert end_of(links, found, copy_us) == min(end_of(links, cuts, copy_us) for cuts in every_cut(links))


@given(reaching(), st.sampled_from([0.0, 0.001]), st.floats(0.0, 2.0))
def test_where_nothing_delays_compute_slack_costs_nothing(links: list[Link], slack: float, busy: float) -> None:
    compute_us = busy * links[-1].ready
    found = cuts_of(links, COPYING[0], compute_us=compute_us, slack=slack)
    best = min(step(links, cuts, COPYING[0], compute_us) for cuts in every_cut(links))
    assert step(links, found, COPYING[0], compute_us) == best


@pytest.mark.parametrize("busy", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("copy_us", COPYING)
@pytest.mark.parametrize("seed", range(4))
def test_long_chains_end_as_soon_as_the_recurrence_says(seed: int, copy_us: Copying, busy: float) -> None:
    links = long_chain(seed, busy)
    found = soonest_cuts(links, Stream(us, copy_us, 0.0))
    assert all(first >= links[cut - 1].reach for first, cut in pairwise([0, *found]))
    assert end_of(links, found, copy_us) == pytest.approx(soonest_end(links, copy_us), rel=1e-12)


@pytest.mark.parametrize("busy", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_they_are_never_worse_than_the_greedy_rule(seed: int, busy: float) -> None:
    links = [replace(link, reach=0) for link in long_chain(seed, busy)]
    stream = Stream(us, COPYING[0], links[-1].ready)
    found, slow = soonest_cuts(links, stream), [bucket.last for bucket in best_buckets(links, stream, slack=0.001)]
    ours, theirs, chosen = (step(links, cuts, COPYING[0], stream.compute_us) for cuts in (found, greedy(links), slow))
    assert ours <= theirs
    assert chosen == ours


@given(chains, copying)
def test_with_slack_the_best_is_missed_by_little(links: list[Link], copy_us: Copying) -> None:
    compute_us = links[-1].ready
    exact, quick = (cuts_of(links, copy_us, drag=0.2, slack=slack) for slack in (0.0, 0.001))
    best, found = (step(links, cuts, copy_us, compute_us, 0.2) for cuts in (exact, quick))
    assert best <= found <= 1.02 * best


@given(chains, st.sampled_from([0.0, 0.001]))
def test_never_worse_than_the_greedy_rule(links: list[Link], slack: float) -> None:
    found = cuts_of(links, lambda nbytes: 0.0, slack=slack)
    ours, theirs = (step(links, cuts, lambda nbytes: 0.0, links[-1].ready) for cuts in (found, greedy(links)))
    assert ours <= theirs


@pytest.mark.parametrize("seed", range(20))
def test_nor_are_long_chains(seed: int) -> None:
    random = Random(seed)
    ready, links = 0.0, []
    for _ in range(random.choice([60, 120, 200])):
        ready += random.choice([0, 1, 5, 20, 60]) * random.random()
        links.append(Link(ready, random.choice([1, 8, 80, 400, 2000])))
    found = cuts_of(links, lambda nbytes: 0.0, slack=0.001)
    ours, theirs = (step(links, cuts, lambda nbytes: 0.0, ready) for cuts in (found, greedy(links)))
    assert ours <= theirs


@given(chains, st.integers(1, 3))
def test_what_cannot_be_together_is_not(links: list[Link], most: int) -> None:
    reaching = [replace(link, reach=max(0, place - most + 1)) for place, link in enumerate(links)]
    cuts = cuts_of(reaching, lambda nbytes: 0.0)
    assert all(cut - before <= most for before, cut in zip([0, *cuts], cuts, strict=False))
    assert cuts[-1] == len(links)


def test_a_small_link_that_is_on_its_way_goes_along_if_that_is_sooner() -> None:
    # Alone it would end at 11, three microseconds after the others are ready, and with them it costs one.
    links = [Link(0.0, 8), Link(8.0, 80), Link(8.0, 80)]
    assert soonest_cuts(links, Stream(us, COPYING[0], 0.0)) == [3]
    assert end_of(links, [3], COPYING[0]) == 39.0
    assert end_of(links, [1, 3], COPYING[0]) == 41.0


def test_an_empty_chain_has_no_buckets() -> None:
    assert [best_buckets([], Stream(us, COPYING[0], 5.0), slack) for slack in (0.0, 0.001)] == [[], []]


def test_where_copies_cost_more_than_they_save_nothing_is_merged() -> None:
    links = [Link(float(10 * i), 8) for i in range(5)]
    assert cuts_of(links, lambda nbytes: 100.0, compute_us=50.0) == [1, 2, 3, 4, 5]


def test_what_hides_anyway_is_merged_because_that_slows_compute_less() -> None:
    links = [Link(float(10 * i), 8) for i in range(5)]
    assert cuts_of(links, lambda nbytes: 0.0, compute_us=1000.0, drag=0.2) == [5]
