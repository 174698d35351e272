"""The page as text: it is whole, it says what the timelines say, and no name gets out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.samples import HOSTILE, named_report, report
from weft import Machine, parse, simulate
from weft.errors import WeftError
from weft.report import pages
from weft.report.html import html_report

GOLDEN = Path(__file__).parents[1] / "golden"

MEMBERS = {"g0": 0, "h0": 1, "g1": 3, "h1": 4, "g2": 6, "h2": 7}  # and which collective each of them was


class Seen(HTMLParser):
    """Which tags there are, what they refer to, and the data of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.refers: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.refers += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def data_of(page: str) -> dict[str, list[dict[str, object]]]:
    (text,) = re.findall(r'<script type="application/json" id="weft-data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, list[dict[str, object]]] = json.loads(text)
    return found


def test_it_refers_to_nothing_outside() -> None:
    seen = Seen(report())
    assert (seen.refers, seen.handlers) == ([], [])
    assert "default-src 'none'" in report()


def test_the_summary_stands_in_the_page_itself() -> None:
    rows = re.findall(r"<tr class=.*?>(.*?)</tr>", report())
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert cells == [
        ["step", "84.6 us", "85.0 us", "+0.5%"],
        ["compute", "62.4 us", "69.6 us", "+11.5%"],
        ["communication", "22.2 us", "18.6 us", "−16.2%"],
        ["exposed", "22.2 us", "15.4 us", "−30.6%"],
        ["collectives", "9", "4", "−55.6%"],
        ["· all_gather", "6", "1", "−83.3%"],
        ["· all_reduce", "3", "3", ""],
        ["peak memory", "2,800 bytes", "5,600 bytes", "+100.0%"],
        ["memory limit", "6,000 bytes", "6,000 bytes", ""],
        ["bound", "68.2 us", "73.8 us", "+8.2%"],
    ]


def test_a_bucket_knows_its_members_and_what_was_said_of_them() -> None:
    bucket = data_of(report())["sides"][1]["collectives"][0]  # type: ignore[index]
    assert bucket == {
        "op": "bucket",
        "kind": "all_gather",
        "inside": False,
        "group": 0,
        "origin": "layers.0.up.weight model.py:7",
        "shape": "f32[600]",
        "bytes": 2400,
        "launched": 2.4,
        "begin": 2.4,
        "end": 4.8,
        "waited": 4.8,
        "exposed": 2.4,
        "causes": [{"us": 2.4, "text": "%copied needs it, and there was too little to do until then"}],
        "waits": ["bucket_done"],
        "members": [{"op": name, "was": was} for name, was in MEMBERS.items()],
        "remarks": [0, 4],
    }  # fmt: skip


def test_a_collective_inside_a_matmul_is_one_of_the_collectives() -> None:
    text = (GOLDEN / "explain" / "explain__inside_a_matmul.weft").read_text().split("# ----")[0]
    timeline = simulate(parse(text), Machine.load("h100-ib400"))
    found: Any = data_of(html_report("", timeline, timeline))["sides"][1]["collectives"]
    (one,) = found
    known = {
        name: one[name] for name in ("op", "kind", "inside", "group", "origin", "bytes", "begin", "waits", "waited")
    }
    assert known == {
        "op": "fused",
        "kind": "all_gather",
        "inside": True,
        "group": 0,
        "origin": "layers.0.up model.py:12",
        "bytes": 8 * 2048 * 8192 * 2,
        "begin": 0.0,
        "waits": [],
        "waited": None,
    }
    assert one["end"] == pytest.approx(timeline.step_us, abs=1e-3)
    assert 0 < one["exposed"] < one["end"]
    assert [cause["us"] for cause in one["causes"]] == [one["exposed"]]


def test_hostile_names_add_no_tag_and_no_control_character() -> None:
    page, plain = named_report(HOSTILE + "x" * 100_000), named_report("plain")
    assert (Seen(page).tags, Seen(page).handlers) == (Seen(plain).tags, [])
    data = json.dumps(data_of(page), ensure_ascii=False)
    assert not set("\x00\x1b\u2028\u2029") & set(data)
    assert "x" * 2000 not in page


def test_a_part_that_looks_like_a_place_for_another_stays_what_it_is() -> None:
    assert "<h1>@@data@@</h1>" in report("@@data@@")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    with pytest.raises(WeftError, match="pip install bokeh"):
        report()


def test_the_assets_are_part_of_the_package() -> None:
    assets = Path(pages.__file__).parent / "assets"
    assert {path.name for path in assets.iterdir()} == {
        "report.html", "report.css", "colors.js", "model.js", "charts.js", "details.js", "page.js",
        "sweep.html", "sweep.js",
    }  # fmt: skip
    assert "report/assets/*" in (Path(__file__).parents[2] / "pyproject.toml").read_text()
