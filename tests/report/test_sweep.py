"""The picture of a sweep, as text and in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page

from weft.report.sweep import Point, Side, sweep_page

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
HOSTILE = "</script><script>window.hacked = 1</script>"
ROWS = [("world-size", "machine", "step"), ("64", HOSTILE, "2.0 ms"), ("8", HOSTILE, "1.0 ms")]
AXES = ("world-size", "machine")


def point(world_size: int | None, machine: str, step_us: float) -> Point:
    after = Side(step_us, step_us / 4, 1000, 1000 / step_us)
    return Point(world_size, machine, None, Side(2 * step_us, step_us, 1000, 1.0), after)


def page_of(machine: str = "toy") -> str:
    points = [point(size, name, us) for size, us in ((64, 2000), (8, 1000)) for name in (machine, "b")]
    return sweep_page("A sweep", points, ROWS, AXES)


def data_of(page: str) -> dict[str, object]:
    (text,) = re.findall(r'<script type="application/json" id="weft-data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, object] = json.loads(text)
    return found


def test_world_sizes_run_along_the_picture_in_their_order() -> None:
    data = data_of(page_of())
    after = {"step": 1.0, "exposed": 25.0, "efficiency": 100.0}
    lines = data.pop("lines")
    assert data == {"along": "world-size", "joined": True, "places": ["8", "64"]}
    assert isinstance(lines, list)
    assert [(line["name"], [one["at"] for one in line["points"]]) for line in lines] == [("toy", [0, 1]), ("b", [0, 1])]
    first = lines[0]["points"][0]
    text = "step 1,000.0 us, exposed 250.0 us, efficiency 100.0%, peak 1,000 bytes"
    assert first["after"] == {**after, "text": text}


def test_machines_are_not_joined_by_a_line() -> None:
    points = [point(None, name, 1000) for name in ("a", "b")]
    data = data_of(sweep_page("A sweep", points, ROWS, ["machine"]))
    assert (data["along"], data["joined"], data["places"]) == ("machine", False, ["a", "b"])


def test_limits_that_are_nearly_equal_have_places_of_their_own() -> None:
    points = [
        replace(point(None, "a", 1000), memory_limit=int(text), limit_text=text) for text in ("9000000", "9040000")
    ]
    data = data_of(sweep_page("A sweep", points, ROWS, ["memory-limit"]))
    assert data["places"] == ["9000000", "9040000"]


def opened(browser: Browser, tmp_path: Path, text: str) -> tuple[Page, list[str]]:
    file, wrong = tmp_path / "sweep.html", list[str]()
    file.write_text(text, encoding="utf-8")
    page = browser.new_context(viewport={"width": 1400, "height": 700}, color_scheme="light").new_page()
    page.set_default_timeout(300_000)  # for what would hang; a busy machine takes its time
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page, wrong


def hover(page: Page, across: float, up: float) -> None:
    """Point at a place in the first plot, as parts of its width and height."""
    box = page.locator("#plots > .plot").first.bounding_box()
    assert box is not None
    left, right, top, bottom = 70, 16, 8, 60  # as the page lays them out
    x = box["x"] + left + across * (box["width"] - left - right)
    page.mouse.move(x, box["y"] + top + (1 - up) * (box["height"] - top - bottom))


def test_it_is_drawn_and_says_what_a_mark_stands_for(browser: Browser, tmp_path: Path) -> None:
    page, wrong = opened(browser, tmp_path, page_of(HOSTILE))
    assert page.locator("#plots > .plot").count() == 3
    assert page.locator("#legend span").all_inner_texts() == [HOSTILE, "b", "before", "after"]
    assert page.locator(".sweep tbody tr").first.locator("td").all_inner_texts() == ["64", HOSTILE, "2.0 ms"]
    # The second of two places, between -0.4 and 1.4; 4 ms, of 8% more than that.
    hover(page, 1.4 / 1.8, 1 / 1.08)
    said = "world-size 64, before: step 4,000.0 us, exposed 2,000.0 us, efficiency 100.0%, peak 1,000 bytes"
    assert page.inner_text("#chosen") == f"{HOSTILE}, {said}"
    hover(page, 0.4 / 1.8, 1 / 4 / 1.08)
    said = "world-size 8, after: step 1,000.0 us, exposed 250.0 us, efficiency 100.0%, peak 1,000 bytes"
    assert page.inner_text("#chosen") == f"{HOSTILE}, {said}"
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "sweep.png")
    assert page.evaluate("window.hacked") is None
    assert wrong == []
