"""The bytes that the ops of a fused region move, each byte paid for once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.analysis.fusion import Fusion
from weft.analysis.kernels import INDEXED, Kernel, read_refs
from weft.analysis.storages import storages
from weft.cost.sizes import total, touched_bytes
from weft.ir.args import refs
from weft.ir.program import Op, Program


class Regions:
    """Memory as the regions of a Program see it: what each reads from outside, and what it leaves there.

    A storage that a region makes and nobody else reads is never in memory. Of any other, a region reads at most all
    of it and writes at most all of it, however many of its ops do.
    """

    def __init__(self, program: Program, fused: Fusion) -> None:
        known = storages(program)
        self._ops, self._index, self._fused = program.ops, program.index, fused
        self._nbytes = known.nbytes
        self._home = [fused.region[maker] for maker in known.maker]
        self._generated = [fused.kinds[maker] is Kernel.GENERATED for maker in known.maker]
        # Of the storages that a result may be, the first stands for all.
        self._of: Mapping[str, Sequence[int]] = {
            name: all_of if len(all_of) == len(results) == 1 else [result[0] if result else -1 for result in results]
            for (name, results), all_of in zip(known.of.items(), known.all_of.values(), strict=True)
        }
        self._stays = self._storages_that_stay(program)
        self._touched: dict[str, list[int]] = {}  # by each result of an op that was asked for

    def moved(self, number: int) -> list[int]:
        """For each member of a region, in their order, the bytes that it is the first to move."""
        unread: dict[int, int] = {}  # of each storage, how much the region has not yet paid for
        unwritten: dict[int, int] = {}
        seen: set[str] = set()
        found = []
        for position in self._fused.members[number]:
            op = self._ops[position]
            found.append(self._read(op, number, unread, seen) + self._written(op, number, unwritten))
        return found

    def _read(self, op: Op, number: int, left: dict[int, int], seen: set[str]) -> int:
        nbytes = 0
        for place, ref in enumerate(read_refs(op)):
            if ref.name in seen or ref.name not in self._of:
                continue
            seen.add(ref.name)
            for wanted, storage in zip(self._bytes_of(ref.name), self._of[ref.name], strict=True):
                if storage < 0 or self._home[storage] == number or self._generated[storage]:
                    continue
                if INDEXED.get(op.target) == place:
                    wanted = min(wanted, total(op.out))
                nbytes += _take(left, storage, wanted, self._nbytes[storage])
        return nbytes

    def _written(self, op: Op, number: int, left: dict[int, int]) -> int:
        nbytes = 0
        for wanted, storage in zip(self._bytes_of(op.name), self._of[op.name], strict=True):
            if storage >= 0 and not (self._home[storage] == number and self._stays[storage]):
                nbytes += _take(left, storage, wanted, self._nbytes[storage])
        return nbytes

    def _bytes_of(self, name: str) -> list[int]:
        if name not in self._touched:
            self._touched[name] = [touched_bytes(spec) for spec in self._ops[self._index[name]].out]
        return self._touched[name]

    def _storages_that_stay(self, program: Program) -> list[bool]:
        """For each storage, whether it is read, and only in the region that makes it."""
        inside = [False] * len(self._home)
        outside = [False] * len(self._home)
        for position, op in enumerate(program.ops):
            if self._fused.kinds[position] is Kernel.FREE and not op.is_start:
                continue
            number = self._fused.region[position]
            for ref in read_refs(op):
                for storage in self._of.get(ref.name, ()):
                    if storage >= 0:
                        (inside if self._home[storage] == number else outside)[storage] = True
        for output in program.outputs:
            for ref in refs(output):
                for storage in self._of.get(ref.name, ()):
                    outside[storage] = True
        return [read and not left for read, left in zip(inside, outside, strict=True)]


def _take(left: dict[int, int], storage: int, wanted: int, whole: int) -> int:
    """As much of a storage as is wanted and not yet taken."""
    have = left.get(storage, whole)
    taken = min(wanted, have)
    left[storage] = have - taken
    return taken
