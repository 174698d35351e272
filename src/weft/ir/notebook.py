"""How things show themselves in a notebook: small pieces of HTML in which every text is text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from weft.errors import visible

_WIDEST = 300  # characters of a line that are worth showing


def listing(lines: Sequence[str], most: int) -> str:
    """Lines as they are, and how many more there are than `most`."""
    more = [f"… and {len(lines) - most:,} more lines"] if len(lines) > most else []
    return f"<pre>{chr(10).join(map(plain, [*lines[:most], *more]))}</pre>"


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows."""
    titles = "".join(f"<th>{plain(title)}</th>" for title in header)
    body = "".join(
        f'<tr><th style="text-align:left">{plain(name)}</th>{"".join(f"<td>{plain(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def plain(text: str) -> str:
    """A text of unknown origin as HTML that shows it."""
    return escape(shown(text, _WIDEST))


def shown(text: str, longest: int = 200) -> str:
    """A text of unknown origin as it is shown: on one line, without control characters, and not too long."""
    return visible(text if len(text) <= longest else f"{text[: longest - 1]}…")
