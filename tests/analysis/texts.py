"""Short programs for tests: the header is always the same, so only the ops are written out."""

from __future__ import annotations

from textwrap import dedent

from weft.ir import Program, parse

GROUPS = "group g = 0..1\ngroup h = 0..1\ngroup four = 0..3\n"


def program(ops: str, header: str = GROUPS) -> Program:
    """The program with these ops; `return` and nothing is added where the last line returns nothing."""
    text = dedent(ops).strip("\n")
    last = text.rsplit("\n", 1)[-1]
    return parse(f"weft 1\n{header}\n{text}\n" + ("" if last.startswith("return") else "return\n"))
