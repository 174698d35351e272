"""`bucket`: collectives of one key become one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.traffic import total_bytes
from weft.errors import OptionError, PlanError
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, check_fits, fingerprint
from weft.passes.combine import combine, place
from weft.passes.merging import WAYS, Bucket, merge
from weft.passes.options import pass_text
from weft.passes.windows import Window, windows

_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# What each way can merge, and whether members may differ in dtype.
_ABLE = {"default": _KINDS, "multidtype": ("all_gather",), "coalesced": _KINDS[:3]}

Cap = float | tuple[float, ...] | Callable[[int], float]


@dataclass(frozen=True)
class BucketPass:
    """Merge collectives of the same kind, group, reduction and dtype, where one launch can serve all.

    - `cap_mb`: how many megabytes (of the whole tensor) a bucket may have: a number, or a list with one for each
      bucket, whose last one is for all that follow, or from Python a function of the bucket's number
    - `max_count`: how many collectives a bucket may have
    - `kinds`: which kinds of collectives; all that can be merged if not given
    - `mode`: `default` copies the inputs into one buffer and takes the results out of another; `multidtype` does so
      with gathers of any dtypes, as bytes; `coalesced` makes one call of the backend for all, without copies
    """

    name: ClassVar[str] = "bucket"
    exact: ClassVar[bool] = False  # merged reductions may be summed in another order
    reorders: ClassVar[bool] = True

    cap_mb: Cap = 200.0
    max_count: int | None = None
    kinds: tuple[str, ...] = _KINDS
    mode: str = "default"

    def __post_init__(self) -> None:
        if self.mode not in WAYS:
            raise OptionError(f"bucket: there is no mode {self.mode!r}; there are: {', '.join(WAYS)}")
        for kind in self.kinds:
            if kind not in _KINDS:
                raise OptionError(f"bucket: there is no kind {kind!r} to merge; there are: {', '.join(_KINDS)}")
        if self.max_count is not None and self.max_count < 1:
            raise OptionError(f"bucket: max_count must be at least 1, not {self.max_count}")
        for cap in self.cap_mb if isinstance(self.cap_mb, tuple) else ():
            _checked_cap(cap)
        if isinstance(self.cap_mb, tuple) and not self.cap_mb:
            raise OptionError("bucket: cap_mb needs at least one number")
        if isinstance(self.cap_mb, int | float):
            _checked_cap(self.cap_mb)

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each bucket of several collectives; a remark for each bucket, and for each that stays alone."""
        chosen: list[Window] = []
        remarks: list[Remark] = []
        known = windows(program)
        for op in program.starts:
            why = self._refusal(op, known)
            if why is None:
                chosen.append(known[op.name])
            else:
                remarks.append(Remark(self.name, op.name, "refused", why))
        choice = _Choice(self, program)
        buckets = combine(chosen, choice.key, choice.fits)
        steps = [_step(program, bucket, self.mode) for bucket in buckets if len(bucket) > 1]
        remarks += [self._remark(bucket, choice) for bucket in buckets]
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        return apply_buckets(program, plan)

    def cap_bytes(self, number: int) -> float:
        """How many bytes the bucket of this number may have."""
        cap = self.cap_mb
        if callable(cap):
            return _checked_cap(cap(number)) * 1e6
        return (cap[min(number, len(cap) - 1)] if isinstance(cap, tuple) else cap) * 1e6

    def _refusal(self, op: Op, known: Mapping[str, Window]) -> str | None:
        """Why a start cannot be in any bucket; None if it can."""
        assert op.comm is not None, "a start communicates"
        kind = op.comm.kind
        if kind not in self.kinds or kind not in _ABLE[self.mode]:
            return f"{kind} is not among the kinds that are merged"
        if op.target != f"{kind}.start" or op.kwargs:
            return f"{op.target} writes to memory that is given to it"
        if len(op.args) < 1 or not isinstance(op.args[0], Ref) or not isinstance(op.out[0], TensorSpec):
            return "it is several collectives already"
        if op.comm.group.size < 2:
            return "its group has one rank"
        if kind == "all_to_all" and len({*_splits(op)}) > 1:
            return "it does not send as much to every rank"
        if op.name not in known:
            return "nobody waits for it"
        return None

    def _remark(self, bucket: Sequence[Window], choice: _Choice) -> Remark:
        first = bucket[0].start
        nbytes = sum(total_bytes(member.start) for member in bucket)
        if len(bucket) == 1:
            why = choice.why.get(first.name, "no other collective has its kind, group, reduction and dtype")
            return Remark(self.name, first.name, "refused", f"stays alone with {nbytes:,} bytes: {why}")
        names = ", ".join(f"%{member.start.name}" for member in bucket[1:4]) + (", …" if len(bucket) > 4 else "")
        message = f"launched together with {names}: {counted(len(bucket), 'collective')}, {nbytes:,} bytes"
        return Remark(self.name, first.name, "done", message)


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


class _Choice:
    """Which collective goes with which, and, of those that begin a new bucket, why."""

    def __init__(self, options: BucketPass, program: Program) -> None:
        self._options, self._program = options, program
        self._numbers: dict[Hashable, int] = {}
        self.why: dict[str, str] = {}

    def key(self, window: Window) -> Hashable:
        start = window.start
        sent = self._program[start.args[0].name].out[0] if isinstance(start.args[0], Ref) else None
        dtype = sent.dtype if isinstance(sent, TensorSpec) and self._options.mode != "multidtype" else ""
        return start.comm, dtype

    def fits(self, bucket: Sequence[Window], window: Window) -> bool:
        why = self._obstacle(bucket, window)
        if why is not None:
            self.why[window.start.name] = why
            self.why.setdefault(bucket[0].start.name, f"%{window.start.name} does not go with it: {why}")
            self._numbers[self.key(window)] = self._numbers.get(self.key(window), 0) + 1
        return why is None

    def _obstacle(self, bucket: Sequence[Window], window: Window) -> str | None:
        first = bucket[0].start.name
        cap = self._options.cap_bytes(self._numbers.get(self.key(window), 0))
        whole = sum(total_bytes(member.start) for member in (*bucket, window))
        if whole > cap:
            return f"with it the bucket of %{first} would have {whole:,} bytes, and may have {cap:,.0f}"
        if len(bucket) == self._options.max_count:
            return f"the bucket of %{first} has {counted(len(bucket), 'collective')}, and may not have more"
        if place((*bucket, window)) is None:
            return self._apart((*bucket, window))
        return None

    def _apart(self, members: Sequence[Window]) -> str:
        """Why members have no place in common: what the last to be ready waits for, and who cannot wait so long."""
        due = min(members, key=lambda member: member.due)
        ready = max(members, key=lambda member: member.ready)
        user, maker = self._program.ops[due.due].name, self._program.ops[ready.ready].name
        late = "is given the result of another collective" if maker == ready.start.name else f"can start after %{maker}"
        return f"%{ready.start.name} {late}, and %{user} needs %{due.start.name}"


def _step(program: Program, bucket: Sequence[Window], mode: str) -> Step:
    where = place(bucket)
    assert where is not None, "it was checked for each member"
    return Step("bucket", tuple(one.start.name for one in bucket), {"after": program.ops[where].name, "way": mode})


def _splits(op: Op) -> list[object]:
    """The sizes of all parts that an all-to-all sends and receives."""
    return [size for arg in op.args[1:3] if isinstance(arg, tuple) for size in arg]


def _checked_cap(cap: float) -> float:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:  # NaN is not either
        raise OptionError(f"bucket: a cap must be a number of megabytes, at least 0, not {cap!r}")
    return cap
