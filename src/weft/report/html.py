"""The report: one HTML file with both timelines, which needs nothing else and no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weft.ir.notebook import shown
from weft.report.page_data import Remark, page_data
from weft.report.pages import page
from weft.sim.summary import Row, summary
from weft.sim.timeline import Timeline

_SCRIPTS = ("colors.js", "model.js", "charts.js", "details.js", "page.js")


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
    parts = {
        "title": escape(shown(title)),
        "about": escape(shown(about)),
        "summary": "\n".join(map(_row, summary(before, after, memory_limit))),
    }
    return page("report.html", _SCRIPTS, page_data(before, after, remarks, memory_limit), parts)


def _row(row: Row) -> str:
    kind = "minor" if row.name.startswith("·") else f"row-{row.name.replace(' ', '-')}"
    cells = "".join(f"<td>{escape(text)}</td>" for text in (row.before, row.after, row.change))
    return f'<tr class="{kind}"><th scope="row">{escape(row.name)}</th>{cells}</tr>'
