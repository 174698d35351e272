"""Ancestor queries: does one op have to come before another, through any chain of dependencies?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.analysis.dependencies import dependencies
from weft.ir.program import Program


@dataclass(frozen=True)
class Ancestors:
    """One row of bits per op: bit a of row b says that a is b or an ancestor of it.

    A row ends at its own op, so n ops take n²/16 bytes: 6 MB for 10,000, 600 MB for 100,000. Where only some ops are
    ever asked about, name them in `among` and the rows are as wide as those are many.
    """

    rows: tuple[bytes, ...]
    column: tuple[int, ...]  # for each position, its bit; -1 for those that are never asked about

    def __call__(self, earlier: int, later: int) -> bool:
        """Whether the op at position `earlier` is an ancestor of the one at `later`. Takes constant time."""
        bit = self.column[earlier]
        if bit < 0:
            raise KeyError(f"position {earlier} is not among those that were asked for")
        row = self.rows[later]
        byte = bit >> 3
        return byte < len(row) and earlier != later and bool(row[byte] >> (bit & 7) & 1)


def ancestors(program: Program, among: Iterable[int] | None = None) -> Ancestors:
    """The ancestors of every op of a Program, among all of them or among the given positions."""
    count = len(program)
    chosen = range(count) if among is None else sorted(set(among))
    column = [-1] * count
    for bit, position in enumerate(chosen):
        column[position] = bit
    bits: list[int] = []  # of each op: its ancestors and itself
    for position, earlier in enumerate(dependencies(program).before):
        row = 1 << column[position] if column[position] >= 0 else 0
        for other in earlier:
            row |= bits[other]
        bits.append(row)
    rows = []
    while bits:  # taken from the end, so that both forms of the whole never stand in memory together
        row = bits.pop()
        rows.append(row.to_bytes((row.bit_length() + 7) >> 3, "little"))
    return Ancestors(tuple(reversed(rows)), tuple(column))
