"""Every way of training in every mode, on two ranks and on four: minutes for each, so `make test-slow` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.run.test_compile import LENGTHS, assert_close, assert_same
from tests.run.training import Case, compare
from weft.run import local_ranks

pytestmark = [pytest.mark.gloo, pytest.mark.slow]

KINDS = {2: ("ddp", "fsdp", "tp"), 4: ("ddp", "fsdp", "hsdp", "tp")}
# What a mode is compared with: the model as written, or under torch.compile, whose kernels round otherwise.
REFERENCE: dict[str, dict[str, Any] | None] = {"eager": None, "inductor": {}}

# What another order of four terms makes of parameters in twenty steps, by the dtype in which gradients are summed.
ROUNDING = {None: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2e-2}


def cases(kind: str) -> Iterator[Case]:
    """The plain model, and each feature on its own."""
    yield Case(kind)
    yield Case(kind, micro_batches=2)
    yield Case(kind, checkpointed=True)
    yield Case(kind, evaluated=True)
    yield Case(kind, lengths=LENGTHS)
    if kind != "tp":
        yield Case(kind, gradients=torch.bfloat16)
        yield Case(kind, gradients=torch.float16)


@pytest.mark.parametrize("mode", REFERENCE)
@pytest.mark.parametrize(("ranks", "kind"), [(ranks, kind) for ranks, kinds in KINDS.items() for kind in kinds])
def test_training_ends_where_it_ends_without_weft(ranks: int, kind: str, mode: str) -> None:
    trained = tuple(cases(kind))
    ways = [REFERENCE[mode], {"mode": mode, "passes": "schedule"}, {"mode": mode}]
    results = local_ranks(compare, ranks, trained, ways, time_limit_s=1800)
    assert_same([[found[:2] for found in rank] for rank in results], trained)
    merged = [[[found[0], found[2]] for found in rank] for rank in results]
    if ranks == 2:  # a sum of two terms has one order only
        assert_same(merged, trained)
    for rank in merged:
        for case, (expected, found) in zip(trained, rank, strict=True):
            off = ROUNDING[case.gradients]
            assert_close(expected, found, off, off)
