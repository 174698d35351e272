"""The report: one HTML file with both timelines, which needs nothing else and no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from weft.errors import WeftError
from weft.ir.notebook import shown
from weft.report.page_data import Data, Remark, page_data
from weft.sim.summary import Row, summary
from weft.sim.timeline import Timeline

_SCRIPTS = ("model.js", "charts.js", "details.js", "page.js")
_LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
# The page may run what is written in it and load nothing: not a script, not a picture, not a font.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def html_report(
    title: str,
    before: Timeline,
    after: Timeline,
    remarks: Sequence[Remark] = (),
    *,
    memory_limit: int | None = None,
    about: str = "",
) -> str:
    """A page on what became of a step.

    Both timelines stand one above the other and zoom together. `about` is a line below the title: the machine, how
    many ranks, what else there is to know. Nothing in it is trusted: names are shown as text, whatever they hold.
    """
    page = _asset("report.html")
    parts = {
        "policy": _POLICY,
        "title": escape(shown(title)),
        "about": escape(shown(about)),
        "summary": "\n".join(map(_row, summary(before, after, memory_limit))),
        "style": _asset("report.css"),
        "data": _json(page_data(before, after, remarks, memory_limit)),
        "library": "\n".join(f"<script>{_script(_library(name))}</script>" for name in _LIBRARY),
        "script": "\n".join(map(_asset, _SCRIPTS)),
    }
    # The page is split first, so that a part which looks like a place for another stays what it is.
    pieces = page.split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _row(row: Row) -> str:
    kind = "minor" if row.name.startswith("·") else f"row-{row.name.replace(' ', '-')}"
    cells = "".join(f"<td>{escape(text)}</td>" for text in (row.before, row.after, row.change))
    return f'<tr class="{kind}"><th scope="row">{escape(row.name)}</th>{cells}</tr>'


def _json(data: Data) -> str:
    """JSON that ends no script and opens no comment: `<` is spelled out, as is everything beyond ASCII."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _script(text: str) -> str:
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return files("weft.report").joinpath("assets", name).read_text(encoding="utf-8")


def _library(name: str) -> str:
    """A script of Bokeh's. The package is looked up and not imported: that takes long, and its Python is not needed."""
    spec = find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise WeftError("the report needs the package bokeh, which draws it: pip install bokeh")
    return (Path(spec.submodule_search_locations[0]) / "server/static/js" / name).read_text(encoding="utf-8")
