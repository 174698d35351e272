"""A browser for the tests that look at pages. It is Debian's: `apt-get install chromium`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"there is no browser here: none of {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # Chromium has no sandbox of its own for root, as whom tests run in containers.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
