"""`ddp_fuse`: the gradients of data parallel training are averaged in buckets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from weft.analysis.gradients import gradients
from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window
from weft.cost.model import CostModel
from weft.errors import OptionError
from weft.ir.program import Op, Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, Step, fingerprint
from weft.passes.combine import Joint, apart, combine
from weft.passes.members import apply_buckets, bucket_step, key_of, mergeable
from weft.passes.options import pass_text
from weft.passes.scaling import scale_once, scaled_alike

_WAYS: Mapping[str, str] = {"concat": "default", "coalesced": "coalesced"}
_NO_OTHER = "no other gradient has its group, reduction and dtype"


@dataclass(frozen=True)
class DdpFuse:
    """Merge the all-reduces that average gradients, in the order in which the gradients become ready.

    Other all-reduces stay as they are: those of activations, and those of one element, such as a loss. A bucket, or a
    gradient that goes alone, is launched as soon as all of it is ready, and waited for, taken apart and scaled where
    it is used first. Gradients that are all scaled alike before they are sent are scaled in the buffer, at once.

    - `bucket_cap_mb`: how many megabytes a bucket may have
    - `first_bucket_mb`: how many the first bucket of each group may have: if it is small, communication starts early
    - `mode`: `concat` copies the gradients into one buffer; `coalesced` makes one call of the backend for all,
      without copies
    """

    name: ClassVar[str] = "ddp_fuse"
    exact: ClassVar[bool] = False  # merged reductions may be summed in another order
    reorders: ClassVar[bool] = True

    bucket_cap_mb: float = 25.0
    first_bucket_mb: float = 1.0
    mode: str = "concat"

    def __post_init__(self) -> None:
        if self.mode not in _WAYS:
            raise OptionError(f"ddp_fuse: there is no mode {self.mode!r}; there are: {', '.join(_WAYS)}")
        for option in ("bucket_cap_mb", "first_bucket_mb"):
            _check_cap(option, getattr(self, option))

    def plan(self, program: Program, context: Context) -> Plan:
        """A step and a remark for each bucket, also of one gradient; a remark for each all-reduce that is in none."""
        able, others = mergeable(program, ("all_reduce",), _WAYS[self.mode])
        why = gradients(program)
        others |= {name: reason for name, reason in why.items() if reason is not None}
        remarks = [Remark(self.name, op.name, "refused", others[op.name]) for op in program.starts if op.name in others]
        averaged = sorted((one for one in able if one.start.name not in others), key=_readiness)
        choice = _Choice(self, program)
        buckets = combine(averaged, choice.key, choice.fits)
        steps = tuple(self._step(program, bucket) for bucket in buckets)
        remarks += map(partial(self._remark, choice, context.cost), buckets, steps)
        return Plan(pass_text(self), fingerprint(program), steps, tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says, and scale the buffers of the buckets of which it says so."""
        merged = apply_buckets(program, plan)
        return scale_once(merged, program, [step.ops for step in plan.steps if step.detail.get("scaled") == "once"])

    def _step(self, program: Program, bucket: Sequence[Window]) -> Step:
        way = _WAYS[self.mode] if len(bucket) > 1 else "alone"
        step = bucket_step(program, bucket, way, max(one.ready for one in bucket))
        once = way == "default" and scaled_alike(program, bucket)
        return replace(step, detail={**step.detail, "scaled": "once"}) if once else step

    def _remark(self, choice: _Choice, cost: CostModel | None, bucket: Sequence[Window], step: Step) -> Remark:
        first = bucket[0].start
        nbytes = sum(total_bytes(member.start) for member in bucket)
        if len(bucket) == 1:
            why = choice.opened.get(first.name) or choice.closed.get(first.name, _NO_OTHER)
            return Remark(self.name, first.name, "refused", f"goes alone with {nbytes:,} bytes: {why}")
        names = ", ".join(f"%{member.start.name}" for member in bucket[1:4]) + (", …" if len(bucket) > 4 else "")
        message = f"averaged together with {names}: {counted(len(bucket), 'gradient')}, {nbytes:,} bytes"
        message += ", scaled in the buffer" if "scaled" in step.detail else ""
        why = f"; a new bucket: {choice.opened[first.name]}" if first.name in choice.opened else ""
        return Remark(self.name, first.name, "done", message + _times(bucket, nbytes, cost) + why)


class _Choice:
    """Which gradient goes with which. By the first gradient: why a bucket was `opened` or `closed`, if there was one
    before it or behind it that it might have gone with."""

    def __init__(self, options: DdpFuse, program: Program) -> None:
        self._options, self._program = options, program
        self._first: dict[str, str] = {}  # for each group, the gradient that is ready first
        self._joints: dict[str, Joint] = {}  # of each bucket, by its first member
        self.opened: dict[str, str] = {}
        self.closed: dict[str, str] = {}

    def key(self, window: Window) -> Hashable:
        comm = window.start.comm
        assert comm is not None, "a start communicates"
        self._first.setdefault(comm.group.name, window.start.name)
        return key_of(self._program, window, _WAYS[self._options.mode])

    def fits(self, bucket: Sequence[Window], window: Window) -> bool:
        first = bucket[0].start
        joint = (self._joints.get(first.name) or Joint.of(bucket[0])).joined(Joint.of(window))
        why = self._obstacle(first, joint.nbytes)
        if why is None and not joint.has_place:
            why = apart(self._program, (*bucket, window))
        if why is None:
            self._joints[first.name] = joint
            return True
        self.opened[window.start.name] = why
        self.closed[first.name] = f"%{window.start.name} does not go with it: {why}"
        return False

    def _obstacle(self, first: Op, whole: int) -> str | None:
        """Why the bucket of the op `first` may not have so many bytes as the next gradient would make it have."""
        opens = first.comm is not None and self._first[first.comm.group.name] == first.name
        cap = (self._options.first_bucket_mb if opens else self._options.bucket_cap_mb) * 1e6
        if whole <= cap:
            return None
        which = "as the first of its group may have" if opens else "may have"
        return f"with it the bucket of %{first.name} would have {whole:,} bytes, and {which} {cap:,.0f}"


def _readiness(window: Window) -> tuple[int, int]:
    return window.ready, window.position


def _times(bucket: Sequence[Window], nbytes: int, cost: CostModel | None) -> str:
    """How long the bucket takes, and its members would; nothing if nobody says what things cost."""
    comm = bucket[0].start.comm
    if cost is None or comm is None:
        return ""
    apart_us = sum(cost.collective_us(comm, total_bytes(member.start)) for member in bucket)
    return f", {cost.collective_us(comm, nbytes):,.1f} us on the network instead of {apart_us:,.1f}"


def _check_cap(option: str, cap: float) -> None:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:  # NaN is not either
        raise OptionError(f"ddp_fuse: {option} must be a number of megabytes, at least 0, not {cap!r}")
