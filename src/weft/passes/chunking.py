"""Cuts regions of a Program into chunks: every op of a region is done once for each part of its rows.

What a region is given from outside is cut, what others need of it is put together again. The chunks are a pipeline: in
the order that is made here, each collective has the work of another chunk between its start and its wait.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from weft.analysis.dependencies import dependencies
from weft.errors import PlanError
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.passes.chunk_site import Key, Site
from weft.passes.chunks import Chunks
from weft.passes.region import Region


def cut(program: Program, regions: Sequence[Region], stamp: str) -> Program:
    """The Program with all regions in chunks. PlanError if an op is in two of them."""
    if (name := cut_twice(regions)) is not None:
        raise PlanError(f"%{name} is to be cut in two ways at once")
    editor = Editor(program)
    site = Site(program, regions, editor, {op.name: (position,) for position, op in enumerate(program.ops)})
    made = {id(region): Chunks(site, region) for region in regions}
    for op in program.ops:
        if op.name in site.region:
            made[id(site.region[op.name])].do(op)
    for chunks in made.values():
        chunks.add_up()
    joined, kept = site.wanted
    whole = {name: made[id(site.region[name])].join(program[name]) for name in sorted(joined)}
    for name in sorted(site.region.keys() - kept, key=program.index.__getitem__, reverse=True):
        editor.remove(name, use=whole[name].name if name in whole else None)
    editor.reorder(_order(program, editor, site.keys, site.heirs))
    return editor.finish(stamp)


def cut_twice(regions: Sequence[Region]) -> str | None:
    """An op that is in two regions, if there is one."""
    counted = Counter(name for region in regions for name in region.axes)
    return next((name for name, count in counted.items() if count > 1), None)


def _order(
    program: Program, editor: Editor, keys: Mapping[str, Key], heirs: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """All ops by their keys, as far as what they need allows."""
    ops = {op.name: op for op in editor}
    missing = {name: set[str]() for name in ops}
    after: dict[str, list[str]] = {name: [] for name in ops}

    def edge(earlier: str, later: str) -> None:
        if earlier not in missing[later]:
            missing[later].add(earlier)
            after[earlier].append(later)

    for op in ops.values():
        for ref in op.refs():
            edge(editor.survivor(ref.name), op.name)
    for first, second, _ in dependencies(program).order:
        one, other = program.ops[first].name, program.ops[second].name
        for earlier, chunk in _heirs(one, ops, heirs):
            for later, same in _heirs(other, ops, heirs):
                if chunk == same or -1 in (chunk, same):
                    edge(earlier, later)
    ready = [(keys[name], name) for name, needed in missing.items() if not needed]
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        found.append(name)
        for later in after[name]:
            missing[later].discard(name)
            if not missing[later]:
                heapq.heappush(ready, (keys[later], later))
    return found


def _heirs(name: str, ops: Mapping[str, Op], heirs: Mapping[str, Mapping[str, int]]) -> list[tuple[str, int]]:
    """The ops that stand for one now, each with its chunk; -1 if it is none of a chunk."""
    found = list(heirs.get(name, {}).items())
    return [*found, (name, -1)] if name in ops else found
