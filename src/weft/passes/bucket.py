"""`bucket`: collectives of one key become one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.analysis.traffic import total_bytes
from weft.analysis.windows import Window
from weft.errors import OptionError
from weft.ir.program import Program
from weft.ir.text import counted
from weft.passes.absorbing import conversions
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.combine import Joint, apart, combine
from weft.passes.converting import converted_together, results_converted_together
from weft.passes.members import KINDS, apply_buckets, bucket_step, check_options, key_of, mergeable, saved_us
from weft.passes.only import WORDS, check_only, enclosing, left_out, missed
from weft.passes.options import pass_text

Cap = float | tuple[float, ...] | Callable[[int], float]


@dataclass(frozen=True)
class BucketPass:
    """Merge collectives of the same kind, group, reduction and dtype, where one launch can serve all.

    - `cap_mb`: how many megabytes (of the whole tensor) a bucket may have: a number, or a list with one for each
      bucket, whose last one is for all that follow, or from Python a function of the bucket's number
    - `max_count`: how many collectives a bucket may have
    - `kinds`: which kinds of collectives; all that can be merged if not given
    - `mode`: `default` copies the inputs into one buffer and takes the results out of another; `custom_op` does so with
      one op, which also does the conversions in front; `multidtype` does so with gathers of any dtypes, as bytes;
      `coalesced` makes one call of the backend for all, without copies; `coalesced_pack` does so, and conversions of
      what several members send, or of their results, where each was a kernel of its own, become one
    - `only`: `all`; `parameters`, that is gathers of parameters and reductions of gradients; `inter_node`, that is
      groups that span nodes of the machine; or what is inside of a module, such as `layers.0` or `layers.*.mlp`
    - `by_module`: each module that `only` names has buckets of its own, as people make them by hand
    """

    name: ClassVar[str] = "bucket"
    exact: ClassVar[bool] = False  # merged reductions may be summed in another order
    reorders: ClassVar[bool] = True

    cap_mb: Cap = 200.0
    max_count: int | None = None
    kinds: tuple[str, ...] = KINDS
    mode: str = "default"
    only: str = "all"
    by_module: bool = False

    def __post_init__(self) -> None:
        check_options(self.name, self.kinds, self.mode)
        check_only(self.name, self.only)
        if self.by_module and self.only in WORDS:
            raise OptionError(f"bucket: by_module needs modules to go by, such as only=layers.*, not only={self.only}")
        if self.max_count is not None and not (isinstance(self.max_count, int) and self.max_count >= 1):
            raise OptionError(f"bucket: max_count must be at least 1, not {self.max_count!r}")
        if self.cap_mb == ():
            raise OptionError("bucket: cap_mb needs at least one number")
        if not callable(self.cap_mb):
            for cap in self.cap_mb if isinstance(self.cap_mb, tuple) else (self.cap_mb,):
                _checked_cap(cap)

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each bucket of several collectives; a remark for each bucket, and for each that stays alone."""
        able, others = mergeable(program, self.kinds, self.mode)
        others = {**left_out(program, context, self.name, self.only), **others}
        remarks = [Remark(self.name, op.name, "refused", others[op.name]) for op in program.starts if op.name in others]
        if (note := missed(program, self.name, self.only)) is not None:
            remarks = [note]
        chosen = [window for window in able if window.start.name not in others]
        choice = _Choice(self, program)
        buckets = combine(chosen, choice.key, choice.fits)
        steps = [bucket_step(program, bucket, self.mode) for bucket in buckets if len(bucket) > 1]
        remarks += [self._remark(bucket, choice, program, context) for bucket in buckets]
        return Plan(pass_text(self._with_caps(choice.most)), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        return apply_buckets(program, plan)

    def _with_caps(self, most: int) -> BucketPass:
        """The same pass as text can say it: what a function said for so many buckets."""
        if not callable(self.cap_mb):
            return self
        return replace(self, cap_mb=tuple(self.cap_bytes(number) / 1e6 for number in range(most)))

    def cap_bytes(self, number: int) -> float:
        """How many bytes the bucket of this number may have."""
        cap = self.cap_mb
        if callable(cap):
            return _checked_cap(cap(number)) * 1e6
        return (cap[min(number, len(cap) - 1)] if isinstance(cap, tuple) else cap) * 1e6

    def _remark(self, bucket: Sequence[Window], choice: _Choice, program: Program, context: Context) -> Remark:
        first = bucket[0].start
        nbytes = sum(total_bytes(member.start) for member in bucket)
        if len(bucket) == 1:
            same = "kind, group, reduction, dtype and module" if self.by_module else "kind, group, reduction and dtype"
            why = choice.why.get(first.name, f"no other collective has its {same}")
            return Remark(self.name, first.name, "refused", f"stays alone with {nbytes:,} bytes: {why}")
        names = ", ".join(f"%{member.start.name}" for member in bucket[1:4]) + (", …" if len(bucket) > 4 else "")
        message = f"launched together with {names}: {counted(len(bucket), 'collective')}, {nbytes:,} bytes"
        if self.mode == "custom_op" and (count := sum(conversions(program, member) for member in bucket)):
            message += f", {counted(count, 'conversion')} inside the pack"
        packs = [*converted_together(program, bucket), *results_converted_together(program, bucket)]
        if self.mode == "coalesced_pack" and packs:
            message += f", {sum(map(len, packs))} conversions in {counted(len(packs), 'pack')}"
        if context.cost is not None:
            message += f"; {_worth(*saved_us(program, bucket, self.mode, context.cost))}"
        return Remark(self.name, first.name, "done", message)


class _Choice:
    """Which collective goes with which, and, of those that begin a new bucket, why."""

    def __init__(self, options: BucketPass, program: Program) -> None:
        self._options, self._program = options, program
        self._numbers: dict[Hashable, int] = {}
        self._joints: dict[str, Joint] = {}  # of each bucket, by its first member
        self.why: dict[str, str] = {}

    @property
    def most(self) -> int:
        """How many buckets of one key there were at most."""
        return max(self._numbers.values(), default=0) + 1

    def key(self, window: Window) -> Hashable:
        module = enclosing(window.start.origin, self._options.only) if self._options.by_module else ""
        return key_of(self._program, window, self._options.mode), module

    def fits(self, bucket: Sequence[Window], window: Window) -> bool:
        first, key = bucket[0].start.name, self.key(window)
        joint = (self._joints.get(first) or Joint.of(bucket[0])).joined(Joint.of(window))
        why = self._obstacle(bucket, window, joint, self._options.cap_bytes(self._numbers.get(key, 0)))
        if why is None:
            self._joints[first] = joint
            return True
        self.why[window.start.name] = why
        self.why.setdefault(first, f"%{window.start.name} does not go with it: {why}")
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return False

    def _obstacle(self, bucket: Sequence[Window], window: Window, joint: Joint, cap: float) -> str | None:
        first = bucket[0].start.name
        if joint.nbytes > cap:
            return f"with it the bucket of %{first} would have {joint.nbytes:,} bytes, and may have {cap:,.0f}"
        if len(bucket) == self._options.max_count:
            return f"the bucket of %{first} has {counted(len(bucket), 'collective')}, and may not have more"
        return None if joint.has_place else apart(self._program, (*bucket, window))


def _worth(saved_us: float, copies_us: float) -> str:
    """What a bucket comes to: the time of communication that it saves, less what its copies cost."""
    saved, copies = round(saved_us, 1) + 0.0, round(copies_us, 1) + 0.0  # no -0.0, which would be printed
    net = saved - copies
    less = f" less {copies:,.1f} us of copies" if copies > 0 else ""
    more = f" and {-copies:,.1f} us of conversions" if copies < 0 else ""
    return f"{'saves' if net >= 0 else 'costs'} {abs(net):,.1f} us: {saved:,.1f} us of communication{less}{more}"


def _checked_cap(cap: float) -> float:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:  # NaN is not either
        raise OptionError(f"bucket: a cap must be a number of megabytes, at least 0, not {cap!r}")
    return cap
