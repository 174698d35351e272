"""`Site`: what the regions of a Program share while they are cut, and what others need of them as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from weft.analysis.axes import Axis
from weft.analysis.storages import storages
from weft.ir.args import Ref, refs
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.passes.region import Region

Key = tuple[int, ...]


@dataclass
class Site:
    """What all regions of a Program share while they are cut.

    - `keys`: of every op, what the order of the new Program goes by
    - `heirs`: of ops that are cut, the ops that do it, and for which chunk
    - `done`: the result of an op for a chunk
    - `parts`: of values from outside, what takes them apart
    """

    program: Program
    regions: Sequence[Region]
    editor: Editor
    keys: dict[str, Key]
    heirs: dict[str, dict[str, int]] = field(default_factory=dict)
    done: dict[tuple[str, int], Ref] = field(default_factory=dict)
    parts: dict[tuple[str, Axis, int, int, int], tuple[Ref, ...]] = field(default_factory=dict)

    @cached_property
    def region(self) -> Mapping[str, Region]:
        """The region of each op that is cut."""
        return {name: region for region in self.regions for name in region.axes}

    @cached_property
    def _user(self) -> Mapping[str, Region]:
        """The region of each op that takes chunks."""
        return {name: region for region in self.regions for name in (*region.axes, *region.sums)}

    def is_steady(self, name: str) -> bool:
        """Whether nobody ever writes to the memory of a value, so that a part of it can be taken at any time."""
        return self._written.isdisjoint(storages(self.program).of_value(name))

    @cached_property
    def _written(self) -> frozenset[int]:
        mutated = [op.argument(key) for op in self.program.ops for key in op.traits.mutates if not op.is_start]
        return storages(self.program).of_args(mutated)

    def is_there(self, name: str, axis: Axis, op: Op) -> bool:
        """Whether the chunks that an op wants of a value are made as such, and are what the whole still is."""
        region, user = self.region.get(name), self._user[op.name]
        if region is None or region.axes[name] != axis or self._changes_before(name, op):
            return False
        return (region.size, region.chunks) == (user.size, user.chunks)

    def _changes_before(self, name: str, op: Op) -> bool:
        """Whether somebody writes to the whole of a value, once it is made, before an op takes it."""
        first, last = self.program.index[name], self.program.index[op.name]
        own = storages(self.program).of_value(name)
        return any(first < place < last for storage in own for place in self._writes.get(storage, ()))

    @cached_property
    def _writes(self) -> Mapping[int, Sequence[int]]:
        """For each storage, the places of the ops that write to it and are not in chunks themselves."""
        found: dict[int, list[int]] = {}
        for place, op in enumerate(self.program.ops):
            if op.traits.mutates and op.name not in self.region:
                for storage in storages(self.program).of_args(op.argument(key) for key in op.traits.mutates):
                    found.setdefault(storage, []).append(place)
        return found

    @cached_property
    def wanted(self) -> tuple[set[str], set[str]]:
        """The ops that others need as a whole: those whose chunks are put together, and the views that are kept, as
        they are for nothing once what they look at is whole."""
        program, inside = self.program, self.region
        todo = [ref.name for output in program.outputs for ref in refs(output) if ref.name in inside]
        for op in program.ops:
            known = [name for name in op.given if name in inside]
            todo += [name for name in known if op.name not in self._user or not self._fits(name, op)]
        joined, kept = set[str](), set[str]()
        while todo:
            op = program[todo.pop()]
            if looks_at := self._looked_at(op):
                if op.name not in kept:
                    kept.add(op.name)
                    todo += looks_at
            else:
                joined.add(op.name)
        return joined, kept

    def _looked_at(self, op: Op) -> list[str]:
        """The values of regions that a view looks at; of an op with several results, each is put together by itself."""
        if not op.traits.is_view or op.is_wait or op.traits.mutates:
            return []
        found = [name for name in op.given if name in self.region]
        if op.target == "getitem" and found and not self._looked_at(self.program[found[0]]):
            return []
        return found

    def _fits(self, name: str, op: Op) -> bool:
        """Whether an op of a region takes the chunks of a value as they are."""
        axis = self._user[op.name].given(op).get(name)
        return axis is not None and self.is_there(name, axis, op)
