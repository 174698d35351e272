"""Pipelines as text: `sink_waits,hoist_starts{group="dp"}`. A pass's options are its fields."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from weft.errors import OptionError
from weft.ir.lexer import Line
from weft.passes.base import Pass

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "inf": math.inf}
_DEEPEST = 20  # nesting beyond this is garbage
_EXACT = 2.0**53  # whole numbers below this are exact as floats


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
        at = line.mark()
        name = line.expect_kind("name", "the name of an option")
        if name in options:
            raise line.error("each option once", at=at)
        line.expect("=")
        options[name] = _value(line)
        if not line.accept(","):
            line.expect("}")
            return options


def _value(line: Line, depth: int = 0) -> Any:
    if line.next == "[":
        if depth == _DEEPEST:
            raise line.error(f"at most {_DEEPEST} levels of nesting")
        return _list(line, depth + 1)
    if line.kind == "string":
        return line.string()
    if line.kind == "name":
        word = line.take()
        return _WORDS.get(word.lower(), word)
    if line.next.isdigit() or (line.next == "-" and line.peek().isdigit()):
        return line.integer("a whole number of less than 4000 digits")
    sign = -1.0 if line.accept("-") else 1.0
    if sign < 0 and line.accept("inf"):
        return -math.inf
    return sign * float(line.expect_kind("number", "a value: a number, a word, a quoted string, true, false or a list"))


def _list(line: Line, depth: int) -> tuple[Any, ...]:
    line.expect("[")
    items = [] if line.next == "]" else [_value(line, depth)]
    while line.accept(","):
        items.append(_value(line, depth))
    line.expect("]")
    return tuple(items)


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    if value is None:
        return "none"
    if callable(value):  # it has no text; its name tells people, and plans that differ say so in their steps
        return json.dumps(f"function {getattr(value, '__qualname__', type(value).__qualname__)}")
    if isinstance(value, float):
        # 25 and 25.0 are the same option, so they must be the same text: plans are compared by it.
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else str(value)
    return json.dumps(value)


def _fits(value: Any, wanted: Any) -> bool:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(wanted))
    if origin is Callable:
        return callable(value)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(wanted)[0]) for item in value)
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _type_text(wanted: Any) -> str:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type_text, get_args(wanted)))
    if origin is tuple:
        return f"a list of {_type_text(get_args(wanted)[0])}"
    if origin is Callable:
        return "a function"
    return "none" if wanted is types.NoneType else str(wanted.__name__)
