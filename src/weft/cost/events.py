"""Chrome traces, event by event. That of a large job has hundreds of megabytes, and is never in memory as a whole."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from weft.errors import ProfileError

_CHUNK = 1 << 20  # characters that are read at once
_LONGEST = 1 << 26  # characters of one value: an event has hundreds; what is longer is no event
_GZIP = b"\x1f\x8b"


def read_events(path: Path, take: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Give every event of a trace to `take`, in the file's order, and return what else the file says.

    The file may be compressed by gzip, whatever its name. Raises ProfileError if it cannot be read, or is no trace.
    """
    source = str(path)
    try:
        with path.open("rb") as raw:  # once: what was read from a pipe does not come again
            packed = raw.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            data = gzip.GzipFile(fileobj=raw) if packed else raw
            # Names of kernels and files may hold anything; a wrong byte in one of them is no reason to give up.
            with io.TextIOWrapper(data, encoding="utf-8", errors="replace") as file:
                return _Trace(file, source).read(take)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ProfileError("is a gzip file that is damaged or cut short", source) from None
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror}", source) from None
    except RecursionError:
        raise ProfileError("is nested too deeply for a trace", source) from None


class _Trace:
    """A window that moves over the text of a trace. `text[at]` is the next character that was not looked at."""

    def __init__(self, file: TextIO, source: str) -> None:
        self.file, self.source = file, source
        self.text, self.at, self.ended = "", 0, False
        self.events = 0
        self.decoder = json.JSONDecoder()

    def read(self, take: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        first = self.next()
        if first == "":
            raise ProfileError("is empty", self.source)
        if first == "[":  # the other form of a Chrome trace: the events alone
            self.list(take)
            return {}
        if first != "{":
            raise ProfileError("is no JSON; a trace is what torch.profiler's export_chrome_trace writes", self.source)
        return self.object(take)

    def object(self, take: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        rest: dict[str, Any] = {}
        found = False
        self.at += 1
        while self.next() != "}":
            key = self.value()
            self.expect(":")
            if key == "traceEvents" and self.next() == "[":
                self.list(take)
                found = True
            else:
                rest[str(key)] = self.value()
            if self.next() != "}":
                self.expect(",")
        if not found:
            raise ProfileError("is JSON, but no trace: it has no list of traceEvents", self.source)
        return rest

    def list(self, take: Callable[[dict[str, Any]], None]) -> None:
        self.at += 1
        while self.next() != "]":
            event = self.value()
            if isinstance(event, dict):
                self.events += 1
                take(event)
            if self.next() != "]":
                self.expect(",")
        self.at += 1

    def next(self) -> str:
        """The next character that is no space, which is left where it is; empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def expect(self, character: str) -> None:
        if self.next() != character:
            raise self.broken()
        self.at += 1

    def value(self) -> Any:
        """The next JSON value. What fails to parse may only be cut off by the window, so it is tried with more text."""
        self.next()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except ValueError:
                if self.ended or len(self.text) - self.at > _LONGEST:
                    raise self.broken() from None
            else:
                if end < len(self.text) or self.ended:  # otherwise a number may go on
                    self.at = end
                    return value
            self.more()

    def more(self) -> None:
        left = self.text[self.at :]
        read = self.file.read(max(_CHUNK, len(left)))  # twice as much each time, so that long values stay linear
        self.text, self.at, self.ended = left + read, 0, not read

    def broken(self) -> ProfileError:
        where = f"after {self.events:,} events" if self.events else "before the first event"
        if self.ended:
            return ProfileError(f"ends in the middle, {where}: it was not written to its end", self.source)
        return ProfileError(f"is no trace: {where} there is something that is no JSON", self.source)
