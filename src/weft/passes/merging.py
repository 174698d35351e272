"""Several collectives as one: what is put in front of it, and how each member's result is taken out of it.

A way to merge takes a `Site`, where new ops go, and returns the op that stands for the waits of each member; those that
it does not name stay, and move. In a buffer that is sent to each rank, or received from each, a member has a part in
the row of every rank: such a buffer is [ranks, elements], any other [elements].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from weft.analysis.windows import Window
from weft.ir.args import Arg, Dtype, Ref
from weft.ir.dims import Dim
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.ir.specs import DTYPES, TensorSpec
from weft.passes.absorbing import absorbed, before_absorbed
from weft.passes.converting import (
    conversion_of_result,
    converted_together,
    pack_of,
    pack_of_results,
    results_converted_together,
)
from weft.passes.joining import joint_ops
from weft.passes.site import Bucket, Place, Site

REDUCTIONS = ("reduce_scatter", "all_reduce")
_SENT_TO_EACH = ("reduce_scatter", "all_to_all")
_RECEIVED_FROM_EACH = ("all_gather", "all_to_all")


def merge(program: Program, buckets: Sequence[Bucket], stamp: str) -> Program:
    """The program with every bucket merged. Each must be launched in the window of all its members."""
    editor, numbers = Editor(program), count()
    places: dict[str, Place] = {op.name: (position, 1, 0) for position, op in enumerate(program.ops)}
    for bucket in buckets:
        site = Site(program, editor, bucket, places, numbers)
        for position in sorted({place for member in bucket.members for place in member.prelude}):
            if position > bucket.launch:
                site.move(position, site.at_launch)
        results = WAYS[bucket.way](site)
        for member in bucket.members:
            where = site.before_use(member)
            for position in member.family:
                if position < member.used:
                    site.move(position, where)
            if member.start.name not in results:
                site.move(member.position, site.at_launch)
                continue
            for wait in site.waits(member):
                editor.remove(wait, use=results[member.start.name].name)
            editor.remove(member.start.name)
    editor.reorder(sorted((op.name for op in editor), key=places.__getitem__))
    return editor.finish(stamp)


def concatenated(site: Site) -> Mapping[str, Ref]:
    """The members' inputs are copied into one buffer, and their results are parts of the result."""
    return _through_a_buffer(site, site.spec(_sent(site.starts[0])).dtype)


def packed_at_once(site: Site) -> Mapping[str, Ref]:
    """The same, where one op makes the buffer and converts what it is given on the way."""
    return _through_a_buffer(site, site.spec(_sent(site.starts[0])).dtype, _packed_by_one_op)


def as_bytes(site: Site) -> Mapping[str, Ref]:
    """The same for members of any dtypes, whose bytes are gathered as bytes."""
    return _through_a_buffer(site, "u8")


def coalesced(site: Site) -> Mapping[str, Ref]:
    """One call of the backend's own for all members: no copies, a result for each.

    It is under way until all its results have been waited for.
    """
    return _by_one_call(site, {}, {})


def coalesced_pack(site: Site) -> Mapping[str, Ref]:
    """The same, where conversions in front of several members are done by one op, parts of whose result are sent; and
    those of several results by another."""
    sent: dict[str, Ref] = {}
    for together in converted_together(site.program, site.bucket.members):
        sent |= _converted(site, together)
    got = results_converted_together(site.program, site.bucket.members)
    used = {one.start.name: min(site.before_use(each) for each in together) for together in got for one in together}
    results = _by_one_call(site, sent, used)
    for together in got:
        _convert_results(site, together)
    return results


def _by_one_call(site: Site, instead: Mapping[str, Ref], used: Mapping[str, tuple[int, int]]) -> Mapping[str, Ref]:
    """Members are sent as they are, or what there is instead; they are waited for before they are used, by themselves
    or as this says."""
    first = site.starts[0]
    results = tuple(spec for start in site.starts for spec in start.out)
    sent = tuple(instead.get(start.name, start.args[0]) for start in site.starts)
    names = [start.name for start in site.starts]
    bucket = site.add(site.at_launch, "bucket", first.target, sent, *first.args[1:], out=results, of=names)
    found: dict[str, Ref] = {}
    overwritten = site.before_overwritten()
    for index, member in enumerate(site.bucket.members):
        own, name = member.start.out, member.start.name
        part = site.add(site.at_launch, "part", "getitem", bucket, index, out=own, of=(name,))
        where = min(used.get(name, site.before_use(member)), overwritten)
        found[name] = site.add(where, "done", "wait", part, out=own, of=site.waits(member))
    return found


def summed(site: Site) -> Mapping[str, Ref]:
    """Two reductions whose results are only added become one of the sum. It stands for that addition."""
    first = site.starts[0]
    one, other = map(_sent, site.starts)
    given = (TensorSpec(site.spec(one).shape, site.spec(one).dtype),)
    total = site.add(site.at_launch, "summed", "aten.add.Tensor", one, other, out=given)
    names = [start.name for start in site.starts]
    bucket = site.add(site.at_launch, "bucket", first.target, total, out=first.out, of=names)
    added = site.program.ops[site.before_use()[0]].name
    done = site.add(site.before_use(), "bucket_done", "wait", bucket, out=first.out, of=(added,))
    site.editor.remove(added, use=done.name)
    return dict.fromkeys(names, done)


def alone(site: Site) -> Mapping[str, Ref]:
    """The collective as it is, launched elsewhere, and waited for where it is used."""
    return {}


WAYS: Mapping[str, Callable[[Site], Mapping[str, Ref]]] = {
    "default": concatenated,
    "custom_op": packed_at_once,
    "multidtype": as_bytes,
    "coalesced": coalesced,
    "coalesced_pack": coalesced_pack,
    "summed": summed,
    "alone": alone,
}


# These make the flat buffer that is sent, with so many elements of each member in a row.


def _packed(site: Site, sizes: Sequence[Dim], dtype: str) -> Ref:
    """By concatenation, which needs all members in one shape and dtype."""
    ranks, rows = site.comm.group.size, []
    by_rank = site.comm.kind in _SENT_TO_EACH
    for start, size in zip(site.starts, sizes, strict=True):
        row = site.view(
            site.at_launch, "flat", _sent(start), (ranks, size) if by_rank else (site.spec(_sent(start)).numel,)
        )
        rows.append(site.cast_view(site.at_launch, "raw", row, dtype))
    shape: tuple[Dim, ...] = (ranks, _sum(sizes)) if by_rank else (_sum(sizes),)
    along = (1,) if by_rank else ()
    out = (TensorSpec(shape, dtype),)
    packed = site.add(site.at_launch, "packed", "aten.cat.default", tuple(rows), *along, out=out)
    return site.view(site.at_launch, "flat", packed, (ranks * _sum(sizes),)) if by_rank else packed


def _packed_by_one_op(site: Site, sizes: Sequence[Dim], dtype: str) -> Ref:
    """By Weft's own op, which takes members as they were before they were converted and laid out to be sent."""
    rows = site.comm.group.size if site.comm.kind in _SENT_TO_EACH else 1
    given = [before_absorbed(site.program, member) for member in site.bucket.members]
    _remove_absorbed(site, site.bucket.members)
    out = (TensorSpec((rows * _sum(sizes),), dtype),)
    return site.add(site.at_launch, "packed", "weft.pack.default", tuple(given), Dtype(dtype), rows, out=out)


def _converted(site: Site, members: Sequence[Window]) -> Mapping[str, Ref]:
    """What members send as parts of one buffer, which one op makes. A part of a flat buffer has no gaps."""
    specs = [site.spec(_sent(member.start)) for member in members]
    packed = site.put(site.at_launch, pack_of(site.program, members))
    _remove_absorbed(site, members)
    found: dict[str, Ref] = {}
    begin: Dim = 0
    for member, spec in zip(members, specs, strict=True):
        out, end = (TensorSpec((spec.numel,), spec.dtype),), begin + spec.numel
        part = site.add(site.at_launch, "sent", "aten.slice.Tensor", packed, 0, begin, end, out=out)
        found[member.start.name] = site.view(site.at_launch, "sent", part, spec.shape)
        begin = end
    return found


def _convert_results(site: Site, members: Sequence[Window]) -> None:
    """The results of members are converted by one op. Parts of what it gives stand for what their own ops gave."""
    where = min(site.before_use(member) for member in members)
    ops = [conversion_of_result(site.program, member) for member in members]
    pack = pack_of_results(site.program, members)
    packed = site.put(where, replace(pack, origin=ops[0].origin, sources=tuple(op.name for op in ops)))
    begin: Dim = 0
    for op in ops:
        (spec,) = op.out
        assert isinstance(spec, TensorSpec)
        out, end = (TensorSpec((spec.numel,), spec.dtype),), begin + spec.numel
        part = site.add(where, "part", "aten.slice.Tensor", packed, 0, begin, end, out=out)
        site.editor.remove(op.name, use=site.view(where, "taken", part, spec.shape, of=(op.name,)).name)
        begin = end


def _remove_absorbed(site: Site, members: Sequence[Window]) -> None:
    for member in members:
        for position in reversed(absorbed(site.program, member)):
            site.editor.remove(site.program.ops[position].name)


_Pack = Callable[[Site, Sequence[Dim], str], Ref]


def _through_a_buffer(site: Site, dtype: str, pack: _Pack = _packed) -> Mapping[str, Ref]:
    sizes = [_elements(site, start, dtype) for start in site.starts]
    done = _launched(site, pack(site, sizes, dtype), dtype)
    joined = joint_ops(site.program, site.bucket.members) if site.comm.kind in REDUCTIONS else ()
    if site.comm.kind in _RECEIVED_FROM_EACH:
        done = site.view(site.before_use(), "rows", done, (site.comm.group.size, _sum(sizes)))
    if joined:
        done = _joined(site, done, joined)
    found: dict[str, Ref] = {}
    begin: Dim = 0
    for number, (member, size) in enumerate(zip(site.bucket.members, sizes, strict=True)):
        last = joined[number] if joined else None
        found[member.start.name] = _taken(site, member, done, begin, size, last)
        if last is not None:
            site.editor.remove(last.name, use=found[member.start.name].name)
        begin = begin + size
    return found


def _joined(site: Site, done: Ref, ops: Sequence[Op]) -> Ref:
    """What all members do first, done to the whole result."""
    first, (spec,) = ops[0], ops[0].out
    assert isinstance(spec, TensorSpec)
    out = (TensorSpec(site.spec(done).shape, spec.dtype),)
    names = tuple(op.name for op in ops)
    joint = replace(first, name="joint", args=(done, *first.args[1:]), out=out, sources=names)
    return site.put(site.before_use(), joint)


def _launched(site: Site, packed: Ref, dtype: str) -> Ref:
    """The collective on a flat buffer, and its wait."""
    ranks, kind, (size,) = site.comm.group.size, site.comm.kind, site.spec(packed).shape
    got: Mapping[str, Dim] = {"all_gather": size * ranks, "reduce_scatter": size // ranks}
    out = (TensorSpec((got.get(kind, size),), dtype),)
    splits: tuple[Arg, ...] = ((size // ranks,) * ranks,) * 2 if kind == "all_to_all" else ()
    names = [start.name for start in site.starts]
    bucket = site.add(site.at_launch, "bucket", site.starts[0].target, packed, *splits, out=out, of=names)
    waits = [wait for member in site.bucket.members for wait in site.waits(member)]
    return site.add(site.before_use(), "bucket_done", "wait", bucket, out=out, of=waits)


def _taken(site: Site, member: Window, done: Ref, begin: Dim, size: Dim, joined: Op | None) -> Ref:
    """A member's part of the result, in the shape that its own result had, or that of an op that was joined."""
    where, spec = site.before_use(member), site.spec(done)
    (result,) = joined.out if joined is not None else member.start.out
    assert isinstance(result, TensorSpec)
    last = len(spec.shape) - 1
    shape = (*spec.shape[:last], size)
    apart = None if last == 0 or size == spec.shape[last] else (spec.shape[last], 1)
    out = (TensorSpec(shape, spec.dtype, apart),)
    part = site.add(where, "part", "aten.slice.Tensor", done, last, begin, begin + size, out=out)
    part = _apart(site, where, part)
    if result.dtype != spec.dtype:
        part = site.view(where, "together", part, (spec.shape[0] * size,))
        part = site.cast_view(where, "typed", part, result.dtype)
    return site.view(where, "taken", part, result.shape, of=(joined.name,) if joined else site.waits(member))


def _apart(site: Site, where: tuple[int, int], part: Ref) -> Ref:
    """A part of each row, copied together: the member's own result had no gaps, and shared its memory with nobody."""
    spec = site.spec(part)
    if spec.strides is None:
        return part
    return site.add(where, "copied", "aten.clone.default", part, out=(TensorSpec(spec.shape, spec.dtype),))


def _elements(site: Site, start: Op, dtype: str) -> Dim:
    """How many elements of a dtype a member has in a row of the buffer."""
    spec = site.spec(_sent(start))
    rows = site.comm.group.size if site.comm.kind in _SENT_TO_EACH else 1
    return spec.numel * DTYPES[spec.dtype] // DTYPES[dtype] // rows


def _sent(start: Op) -> Ref:
    assert isinstance(start.args[0], Ref), f"%{start.name} is given one tensor, or it would not be in a bucket"
    return start.args[0]


def _sum(sizes: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for size in sizes:
        total = total + size
    return total
