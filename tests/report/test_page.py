"""The report as a person uses it, in a real browser. Pictures of it are left in build/screenshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.report.samples import HOSTILE, TOY, named_report, report, step
from weft.ir import parse
from weft.report.html import html_report
from weft.sim import simulate

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
LEFT, RIGHT, LANE = 150, 16, 38  # as the page lays them out
STEP_US = 85.0

Open = Callable[[str], Page]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page; in the end it must have asked for nothing else and complained of nothing."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    context.set_default_timeout(300_000)  # for what would hang; a busy machine takes its time
    wrong: list[str] = []
    file = tmp_path / "report.html"

    def opened(text: str) -> Page:
        file.write_text(text, encoding="utf-8")
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page(report())


def drawn(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def window(page: Page) -> str:
    drawn(page)
    return page.inner_text("#window")


def place(page: Page, side: int, lane: int, us: float) -> tuple[float, float]:
    """Where the whole step shows a moment of a lane."""
    box = page.locator("#charts > div:not(.chart-title)").nth(2 * side).bounding_box()
    assert box is not None
    first, last = -0.005 * STEP_US, 1.015 * STEP_US
    x = box["x"] + LEFT + (box["width"] - LEFT - RIGHT) * (us - first) / (last - first)
    return x, box["y"] + 4 + LANE * (lane + 0.5)


def hover(page: Page, side: int, lane: int, us: float) -> list[str]:
    page.mouse.move(*place(page, side, lane, us))
    drawn(page)
    return page.inner_text("#tooltip").split("\n")


def rectangles(page: Page) -> list[list[int]]:
    """How many there are on each timeline: slices, waits, hits, and the frame around what was chosen."""
    found: list[list[int]] = page.evaluate("""() => [0, 2].map((root) => Bokeh.documents[0].roots()[root].renderers
        .filter((one) => one.glyph.type === "Quad").map((one) => one.data_source.data.left.length))""")
    return found


def test_it_opens_on_the_whole_step(page: Page) -> None:
    assert page.title() == "A step"
    assert window(page) == "0.0 us to 85.0 us"
    # 9 matmuls or relus and 9 collectives before; afterwards six copies and a buffer more, and five collectives less.
    assert rectangles(page) == [[18, 9, 0, 0], [20, 4, 0, 0]]
    assert page.inner_text(".row-exposed").split() == ["exposed", "22.2", "us", "15.4", "us", "−30.6%"]


def test_zoom_by_key_and_button(page: Page) -> None:
    page.keyboard.press("w")
    assert window(page) == "16.9 us to 68.9 us"
    page.keyboard.press("d")
    assert window(page) == "27.3 us to 79.3 us"
    page.click("#zoom-in")
    assert window(page) == "37.7 us to 68.9 us"
    page.click("#whole")
    assert window(page) == "0.0 us to 85.0 us"


def test_zoom_by_wheel_and_by_dragging_on_either_timeline(page: Page) -> None:
    page.mouse.move(*place(page, 0, 0, 40.0))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    near = [float(number) for number in re.findall(r"[\d.]+", window(page))]
    assert 0 < near[0] < 40 < near[1] < STEP_US
    page.dblclick("#charts > div:nth-child(2)")
    assert window(page) == "0.0 us to 85.0 us"
    assert dragged(page) == [20, 60]


def test_a_drag_may_begin_with_a_pause(page: Page) -> None:
    assert dragged(page, pause_ms=400) == [20, 60]  # Bokeh would call it something else than a drag after 300


def dragged(page: Page, pause_ms: float = 0) -> list[int]:
    """The window that is shown after a drag from 20 to 60 us, with the button held still at first."""
    page.mouse.move(*place(page, 1, 1, 20.0))
    page.mouse.down()
    page.wait_for_timeout(pause_ms)
    page.mouse.move(*place(page, 1, 1, 60.0), steps=4)
    page.mouse.up()
    return [round(float(number)) for number in re.findall(r"[\d.]+", window(page))]


def test_a_wheel_without_a_key_scrolls_the_page(page: Page) -> None:
    page.mouse.move(*place(page, 0, 0, 40.0))
    page.mouse.wheel(0, 200)
    assert window(page) == "0.0 us to 85.0 us"


def test_hover_over_compute(page: Page) -> None:
    assert hover(page, 0, 0, 6.0) == [
        "y0", "op", "aten.mm.default", "module", "layers.0.up model.py:7", "shape", "f32[10,10]",
        "time", "10.0 us, from 1.0 us",
    ]  # fmt: skip


def test_hover_over_a_collective(page: Page) -> None:
    assert hover(page, 1, 1, 3.6) == [
        "bucket", "kind", "all_gather over dp, 2 ranks", "module", "layers.0.up.weight model.py:7", "shape", "f32[600]",
        "bytes", "2,400 bytes", "time", "2.4 us, from 2.4 us", "exposed", "2.4 us", "members", "6",
        "reason", "2.4 us: %copied needs it, and there was too little to do until then",
    ]  # fmt: skip


def test_hover_over_exposed_time(page: Page) -> None:
    assert hover(page, 1, 0, 3.6) == [
        "waiting for bucket", "exposed", "2.4 us", "from", "2.4 us", "for", "all_gather over dp",
        "module", "layers.0.up.weight model.py:7", "shape", "f32[600]", "bytes", "2,400 bytes",
        "reason", "2.4 us: %copied needs it, and there was too little to do until then",
    ]  # fmt: skip


def test_nothing_is_said_where_nothing_is(page: Page) -> None:
    hover(page, 1, 1, 3.6)
    hover(page, 1, 1, 60.0)
    assert page.is_hidden("#tooltip")


def test_a_click_shows_a_collective_at_length_and_its_members_lead_to_what_they_were(page: Page) -> None:
    page.mouse.click(*place(page, 1, 1, 3.6))
    assert page.inner_text("#details h3") == "bucket (after)"
    assert page.locator("#details dl").last.inner_text().split("\n") == [
        "launched", "2.4 us", "under way", "2.4 us", "landed", "4.8 us", "waited until", "4.8 us", "at", "bucket_done"
    ]  # fmt: skip
    assert page.locator("#details ul").first.inner_text().split("\n")[:2] == [
        "g0: layers.0.up.weight", "h0: layers.0.down.weight"
    ]  # fmt: skip
    assert "bucket: done: launched together with %h0" in page.locator("#details ul").last.inner_text()
    page.click("#details a:has-text('h0: ')")
    assert page.inner_text("#details h3") == "h0 (before)"
    page.keyboard.press("Escape")
    assert page.is_hidden("#details")


def test_search_marks_and_counts_and_goes_from_hit_to_hit(page: Page) -> None:
    page.fill("#search", "layers.1")
    drawn(page)
    assert page.inner_text("#hits") == "11 hits"
    # The members of a bucket are found in it.
    assert page.inner_text("#rows") == "2 of 4 collectives"
    page.press("#search", "Enter")
    assert page.inner_text("#hits") == "1 of 11 hits"
    assert page.inner_text("#details h3") == "g1 (before)"
    page.fill("#search", "no such thing")
    assert page.inner_text("#hits") == "nothing found"
    assert page.locator("#collectives tbody tr").count() == 0


def test_the_table_sorts(page: Page) -> None:
    def first() -> list[str]:
        return page.locator("#collectives tbody td:first-child").all_inner_texts()

    assert first() == ["r2", "r0", "r1", "bucket"]  # by exposed time
    page.click("#collectives th:has-text('size')")
    assert first() == ["bucket", "r0", "r1", "r2"]
    page.click("#collectives th:has-text('collective')")
    assert first() == ["bucket", "r0", "r1", "r2"]
    page.click("#collectives th:has-text('collective')")
    assert first() == ["r2", "r1", "r0", "bucket"]
    page.click("#sides button:has-text('before')")
    assert first() == ["r2", "r1", "r0", "h2", "h1", "h0", "g2", "g1", "g0"]
    page.click("#collectives tbody tr:has-text('h1')")
    assert page.inner_text("#details h3") == "h1 (before)"


def test_light_and_dark(page: Page) -> None:
    def paper() -> list[str]:
        drawn(page)
        plot = page.evaluate("() => Bokeh.documents[0].roots()[0].outline_line_color")
        return [page.evaluate("() => getComputedStyle(document.body).backgroundColor"), plot]

    PICTURES.mkdir(parents=True, exist_ok=True)
    page.mouse.click(*place(page, 1, 1, 3.6))
    assert paper() == ["rgb(255, 255, 255)", "#dcdfe5"]
    page.screenshot(path=PICTURES / "report-light.png", full_page=True)
    page.click("#theme")
    assert paper() == ["rgb(18, 21, 27)", "#303642"]
    page.screenshot(path=PICTURES / "report-dark.png", full_page=True)
    page.click("#theme")
    assert paper() == ["rgb(255, 255, 255)", "#dcdfe5"]
    page.emulate_media(color_scheme="dark")
    assert paper() == ["rgb(18, 21, 27)", "#303642"]


def test_hostile_names_are_shown_and_do_nothing(open_page: Open) -> None:
    page = open_page(named_report(HOSTILE))
    shown = HOSTILE.replace("\x00", "·").replace("\x1b", "·").replace("\u2028", "·").replace("\u2029", "·")
    assert page.inner_text("h1") == shown
    page.click("#collectives tbody tr")
    drawn(page)
    assert page.inner_text("#details h3") == f"{shown} (after)"
    page.fill("#search", "</script>")
    assert page.inner_text("#hits") == "4 hits"
    assert page.evaluate("() => window.hacked") is None


def test_a_step_with_nothing_in_it(open_page: Open) -> None:
    nothing = simulate(parse("weft 1\nreturn"), TOY)
    page = open_page(html_report("Nothing", nothing, nothing))
    assert rectangles(page) == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert window(page) == "0.0 us to 1.0 us"


def test_twenty_thousand_slices_share_rectangles_and_collectives_do_not(open_page: Open) -> None:
    many = simulate(step(3000), TOY)
    busy = sum(end > begin for begin, end in zip(many.begins, many.ends, strict=True))
    assert busy + len(many.flights) > 20_000
    text = html_report("Many", many, many)
    assert len(text.encode()) < 15_000_000
    page = open_page(text)
    (slices, holds, *_), _ = rectangles(page)
    assert len(many.flights) == holds == 9000
    assert 9000 < slices < 11_000
    page.click("#collectives tbody tr:nth-child(1)")
    drawn(page)
    assert rectangles(page)[1][3] == 1
    assert sum(rectangles(page)[1]) < 30
