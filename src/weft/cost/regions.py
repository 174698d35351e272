"""The bytes that the ops of a fused region move, each byte paid for once."""

from __future__ import annotations

from collections.abc import Sequence

from weft.analysis.fusion import Fusion
from weft.analysis.kernels import INDEXED, Kernel, read_names
from weft.analysis.storages import storages
from weft.cost.sizes import total, touched_bytes
from weft.ir.args import refs
from weft.ir.program import Op, Program
from weft.ir.specs import Spec


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
        self._of: dict[str, Sequence[int]] = dict(known.all_of)
        for name, results in known.of.items():
            if len(results) != 1 or len(results[0]) != 1:
                self._of[name] = [result[0] if result else -1 for result in results]
        self._stays = self._storages_that_stay(program)
        self._touched: dict[int, int] = {}  # by the id of each spec that was asked for

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
        nbytes, home, generated, indexed = 0, self._home, self._generated, INDEXED.get(op.target)
        for place, name in enumerate(read_names(op)):
            if name in seen:
                continue
            seen.add(name)
            for result, storage in enumerate(self._of.get(name, ())):
                if storage >= 0 and home[storage] != number and not generated[storage]:
                    wanted = self._bytes(self._ops[self._index[name]].out[result])
                    wanted = wanted if indexed != place else min(wanted, total(op.out))
                    nbytes += _take(left, storage, wanted, self._nbytes[storage])
        return nbytes

    def _written(self, op: Op, number: int, left: dict[int, int]) -> int:
        nbytes, home, stays = 0, self._home, self._stays
        for result, storage in enumerate(self._of[op.name]):
            if storage >= 0 and not (stays[storage] and home[storage] == number):
                nbytes += _take(left, storage, self._bytes(op.out[result]), self._nbytes[storage])
        return nbytes

    def _bytes(self, spec: Spec) -> int:
        """`touched_bytes`, found out once for all values with this very spec: those of like layers share theirs."""
        found = self._touched.get(id(spec))
        if found is None:
            found = self._touched[id(spec)] = touched_bytes(spec)
        return found

    def _storages_that_stay(self, program: Program) -> list[bool]:
        """For each storage, whether it is read, and only in the region that makes it."""
        of, home, kinds, region = self._of, self._home, self._fused.kinds, self._fused.region
        inside = [False] * len(home)
        outside = [False] * len(home)
        for op, kind, number in zip(program.ops, kinds, region, strict=True):
            if kind is Kernel.FREE and op.comm is None:
                continue
            for name in read_names(op):
                for storage in of.get(name, ()):
                    if storage >= 0:
                        (inside if home[storage] == number else outside)[storage] = True
        for output in program.outputs:
            for ref in refs(output):
                for storage in of.get(ref.name, ()):
                    outside[storage] = True
        return [read and not left for read, left in zip(inside, outside, strict=True)]


def _take(left: dict[int, int], storage: int, wanted: int, whole: int) -> int:
    """As much of a storage as is wanted and not yet taken."""
    have = left.get(storage, whole)
    taken = wanted if wanted < have else have
    left[storage] = have - taken
    return taken
