"""Which collectives can be in a bucket, and buckets as steps of a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from weft.analysis.storages import storages
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window, windows
from weft.cost.model import CostModel, HardwareModel
from weft.errors import OptionError, PlanError
from weft.ir.args import Ref
from weft.ir.program import Collective, Op, Program
from weft.ir.specs import TensorSpec
from weft.passes.absorbing import conversions
from weft.passes.base import Plan, Step, check_fits
from weft.passes.combine import place
from weft.passes.converting import SavedByPacks
from weft.passes.merging import REDUCTIONS, WAYS, merge
from weft.passes.results import not_just_waited
from weft.passes.site import Bucket

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# What each way can merge.
_ABLE: Mapping[str, tuple[str, ...]] = {
    "default": KINDS,
    "custom_op": KINDS,
    "multidtype": KINDS[:1],
    "coalesced": KINDS[:3],
    "coalesced_pack": KINDS[:3],
}
COALESCED = ("coalesced", "coalesced_pack")  # results are not in one buffer


def check_options(pass_name: str, kinds: Sequence[str], mode: str) -> None:
    """Raise OptionError unless there is such a mode and there are such kinds."""
    if mode not in _ABLE:
        raise OptionError(f"{pass_name}: there is no mode {mode!r}; there are: {', '.join(_ABLE)}")
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"{pass_name}: there is no kind {kind!r} to merge; there are: {', '.join(KINDS)}")


def mergeable(program: Program, kinds: Sequence[str], mode: str) -> tuple[list[Window], dict[str, str]]:
    """The collectives that can be in a bucket, in program order; and of the others, why not."""
    known = windows(program)
    refused = {
        op.name: _refusal(op, kinds, mode) or not_just_waited(program, op) or _sent_on(program, op, mode)
        for op in program.starts
    }
    able = [known[name] for name, why in refused.items() if why is None]
    return able, {name: why for name, why in refused.items() if why is not None}


def key_of(program: Program, window: Window, mode: str) -> Hashable:
    """What members of a bucket have in common: kind, group, reduction, and dtype where that matters."""
    sent = window.start.args[0]
    spec = program[sent.name].out[0] if isinstance(sent, Ref) else None
    return window.start.comm, spec.dtype if isinstance(spec, TensorSpec) and mode != "multidtype" else ""


def bucket_step(program: Program, members: Sequence[Window], mode: str, where: int | None = None) -> Step:
    """The step that merges these, behind a position or near the first; they must have a place in common."""
    where = where if where is not None else place(members)
    assert where is not None, "it was checked for each member"
    names = tuple(member.start.name for member in members)
    return Step("bucket", names, {"after": program.ops[where].name, "way": mode})


def apply_buckets(program: Program, plan: Plan) -> Program:
    """The program with the buckets of a plan merged."""
    check_fits(plan, program)
    known = windows(program)
    buckets = []
    for step in plan.steps:
        where, way = step.detail.get("after"), step.detail.get("way")
        if step.verb != "bucket" or where not in program or way not in WAYS or any(op not in known for op in step.ops):
            raise PlanError(f"not a bucket, or one that this program does not have: {step}")
        buckets.append(Bucket(tuple(known[op] for op in step.ops), program.index[str(where)], str(way)))
    return merge(program, buckets, plan.pass_text)


def copies_us(comm: Collective, mode: str, cost: CostModel) -> Callable[[int], float]:
    """What it takes to copy a bucket of so many bytes together, and its parts out of a gathered one."""
    if mode in COALESCED or not isinstance(cost, HardwareModel):
        return lambda nbytes: 0.0
    share = 1 / comm.group.size if comm.kind == "all_gather" else 1.0  # of the whole tensor, what is sent
    out = 1.0 if comm.kind == "all_gather" else 0.0
    return lambda nbytes: cost.launch_us + cost.moved_us(round(2 * nbytes * (share + out)))


def saved_us(program: Program, members: Sequence[Window], mode: str, cost: CostModel) -> tuple[float, float]:
    """What a bucket saves on the group's stream, and what its copies cost, less the conversions that they do."""
    comm = members[0].start.comm
    assert comm is not None, "a start communicates"
    sizes = [total_bytes(member.start) for member in members]
    apart = sum(cost.collective_us(comm, size) for size in sizes)
    copies = copies_us(comm, mode, cost)(sum(sizes))
    if mode == "coalesced_pack":
        copies -= SavedByPacks.of(program, members, cost).us
    if mode == "custom_op" and isinstance(cost, HardwareModel):
        for member in members:
            if conversions(program, member):
                # A kernel, what it wrote, and what was read of that to pack it.
                copies -= cost.launch_us + cost.moved_us(2 * _sent_bytes(program, member))
    return apart - cost.collective_us(comm, sum(sizes)), copies


def _sent_bytes(program: Program, window: Window) -> int:
    return sum(spec.nbytes for name in window.start.given for spec in program[name].out)


def _refusal(op: Op, kinds: Sequence[str], mode: str) -> str | None:
    """Why a start cannot be in any bucket, whoever uses its result; None if it can."""
    assert op.comm is not None, "a start communicates"
    kind = op.comm.kind
    if kind not in kinds or kind not in _ABLE[mode]:
        return f"{kind} is not among the kinds that are merged"
    if op.target != f"{kind}.start" or op.kwargs:
        return f"{op.target} writes to memory that is given to it"
    if not op.args or not isinstance(op.args[0], Ref) or not isinstance(op.out[0], TensorSpec):
        return "it is several collectives already"
    if op.out[0].device:
        return "its tensor lies on another device"
    if mode not in COALESCED and op.out[0].strides is not None:
        return "its result does not lie row by row"
    if op.comm.group.size < 2:
        return "its group has one rank"
    if kind == "all_to_all" and len({*_splits(op)}) > 1:
        return "it does not send as much to every rank"
    return None


def _sent_on(program: Program, op: Op, mode: str) -> str | None:
    """Why a reduction cannot share a buffer: its result is in flight once more, while somebody writes to such a buffer.

    A gathered part is a copy, and coalesced results have memory of their own.
    """
    if mode in COALESCED or op.comm is None or op.comm.kind not in REDUCTIONS:
        return None
    sent, written = program.fact(_sent_further)
    sender = next((sent[storage] for storage in storages(program).of_value(op.name) if storage in sent), None)
    if sender is None or not written:
        return None
    return f"%{sender} sends its result on, and %{written[0]} writes to a result that may be in the same buffer"


def _sent_further(program: Program) -> tuple[Mapping[int, str], Sequence[str]]:
    """For each storage that a reduction makes, the start that sends it on; and the ops that write to any of them."""
    known = storages(program)
    reductions = [op for op in program.starts if op.comm is not None and op.comm.kind in REDUCTIONS]
    made = {storage for op in reductions if not op.traits.mutates for storage in known.of_value(op.name)}
    sent = {storage: op.name for op in program.starts for storage in known.of_args(op.args) & made}
    changing = (op for op in program.ops if op.traits.mutates)
    written = [op.name for op in changing if made & known.of_args(op.argument(key) for key in op.traits.mutates)]
    return sent, written


def _splits(op: Op) -> list[object]:
    """The sizes of all parts that an all-to-all sends and receives."""
    return [size for arg in op.args[1:3] if isinstance(arg, tuple) for size in arg]
