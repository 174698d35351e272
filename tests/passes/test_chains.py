"""The best cuts of a chain: against all other cuts, and against the greedy rule that is known as MG-WFBP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from weft.passes.chains import Link, best_buckets

LATENCY = 10.0


def cuts_of(
    links: list[Link], copy_us: Callable[[int], float], most: int = 99, compute_us: float | None = None
) -> list[int]:
    compute = links[-1].ready if compute_us is None else compute_us
    buckets = best_buckets(links, us, copy_us, lambda first, last: last - first < most, compute)
    assert [bucket.first for bucket in buckets] == [0, *(bucket.last for bucket in buckets[:-1])]
    return [bucket.last for bucket in buckets]


def us(nbytes: int) -> float:
    return LATENCY + nbytes / 8


def step(links: Sequence[Link], cuts: Sequence[int], copy_us: Callable[[int], float], compute_us: float) -> float:
    """How long the step takes if the chain is cut there."""
    end = copied = 0.0
    first = 0
    for cut in cuts:
        nbytes = sum(link.nbytes for link in links[first:cut])
        copied += copy_us(nbytes) if cut - first > 1 else 0.0
        end = max(end, links[cut - 1].ready + copied) + us(nbytes)
        first = cut
    return max(end, compute_us + copied)


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


@given(chains, copying)
def test_no_other_cuts_are_better(links: list[Link], copy_us: Callable[[int], float]) -> None:
    compute_us = links[-1].ready
    found = cuts_of(links, copy_us)
    inner = range(1, len(links))
    every = [[*cuts, len(links)] for count in range(len(links)) for cuts in combinations(inner, count)]
    assert step(links, found, copy_us, compute_us) == min(step(links, cuts, copy_us, compute_us) for cuts in every)


@given(chains)
def test_never_worse_than_the_greedy_rule(links: list[Link]) -> None:
    found = cuts_of(links, lambda nbytes: 0.0)
    ours, theirs = (step(links, cuts, lambda nbytes: 0.0, links[-1].ready) for cuts in (found, greedy(links)))
    assert ours <= theirs


@given(chains, st.integers(1, 3))
def test_what_cannot_be_together_is_not(links: list[Link], most: int) -> None:
    cuts = cuts_of(links, lambda nbytes: 0.0, most)
    assert all(cut - before <= most for before, cut in zip([0, *cuts], cuts, strict=False))
    assert cuts[-1] == len(links)


def test_where_copies_cost_more_than_they_save_nothing_is_merged() -> None:
    links = [Link(float(10 * i), 8) for i in range(5)]
    assert cuts_of(links, lambda nbytes: 100.0, compute_us=50.0) == [1, 2, 3, 4, 5]
