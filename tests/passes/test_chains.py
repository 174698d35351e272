"""The best cuts of a chain: against all other cuts, and against the greedy rule that is known as MG-WFBP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.passes.chains import Link, Stream, best_buckets

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


chains = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 400)), min_size=1, max_size=9).map(
    lambda pairs: [Link(float(sum(gap for gap, _ in pairs[: i + 1])), nbytes) for i, (_, nbytes) in enumerate(pairs)]
)
copying = st.sampled_from([lambda nbytes: 0.0, lambda nbytes: nbytes / 40, lambda nbytes: 3 + nbytes / 10])


@given(chains, copying, st.sampled_from([0.0, 0.2]))
def test_no_other_cuts_are_better(links: list[Link], copy_us: Copying, drag: float) -> None:
    compute_us = links[-1].ready
    found = cuts_of(links, copy_us, drag=drag)
    inner = range(1, len(links))
    every = [[*cuts, len(links)] for count in range(len(links)) for cuts in combinations(inner, count)]
    best = min(step(links, cuts, copy_us, compute_us, drag) for cuts in every)
    assert step(links, found, copy_us, compute_us, drag) == best


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


def test_where_copies_cost_more_than_they_save_nothing_is_merged() -> None:
    links = [Link(float(10 * i), 8) for i in range(5)]
    assert cuts_of(links, lambda nbytes: 100.0, compute_us=50.0) == [1, 2, 3, 4, 5]


def test_what_hides_anyway_is_merged_because_that_slows_compute_less() -> None:
    links = [Link(float(10 * i), 8) for i in range(5)]
    assert cuts_of(links, lambda nbytes: 0.0, compute_us=1000.0, drag=0.2) == [5]
