from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cost.curves import Curve, measured_us
from weft.errors import WeftWarning

TWO = Curve("all_gather", 2, 1, (1e3, 1e5), (10.0, 100.0))
EIGHT = Curve("all_gather", 8, 1, (1e3, 1e5), (40.0, 400.0))


def test_between_knots_the_line_is_straight_on_logarithmic_axes() -> None:
    assert [TWO.at(size, "m") for size in (1e3, 1e5)] == pytest.approx([10, 100])
    assert TWO.at(1e4, "m") == pytest.approx(10**1.5)


def test_below_the_first_knot_is_its_time() -> None:
    assert TWO.at(0, "m") == TWO.at(999, "m") == 10


def test_beyond_the_last_knot_its_bandwidth_goes_on_with_a_warning() -> None:
    with pytest.warns(WeftWarning, match=r"^m: all_gather among 2 ranks was measured up to 0\.0953674 MiB; beyond "):
        assert TWO.at(199_000, "m") == pytest.approx(190)


def test_the_warning_is_shown_once_for_each_curve() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for size in (2e5, 3e5, 4e5):
            measured_us((TWO, EIGHT), 2, size, "m")
            measured_us((TWO, EIGHT), 8, size, "m")
    assert len(caught) == 2


def test_a_flat_end_goes_on_at_the_mean_bandwidth() -> None:
    flat = Curve("all_gather", 2, 1, (1e3, 1e5), (10.0, 10.0))
    with pytest.warns(WeftWarning):
        assert flat.at(2e5, "m") == pytest.approx(20)


def test_between_group_sizes_it_is_interpolated_and_beyond_them_unknown() -> None:
    curves = (TWO, EIGHT)
    assert measured_us(curves, 4, 1e3, "m") == pytest.approx(20)
    assert measured_us(curves, 8, 1e3, "m") == 40
    assert measured_us(curves, 9, 1e3, "m") is None
    assert measured_us((EIGHT,), 4, 1e3, "m") is None
    assert measured_us((), 4, 1e3, "m") is None


def test_a_permute_takes_the_nearest_curve() -> None:
    permute = (Curve("permute", 4, 1, (1e3, 1e5), (10.0, 100.0)), Curve("permute", 8, 1, (1e3, 1e5), (20.0, 200.0)))
    assert [measured_us(permute, ranks, 1e3, "m") for ranks in (2, 4, 8, 64)] == [10, 10, 20, 20]


@given(
    st.lists(st.tuples(st.floats(1, 1e10), st.floats(1, 1e6)), min_size=2, max_size=8, unique_by=lambda one: one[0]),
    st.lists(st.floats(0, 1e11), min_size=2, max_size=20),
)
def test_a_curve_never_falls(knots: list[tuple[float, float]], sizes: list[float]) -> None:
    at, us = sorted(size for size, _ in knots), sorted(us for _, us in knots)
    curve = Curve("all_gather", 2, 1, tuple(at), tuple(us))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        found = [curve.at(size, "m") for size in sorted(sizes)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(found))
