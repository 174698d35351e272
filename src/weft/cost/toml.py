"""TOML files as data that knows its lines: a wrong value is refused with the place where it stands.

`tomllib` forgets where a value came from. `read` parses with it, then looks through the text, which is known to be
sound by then, for the line of every table and key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from weft.errors import MachineError, visible

Place: TypeAlias = tuple[str | int, ...]

_LIMIT = 4_000_000  # bytes: a machine takes a few thousand; what is longer is some other file
_SMALLEST, _LARGEST = 1e-12, 1e15  # beyond these no figure of a machine is meant, and products overflow
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*[.=]")
# Comments and strings, those of many lines first.
_OPAQUE = re.compile(r'''"""(?:\\.|.)*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*''', re.DOTALL)


@dataclass(frozen=True)
class Table:
    """A table of a TOML file. Every getter checks what it gets and raises a MachineError that names the line."""

    source: str
    place: Place
    values: Mapping[str, Any]
    lines: Mapping[Place, int]

    def wrong(self, key: str, reason: str) -> MachineError:
        """The error for a key of this table; raise it."""
        name = ".".join(str(part) for part in (*self.place, key) if isinstance(part, str))
        return MachineError(visible(f"{name}: {reason}"), self.source, self._line(key))

    def only(self, *known: str) -> None:
        """Refuse keys that mean nothing here: a misspelt one would be ignored in silence otherwise."""
        for key in self.values:
            if key not in known:
                raise self.wrong(key, f"is not known here; known are {', '.join(known)}")

    def text(self, key: str) -> str:
        value = self._value(key, "a text in quotes")
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"must be a text that is not empty, not {_shown(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._value(key, "a list of texts")
        if not isinstance(values, list) or not values or not all(isinstance(one, str) for one in values):
            raise self.wrong(key, f'must be a list of texts such as ["a", "b"], not {_shown(values)}')
        return tuple(values)

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {_shown(value)}")
        return value

    def number(self, key: str, *, high: float = math.inf, default: float | None = None) -> float:
        """A number above zero and at most `high`."""
        if default is not None and key not in self.values:
            return default
        return self._positive(key, self._value(key, "a number"), high)

    def at_least(self, key: str, low: float) -> float:
        """A number that may be as small as `low`."""
        value = self._finite(key, self._value(key, "a number"))
        if value < low:
            raise self.wrong(key, f"must be at least {low:g}, not {value:g}")
        return value

    def count(self, key: str, *, low: int = 1, default: int | None = None) -> int:
        value = self.values.get(key, default) if default is not None else self._value(key, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.wrong(key, f"must be a whole number of at least {low}, not {_shown(value)}")
        if value > _LARGEST:
            raise self.wrong(key, f"must be at most {_LARGEST:g}, not {_shown(value)}")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive numbers, at least two."""
        return self._row(key, self._value(key, "a list of numbers"))

    def rows(self, key: str) -> tuple[tuple[float, ...], ...]:
        """A list of lists of positive numbers."""
        rows = self._value(key, "a list of rows of numbers")
        if not isinstance(rows, list) or not rows:
            raise self.wrong(key, f"must be a list of rows of numbers, not {_shown(rows)}")
        return tuple(self._row(key, row) for row in rows)

    def table(self, key: str) -> Table:
        value = self._value(key, f"a table [{'.'.join(str(part) for part in (*self.place, key))}]")
        if not isinstance(value, dict):
            raise self.wrong(key, f"must be a table, not {_shown(value)}")
        return Table(self.source, (*self.place, key), value, self.lines)

    def tables(self, key: str) -> tuple[Table, ...]:
        """The tables under [[key]]; none if there are none."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.wrong(key, f"must be tables, each under [[{key}]]")
        return tuple(Table(self.source, (*self.place, key, at), one, self.lines) for at, one in enumerate(values))

    def _value(self, key: str, wanted: str) -> Any:
        if key not in self.values:
            raise self.wrong(key, f"is missing; it must be {wanted}")
        return self.values[key]

    def _row(self, key: str, values: object) -> tuple[float, ...]:
        if not isinstance(values, list) or len(values) < 2:
            raise self.wrong(key, f"must be a list of at least two numbers, not {_shown(values)}")
        return tuple(self._positive(key, one) for one in values)

    def _positive(self, key: str, value: object, high: float = math.inf) -> float:
        found = self._finite(key, value)
        if not 0 < found <= high:
            bound = f" and at most {high:g}" if high < math.inf else ""
            raise self.wrong(key, f"must be more than 0{bound}, not {_shown(value)}")
        return found

    def _finite(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, f"must be a number, not {_shown(value)}")
        # An integer of any length is legal TOML, and a float is not long enough for all of them.
        if not math.isfinite(value) if isinstance(value, float) else abs(value) > 1e300:
            raise self.wrong(key, f"must be a finite number, not {_shown(value)}")
        if value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise self.wrong(key, f"must be from {_SMALLEST:g} to {_LARGEST:g} in size, not {_shown(value)}")
        return float(value)

    def _line(self, key: str) -> int:
        """Where a key stands, or else the table in which it is missing."""
        place: Place = (*self.place, key)
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read(path: Path) -> Table:
    """The root table of a TOML file. Raises MachineError if it cannot be read, or is no TOML."""
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise MachineError(f"cannot be read: {error.strerror}", source) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MachineError("is not text: a machine is a TOML file in UTF-8", source, line) from None
    if len(data) > _LIMIT:
        raise MachineError(f"is longer than {_LIMIT:,} bytes: that is no machine", source)
    return parse(text, source)


def parse(text: str, source: str) -> Table:
    """The root table of a TOML text; `source` is what errors call it."""
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # also for numbers of more digits than Python converts
        line = re.search(r"at line (\d+)", str(error))
        raise MachineError(
            visible(f"is no TOML: {error}"), source, int(line[1]) if line else text.count("\n") + 1
        ) from None
    except RecursionError:
        raise MachineError("is nested too deeply for a machine", source) from None
    return Table(source, (), values, dict(_lines(text)))


def _lines(text: str) -> Iterator[tuple[Place, int]]:
    """The place of every table and key with its line. The text must be valid TOML."""
    table: Place = ()
    counts: dict[Place, int] = {}
    depth = 0
    for number, line in enumerate(_bare(text).split("\n"), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if depth == 0 and header is not None:
            table = tuple(part.strip() for part in header[2].split("."))
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            yield table, number
            continue
        if depth == 0 and key is not None:
            yield (*table, key[1]), number
        depth += line.count("[") + line.count("{") - line.count("]") - line.count("}")


def _bare(text: str) -> str:
    """The text without comments and strings, whose brackets mean nothing; every line stays where it is."""
    return _OPAQUE.sub(lambda found: "\n" * found[0].count("\n") or " ", text)


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number of many digits"
    return shown if len(shown) <= 60 else shown[:57] + "..."
