"""Ranks that come to different plans for one step, as those with shards of different sizes may, launch the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.run.test_compile import LENGTHS, assert_same
from tests.run.training import Case, compare
from weft.ir import Collective
from weft.run import local_ranks

pytestmark = pytest.mark.gloo

CASES = (Case("fsdp", lengths=LENGTHS, alone=True),)  # the last rank compiles once more, alone
NOT_ITS_OWN = "; it launches what other ranks decided"


def slow_to_begin_on_the_first(collective: Collective, total_bytes: int) -> float:
    """So only there do buckets pay."""
    return (1000.0 if dist.get_rank() == 0 else 0.0) + total_bytes / 1000


def slow_to_begin_on_the_last(collective: Collective, total_bytes: int) -> float:
    return (0.0 if dist.get_rank() == 0 else 1000.0) + total_bytes / 1000


@pytest.mark.parametrize(
    ("mode", "estimator", "expected"),
    [
        ("eager", slow_to_begin_on_the_first, ["12 → 1", "20 → 2"]),
        ("eager", slow_to_begin_on_the_last, ["12 → 9", "20 → 20"]),
        pytest.param("inductor", slow_to_begin_on_the_first, ["12 → 1", "17 → 2"], marks=pytest.mark.slow),
    ],
)
def test_all_launch_what_the_first_would(mode: str, estimator: Any, expected: list[str]) -> None:
    ways = [None if mode == "eager" else {}, {"mode": mode, "collective_estimator": estimator}]
    results = local_ranks(compare, 2, CASES, ways, time_limit_s=400)
    assert_same(results, CASES)
    first, last = (rank[0][1].reports for rank in results)
    for reports in (first, last):
        assert [report.split("graph: ")[1].split(" collective")[0] for report in reports] == expected
    assert [report.endswith(NOT_ITS_OWN) for report in first] == [False, False]
    assert [report.endswith(NOT_ITS_OWN) for report in last] == [True, True]
