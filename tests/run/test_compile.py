"""`torch.compile` with Weft on real ranks: what is trained is what would have been trained without."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.run.training import BATCH, Case, Trained, compare
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

EXACT = {"mode": "eager", "passes": "schedule"}
LENGTHS = (BATCH, BATCH + 4, BATCH, 2 * BATCH)

# With two ranks, sums have two terms, and no order of them is another one; with four, only exact passes keep the bits.
TWO = (
    Case("ddp", gradients=torch.bfloat16, micro_batches=2, checkpointed=True),
    Case("fsdp", gradients=torch.float16, evaluated=True, lengths=LENGTHS, alone=True),
    Case("tp", micro_batches=2, evaluated=True, lengths=LENGTHS),
)
FOUR = (Case("hsdp", evaluated=True),)


def test_two_ranks_train_the_same_bit_by_bit() -> None:
    results = local_ranks(compare, 2, TWO, [None, {"mode": "eager"}], time_limit_s=240)
    assert_same(results, TWO)
    reports = [found[1].reports for found in results[0]]
    assert [_counts(report) for report in reports] == [
        ["12 → 1"],
        ["12 → 1", "20 → 2"],
        ["4 → 4", "4 → 4"],
    ]


@pytest.mark.slow
def test_four_ranks_train_the_same() -> None:
    results = local_ranks(compare, 4, FOUR, [None, EXACT, {"mode": "eager"}], time_limit_s=300)
    assert_same([[found[:2] for found in rank] for rank in results], FOUR)
    for rank in results:
        for found in rank:
            assert_close(found[0], found[2])


@pytest.mark.slow
def test_what_inductor_compiles_trains_the_same_as_without() -> None:
    cases = (Case("fsdp", micro_batches=2, lengths=LENGTHS, alone=True),)
    results = local_ranks(compare, 2, cases, [{}, {"mode": "inductor"}], time_limit_s=400)
    assert_same(results, cases)
    assert _counts(results[0][0][1].reports) == ["12 → 1", "17 → 2"]


def assert_same(results: list[list[list[Trained]]], cases: tuple[Case, ...]) -> None:
    """The second way gave the same bits as the first, on all ranks, and nobody had to be warned."""
    for rank in results:
        for case, (expected, found) in zip(cases, rank, strict=True):
            for one, other in zip(_all(expected), _all(found), strict=True):
                assert torch.equal(one, other), case
            assert found.warned == []


def assert_close(expected: Trained, found: Trained, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for one, other in zip(_all(expected), _all(found), strict=True):
        torch.testing.assert_close(other, one, rtol=rtol, atol=atol)


def _all(trained: Trained) -> list[Any]:
    return [*trained.losses, *trained.parameters]


def _counts(reports: list[str]) -> list[str]:
    """How many collectives there were and are, as the reports say it."""
    return [" ".join(report.split("graph: ")[1].split(" ")[:3]) for report in reports]
