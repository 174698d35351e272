"""How far apart the results of two ways to run a step are."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from weft.run import steps


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        ([], [], 0.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 4.0], [1.0, 3.0], 0.25),
        ([0.0, -inf], [0.0, -inf], 0.0),
        ([-inf, -inf], [-inf, -inf], 0.0),
        ([1.0, nan], [1.0, nan], 0.0),
        ([10.0, -inf], [9.0, -inf], 0.1),
        ([1.0, inf], [1.0, -inf], inf),
        ([1.0, inf], [1.0, 2.0], inf),
        ([1.0, 2.0], [1.0, nan], inf),
        ([1.0, 2.0], [1.0], inf),
    ],
)
def test_what_both_have_is_the_same_be_it_infinite_or_no_number(
    monkeypatch: pytest.MonkeyPatch, expected: list[float], found: list[float], apart: float
) -> None:
    monkeypatch.setattr(steps, "from_all", lambda value: [value])
    assert steps.difference([torch.tensor(expected)], [torch.tensor(found)]) == pytest.approx(apart)


def test_numbers_that_cannot_be_infinite_are_compared_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "from_all", lambda value: [value])
    mask = torch.tensor([True, False])
    assert steps.difference([mask, torch.tensor(4)], [mask, torch.tensor(3)]) == 0.25
