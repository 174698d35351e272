"""`merge_sums`: reductions whose results are only added to each other become one reduction of the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.analysis.dependencies import accesses
from weft.analysis.pairs import pairs
from weft.analysis.storages import storages
from weft.analysis.traffic import total_bytes
from weft.analysis.users import users
from weft.analysis.windows import Window, windows
from weft.cost.model import CostModel, HardwareModel
from weft.errors import PlanError
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.passes.base import Context, Plan, Remark, fingerprint
from weft.passes.combine import apart, place
from weft.passes.members import apply_buckets, bucket_step
from weft.passes.options import pass_text
from weft.passes.results import returned

_KINDS = ("reduce_scatter", "all_reduce")
_LINEAR = ("sum", "avg")

Pair = tuple[Window, Window]


@dataclass(frozen=True)
class MergeSums:
    """Add first, and reduce once, where two results of reductions over the same group are used for their sum only.

    That sends half the bytes. Each rank's numbers are added before they are added to those of other ranks, so results
    are rounded otherwise. A sum of more than two takes this pass more than once.
    """

    name: ClassVar[str] = "merge_sums"
    exact: ClassVar[bool] = False
    reorders: ClassVar[bool] = True

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each pair, a remark for each and for each that looked like one."""
        steps, remarks = [], []
        known = users(program)
        for added, pair in _pairs(program).items():
            first, nbytes = pair[0].start, total_bytes(pair[0].start)
            what = f"%{pair[1].start.name} and it are added in %{added}"
            refused = _refusal(program, program[added], pair, known, context.cost)
            if refused is not None:
                remarks.append(Remark(self.name, first.name, "refused", f"{what}: {refused}"))
                continue
            steps.append(bucket_step(program, pair, "summed"))
            saved = f", and saves {_saved_us(pair, context.cost):,.1f} us" if context.cost is not None else ""
            message = f"{what}: their sum is reduced, which sends {nbytes:,} bytes less{saved}"
            remarks.append(Remark(self.name, first.name, "done", message))
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def apply(self, program: Program, plan: Plan) -> Program:
        """Merge what the plan says."""
        known = {tuple(member.start.name for member in pair) for pair in _pairs(program).values()}
        for step in plan.steps:
            if step.ops not in known:
                raise PlanError(f"not two reductions that are added in this program: {step}")
        return apply_buckets(program, plan)


def _pairs(program: Program) -> Mapping[str, Pair]:
    """Each addition of the results of two reductions of one kind, group, reduction, shape and dtype."""
    known, starts = windows(program), pairs(program).start
    found: dict[str, Pair] = {}
    for op in program.ops:
        match op.target, op.args:
            case "aten.add.Tensor", (Ref(one), Ref(other)) if one != other and not op.kwargs:
                if one in starts and other in starts and _alike(program[starts[one]], program[starts[other]]):
                    members = sorted((known[starts[one]], known[starts[other]]), key=lambda member: member.position)
                    found[op.name] = members[0], members[1]
    return found


def _alike(one: Op, other: Op) -> bool:
    """Whether two starts differ in nothing but what they are given."""
    comm = one.comm
    if comm is None or comm.kind not in _KINDS or comm.reduce_op not in _LINEAR or comm.group.size < 2:
        return False
    plain = one.target == other.target == f"{comm.kind}.start" and not one.kwargs and not other.kwargs
    single = isinstance(one.args[0], Ref) and isinstance(other.args[0], Ref)
    return plain and single and (one.name != other.name, one.comm, one.out) == (True, other.comm, other.out)


def _refusal(
    program: Program, added: Op, pair: Pair, users: Mapping[str, Sequence[Op]], cost: CostModel | None
) -> str | None:
    """Why a pair stays as it is; None if it can be one."""
    for member in pair:
        if (user := _other_user(program, member.start, added, users)) is not None:
            return f"{user} has the result of %{member.start.name} as well"
    if (writer := _writer(program, program.index[added.name])) is not None:
        return f"%{writer} writes to what is in %{added.name}"
    if place(pair) is None:
        return apart(program, pair)
    first = min(member.used for member in pair)
    if first != program.index[added.name]:
        return f"both must be waited for before %{program.ops[first].name}, which comes before %{added.name}"
    if cost is not None and _saved_us(pair, cost) <= 0:
        return f"to add what is sent would take {-_saved_us(pair, cost):,.1f} us more"
    return None


def _other_user(program: Program, value: Op, added: Op, users: Mapping[str, Sequence[Op]]) -> str | None:
    """Who uses a result, before or after it was waited for, besides the op that adds it."""
    if value.name in returned(program):
        return "the caller"
    for user in users.get(value.name, ()):
        if user.is_wait:
            if (found := _other_user(program, user, added, users)) is not None:
                return found
        elif user is not added:
            return f"%{user.name}"
    return None


def _writer(program: Program, position: int) -> str | None:
    """An op that writes to the memory of what an op gives."""
    own = storages(program).of_value(program.ops[position].name)
    for op, (_, written) in zip(program.ops[position:], accesses(program)[position:], strict=True):
        if not own.isdisjoint(written):
            return op.name
    return None


def _saved_us(pair: Pair, cost: CostModel) -> float:
    """The time of one collective, less what it takes longer to add the whole than a part of it."""
    comm, nbytes = pair[0].start.comm, total_bytes(pair[0].start)
    assert comm is not None, "a start communicates"
    more = nbytes - sum(spec.nbytes for spec in pair[0].start.out)
    adding = cost.moved_us(3 * more) if isinstance(cost, HardwareModel) else 0.0
    return cost.collective_us(comm, nbytes) - adding
