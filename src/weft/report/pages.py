"""Pages that are one file each: they need nothing else, load nothing, and take no text for markup."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.errors import WeftError

_LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
# The page may run what is written in it and load nothing: not a script, not a picture, not a font.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def page(template: str, scripts: Sequence[str], data: Any, parts: Mapping[str, str]) -> str:
    """An asset with its places filled in: policy, style, library, data and script, and `parts`, which are HTML."""
    known = {
        "policy": _POLICY,
        "style": _asset("report.css"),
        "data": _json(data),
        "library": "\n".join(f"<script>{_script(_library(name))}</script>" for name in _LIBRARY),
        "script": "\n".join(map(_asset, scripts)),
        **parts,
    }
    # The page is split first, so that a part which looks like a place for another stays what it is.
    pieces = _asset(template).split("@@")
    return "".join(known[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _json(data: Any) -> str:
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
