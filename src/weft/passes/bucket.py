"""`bucket`: collectives of one key become one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window
from weft.errors import OptionError
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.combine import combine, place
from weft.passes.members import KINDS, apply_buckets, bucket_step, check_options, key_of, mergeable
from weft.passes.options import pass_text

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
    kinds: tuple[str, ...] = KINDS
    mode: str = "default"

    def __post_init__(self) -> None:
        check_options(self.name, self.kinds, self.mode)
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
        chosen, others = mergeable(program, self.kinds, self.mode)
        remarks = [Remark(self.name, name, "refused", why) for name, why in others.items()]
        choice = _Choice(self, program)
        buckets = combine(chosen, choice.key, choice.fits)
        steps = [bucket_step(program, bucket, self.mode) for bucket in buckets if len(bucket) > 1]
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

    def _remark(self, bucket: Sequence[Window], choice: _Choice) -> Remark:
        first = bucket[0].start
        nbytes = sum(total_bytes(member.start) for member in bucket)
        if len(bucket) == 1:
            why = choice.why.get(first.name, "no other collective has its kind, group, reduction and dtype")
            return Remark(self.name, first.name, "refused", f"stays alone with {nbytes:,} bytes: {why}")
        names = ", ".join(f"%{member.start.name}" for member in bucket[1:4]) + (", …" if len(bucket) > 4 else "")
        message = f"launched together with {names}: {counted(len(bucket), 'collective')}, {nbytes:,} bytes"
        return Remark(self.name, first.name, "done", message)


class _Choice:
    """Which collective goes with which, and, of those that begin a new bucket, why."""

    def __init__(self, options: BucketPass, program: Program) -> None:
        self._options, self._program = options, program
        self._numbers: dict[Hashable, int] = {}
        self.why: dict[str, str] = {}

    def key(self, window: Window) -> Hashable:
        return key_of(self._program, window, self._options.mode)

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
        if max(one.ready for one in members) < min(one.due for one in members):
            held, soon = max(members, key=lambda one: one.settled), min(members, key=lambda one: one.used)
            stop, user = self._program.ops[held.settled].name, self._program.ops[soon.used].name
            return f"%{held.start.name} is waited for after %{stop}, and %{user} needs %{soon.start.name}"
        due = min(members, key=lambda member: member.due)
        ready = max(members, key=lambda member: member.ready)
        user, maker = self._program.ops[due.due].name, self._program.ops[ready.ready].name
        late = "is given the result of another collective" if maker == ready.start.name else f"can start after %{maker}"
        return f"%{ready.start.name} {late}, and %{user} needs %{due.start.name}"


def _checked_cap(cap: float) -> float:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:  # NaN is not either
        raise OptionError(f"bucket: a cap must be a number of megabytes, at least 0, not {cap!r}")
    return cap
