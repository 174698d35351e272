"""Cuts one line of text into tokens. Used by the parser of programs and by the parser of pipelines.

A token is a plain string and its first character tells its kind. Columns are worked out only when there is something
to complain about: programs have hundreds of thousands of tokens, and nearly all of them are right.
"""

from __future__ import annotations

import json
import re
from itertools import islice

from weft.errors import ParseError, visible

_TOKEN = re.compile(
    r"""[ \t]*(
        %(?:[A-Za-z_]\w*+|"(?:[^"\\]++|\\.)*+")   # %value
      | [A-Za-z_]\w*+(?:\.\w++)*+                 # name
      | \d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+       # number
      | "(?:[^"\\]++|\\.)*+"                      # string
      | [@&][A-Za-z_]\w*+(?:[.:]\w++)*+           # @device, &function
      | "(?:[^"\\]++|\\.)*+\\?+                   # a string that does not end: all of the rest, read once
      | \#.*+                                     # comment
      | \.\. | // | [-+*%()\[\]{},:;=]
      | [^ \t]                                    # what belongs nowhere
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)

_FIRST = {
    **dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_", "name"),
    **dict.fromkeys("0123456789", "number"),
    '"': "string",
    "@": "device",
    "&": "function",
}
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_LONGEST_INT = 4000  # digits; Python refuses more


def is_digits(token: str) -> bool:
    """Whether it is a whole number; `isdigit` alone also likes ² and ٣."""
    return token.isascii() and token.isdigit()


class Line:
    """The tokens of one line, read from left to right; every complaint knows its place.

    `next` is the token to be read, the empty string at the end of the line.
    """

    def __init__(self, text: str, number: int = 1, source: str = "<text>") -> None:
        self.text, self.number, self.source = text, number, source
        self.comment = ""
        self._tokens: list[str] = _TOKEN.findall(text)
        if self._tokens and self._tokens[-1][0] == "#":
            self.comment = self._tokens.pop()[1:].strip()
        if self._tokens and self._tokens[-1][0] == '"' and not _STRING.fullmatch(self._tokens[-1]):
            self._tokens[-1] = '"'
        self._tokens.append("")
        self._at = 0
        self.next = self._tokens[0]

    @property
    def kind(self) -> str:
        """Of the next token: value, name, number, string, device, function, or "" for signs and the end."""
        token = self.next
        if len(token) > 1 and token[0] == "%":
            return "value"
        return _FIRST.get(token[:1], "") if token not in ('"', "@", "&") else ""

    def take(self) -> str:
        """The next token, whatever it is."""
        token = self.next
        if token:
            self._at += 1
            self.next = self._tokens[self._at]
        return token

    def accept(self, token: str) -> bool:
        """Step over `token` if it comes next."""
        if self.next != token:
            return False
        self._at += 1
        self.next = self._tokens[self._at]
        return True

    def expect(self, token: str) -> None:
        """Step over `token`, which must come next."""
        if not self.accept(token):
            raise self.error(f"'{token}'")

    def expect_kind(self, kind: str, expected: str) -> str:
        """The next token, which must be of this kind."""
        if self.kind != kind:
            raise self.error(expected)
        return self.take()

    def peek(self) -> str:
        """The token after the next one."""
        return self._tokens[self._at + 1] if self.next else ""

    def last(self) -> str:
        """The token before the one that was read last."""
        return self._tokens[self._at - 2]

    def mark(self) -> int:
        """A place to `reset` to; also what `error` takes as `at`."""
        return self._at

    def reset(self, mark: int) -> None:
        self._at = mark
        self.next = self._tokens[mark]

    def keyword(self) -> str | None:
        """The key of `key=value`, stepped over, if that is what comes next."""
        if self.peek() != "=" or self.kind not in ("name", "string"):
            return None
        key = self.name("a keyword")
        self.take()
        return key

    def integer(self, expected: str = "a whole number") -> int:
        sign = -1 if self.accept("-") else 1
        if not is_digits(self.next) or len(self.next) > _LONGEST_INT:
            raise self.error(expected)
        return sign * int(self.take())

    def name(self, expected: str) -> str:
        """A plain name or a quoted one."""
        return self.string(expected) if self.kind == "string" else self.expect_kind("name", expected)

    def string(self, expected: str = "a quoted string") -> str:
        at = self.mark()
        return self.unquote(self.expect_kind("string", expected), at)

    def unquote(self, text: str, at: int) -> str:
        """What a quoted string says."""
        try:
            said: str = json.loads(text, strict=False)
        except ValueError:
            raise self.error("a string with JSON's escapes", at=at) from None
        return said

    def end(self) -> None:
        """Nothing may be left."""
        if self.next:
            raise self.error("the end of the line")

    def error(self, expected: str, *, found: str | None = None, at: int | None = None) -> ParseError:
        """What was expected instead of the token at the mark `at`, by default the next one."""
        at = self._at if at is None else at
        token = self._tokens[at]
        if found is None:
            found = {"": "the end of the line", '"': "a string that does not end"}.get(
                token, f"'{visible(token[:40])}'"
            )
        return ParseError(expected, found, self.number, self._column(at), self.text, self.source)

    def _column(self, at: int) -> int:
        match = next(islice(_TOKEN.finditer(self.text), at, None), None)
        return match.start(1) + 1 if match and self._tokens[at] else len(self.text) + 1
