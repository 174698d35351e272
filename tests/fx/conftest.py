"""A world of four ranks without peers, for the tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fx.graphs import fake_world


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    with fake_world():
        yield
