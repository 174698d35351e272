"""The collectives in a trace: NCCL's kernels, which say what they are, and Gloo's runs, which have to be asked around.

Gloo runs a collective on a thread of its own, where the trace calls it by the algorithm: a reduce-scatter is an
all-reduce there. The call that launched it, `c10d::…`, has the right name and the shapes, but nothing links the two.
They are matched in order: a call's run is the first one after it, with the algorithm that the call uses and the shapes
that it sends, that no earlier call has taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

from weft.cost.times import CollectiveKey, Ranks, layout
from weft.ir.specs import DTYPES

Shape: TypeAlias = tuple[int, ...]
Groups: TypeAlias = Mapping[str, Ranks]  # the groups that a rank belongs to, by name


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective that one rank took part in.

    `group` is the same on all ranks that met in it, and on no others; None if that cannot be told. `number` counts the
    collectives of a group, on all ranks alike; None where the trace does not have it.
    """

    key: CollectiveKey
    group: object
    number: int | None
    begin: float
    us: float


class Launch(NamedTuple):
    """A call that starts a collective: its name, when, and for each argument the shapes of its tensors."""

    name: str
    begin: float
    shapes: tuple[tuple[Shape, ...], ...]


class Run(NamedTuple):
    """Gloo at work: the algorithm, when, for how long, and shape and dtype of what it sends."""

    name: str
    begin: float
    us: float
    tensors: tuple[tuple[Shape, str], ...]


def read_groups(info: Mapping[str, Any]) -> Groups:
    """The groups that a trace's `distributedInfo` lists."""
    listed = info.get("pg_config")
    groups: dict[str, Ranks] = {}
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and (ranks := _ranks(one.get("ranks"))):
            groups[str(one.get("pg_name"))] = ranks
    return groups


# NCCL

# What torch calls NCCL's collectives; others (barriers, gathers to one rank, single sends) have no counterpart in Weft.
_KINDS: Mapping[str, str] = {
    "all_gather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
}
_DTYPES: Mapping[str, str] = {
    "Double": "f64", "Float": "f32", "Half": "f16", "BFloat16": "bf16", "Long": "i64", "Int": "i32", "Short": "i16",
    "Char": "i8", "Byte": "u8", "Bool": "bool", "ComplexDouble": "c128", "ComplexFloat": "c64",
    "Float8_e4m3fn": "f8e4m3fn", "Float8_e5m2": "f8e5m2", "Float8_e4m3fnuz": "f8e4m3fnuz",
    "Float8_e5m2fnuz": "f8e5m2fnuz", "UInt16": "u16", "UInt32": "u32", "UInt64": "u64",
}  # fmt: skip


def kernel_transfer(args: Mapping[str, Any], groups: Groups, begin: float, us: float) -> Transfer | None:
    """The collective that a kernel of NCCL carries out; None if it is of no kind that Weft knows."""
    kind, dtype = _KINDS.get(str(args.get("Collective name"))), _DTYPES.get(str(args.get("dtype")))
    sent, received, size = (_count(args.get(name)) for name in ("In msg nelems", "Out msg nelems", "Group size"))
    if kind is None or dtype is None or not size or sent is None or received is None:
        return None
    name = str(args.get("Process Group Name", ""))
    listed = _ranks(args.get("Process Group Ranks"))
    ranks = listed if len(listed) == size else groups.get(name, ())
    lies = layout(ranks) if len(ranks) == size else ()
    # A group's name may be used again by other ranks for a group of their own.
    group = (name, ranks) if name or ranks else None
    whole = sent if kind == "reduce_scatter" else received
    return Transfer(CollectiveKey(kind, size, lies, whole * DTYPES[dtype]), group, _count(args.get("Seq")), begin, us)


# Gloo


class _Way(NamedTuple):
    """How a call runs on Gloo: its kind, the algorithm, and which arguments hold what is sent and what is received."""

    kind: str
    run: str
    sent: int
    received: int


_WAYS: Mapping[str, _Way] = {
    "c10d::_allgather_base_": _Way("all_gather", "gloo:all_gather", 1, 0),
    "c10d::allgather_into_tensor_coalesced_": _Way("all_gather", "gloo:all_gather", 1, 0),
    "c10d::_reduce_scatter_base_": _Way("reduce_scatter", "gloo:all_reduce", 1, 0),
    "c10d::reduce_scatter_tensor_coalesced_": _Way("reduce_scatter", "gloo:all_reduce", 1, 0),
    "c10d::allreduce_": _Way("all_reduce", "gloo:all_reduce", 0, 0),
    "c10d::allreduce_coalesced_": _Way("all_reduce", "gloo:all_reduce", 0, 0),
    "c10d::alltoall_base_": _Way("all_to_all", "gloo:all_to_all", 1, 0),
    "c10d::broadcast_": _Way("broadcast", "gloo:broadcast", 0, 0),
}


def gloo_transfers(launches: Sequence[Launch], runs: Sequence[Run], groups: Groups) -> Iterator[Transfer | None]:
    """The collectives that ran on Gloo, in the order of their calls; None for those whose group cannot be told."""
    waiting: dict[tuple[str, tuple[Shape, ...]], deque[Run]] = {}
    for run in sorted(runs, key=lambda one: one.begin):
        waiting.setdefault((run.name, tuple(shape for shape, _ in run.tensors)), deque()).append(run)
    for launch in sorted(launches, key=lambda one: one.begin):
        way = _WAYS.get(launch.name)
        if way is None or len(launch.shapes) <= max(way.sent, way.received) or not launch.shapes[way.sent]:
            continue
        sent = launch.shapes[way.sent]
        # The tensors of a reduce-scatter are reduced one by one, at the same time.
        wanted = [(shape,) for shape in sent] if way.kind == "reduce_scatter" else [sent]
        found = [_first(waiting.get((way.run, shapes)), launch.begin) for shapes in wanted]
        taken = [run for run in found if run is not None]
        if len(taken) == len(wanted):
            yield _transfer(way, launch, taken, groups)


def _first(runs: deque[Run] | None, after: float) -> Run | None:
    """Take the first run that begins after its call; one that begins before was called before the trace began."""
    while runs:
        run = runs.popleft()
        if run.begin >= after:
            return run
    return None


def _transfer(way: _Way, launch: Launch, runs: list[Run], groups: Groups) -> Transfer | None:
    sent, received = (sum(map(prod, launch.shapes[place])) for place in (way.sent, way.received))
    sizes = {len(ranks) for ranks in groups.values()}
    size = next(iter(sizes)) if len(sizes) == 1 else 0
    if way.kind in ("all_gather", "reduce_scatter") and sent and received:
        size = max(sent, received) // min(sent, received)
    if not size:
        return None
    nbytes = sum(prod(shape) * DTYPES.get(dtype, 0) for run in runs for shape, dtype in run.tensors)
    if way.kind == "all_gather":
        nbytes *= size
    elif way.kind == "all_to_all" and sent:
        nbytes = nbytes * received // sent
    alike = {ranks for ranks in groups.values() if len(ranks) == size}
    ranks = alike.pop() if len(alike) == 1 else ()
    begin = min(run.begin for run in runs)
    us = max(run.begin + run.us for run in runs) - begin
    return Transfer(CollectiveKey(way.kind, size, layout(ranks), nbytes), ranks or None, None, launch.begin, us)


def _ranks(value: object) -> Ranks:
    """A list of ranks, which may be written as text; empty if it is none, or was shortened with dots."""
    if isinstance(value, str):
        parts = value.strip().removeprefix("[").removesuffix("]").split(",")
        value = (
            [int(part) for part in parts if part.strip().isdecimal() and len(part) < 12] if "..." not in value else []
        )
    return tuple(one for one in value if isinstance(one, int)) if isinstance(value, list) else ()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
