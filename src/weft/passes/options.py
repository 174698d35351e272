"""Pipelines as text: `sink_waits,hoist_starts{group="dp"}`. A pass's options are its fields."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from weft.errors import OptionError
from weft.ir.lexer import Line
from weft.passes.base import Pass

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


def parse_pipeline(text: str, table: Mapping[str, type[Pass]]) -> tuple[Pass, ...]:
    """The passes that `text` names, with their options. ParseError or OptionError says what is wrong."""
    line = Line(text, source="<pipeline>")
    passes = []
    while True:
        at = line.mark()
        name = line.expect_kind("name", "the name of a pass")
        if name not in table:
            raise line.error(f"a pass ({', '.join(table)})", at=at)
        passes.append(make_pass(table[name], _options(line)))
        if not line.accept(","):
            line.end()
            return tuple(passes)


def make_pass(kind: type[Pass], options: Mapping[str, Any]) -> Pass:
    """A pass with these options, each checked against the type of its field."""
    hints = get_type_hints(kind)
    known = {field.name: hints[field.name] for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    for name, value in options.items():
        if name not in known:
            raise OptionError(f"{kind.name} has no option {name!r}; it takes: {', '.join(known) or 'none'}")
        if not _fits(value, known[name]):
            raise OptionError(f"{kind.name}: {name} must be {_type_text(known[name])}, not {value!r}")
    return kind(**options)


def pass_text(made: Pass) -> str:
    """How to write this pass in a pipeline: its name, and the options that are not at their default."""
    shown = [
        f"{field.name}={_value_text(getattr(made, field.name))}"
        for field in fields(made)  # type: ignore[arg-type]  # a dataclass
        if getattr(made, field.name) != field.default
    ]
    return made.name + (f"{{{', '.join(shown)}}}" if shown else "")


def _options(line: Line) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if not line.accept("{") or line.accept("}"):
        return options
    while True:
        name = line.expect_kind("name", "the name of an option")
        line.expect("=")
        options[name] = _value(line)
        if not line.accept(","):
            line.expect("}")
            return options


def _value(line: Line) -> Any:
    if line.accept("["):
        items = [] if line.next == "]" else [_value(line)]
        while line.accept(","):
            items.append(_value(line))
        line.expect("]")
        return tuple(items)
    if line.kind == "string":
        return line.string()
    if line.kind == "name":
        word = line.take()
        return _WORDS.get(word.lower(), word)
    sign = -1 if line.accept("-") else 1
    number = line.expect_kind("number", "a value: a number, a word, a quoted string, true, false or a list")
    return sign * (int(number) if number.isdigit() else float(number))


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    return json.dumps(value) if value is not None else "none"


def _fits(value: Any, wanted: Any) -> bool:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(wanted))
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(wanted)[0]) for item in value)
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _type_text(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
