"""What rules that leave communication out ask of a program, and what they find."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.analysis.memory import Memory, memory
from weft.analysis.storages import Storages, storages
from weft.analysis.term_table import Table
from weft.analysis.terms import Terms, terms
from weft.analysis.traffic import total_bytes
from weft.analysis.users import users
from weft.cost.model import CostModel
from weft.ir.args import Ref
from weft.ir.program import Collective, Op, Program
from weft.passes.base import Remark, Step
from weft.passes.budget import Budget, Lease


@dataclass(frozen=True)
class Facts:
    """A program and what is known of it.

    - `table`, `terms`: which values are equal
    - `users`: for each op, those that use its value
    - `writers`: for each storage, those that write to it, but for the start and the wait of a collective
    - `returned`: the storages that the caller gets
    - `barriers`: the positions of barriers
    """

    program: Program
    cost: CostModel | None
    table: Table
    terms: Terms
    users: Mapping[str, Sequence[Op]]
    writers: Mapping[int, tuple[Op, ...]]
    returned: frozenset[int]
    barriers: tuple[int, ...]
    known: Storages
    memory: Memory
    asked: dict[tuple[Collective, int], float] = field(default_factory=dict)  # what the cost model has said

    @staticmethod
    def of(program: Program, cost: CostModel | None) -> Facts:
        known, table = storages(program), Table(program.rank)
        writers: dict[int, dict[str, Op]] = {}
        for op in program.ops:
            for storage in known.of_args(op.argument(key) for key in op.traits.mutates) if op.traits.mutates else ():
                writers.setdefault(storage, {})[op.name] = op
        return Facts(
            program,
            cost,
            table,
            terms(program, table),
            users(program),
            {storage: tuple(found.values()) for storage, found in writers.items()},
            known.of_args(program.outputs),
            tuple(position for position, op in enumerate(program.ops) if op.traits.barrier),
            known,
            memory(program),
        )

    def is_plain(self, start: Op) -> bool:
        """Whether a start makes one tensor of one tensor, in memory of its own."""
        assert start.comm is not None, "a start communicates"
        single = len(start.out) == 1 and bool(start.args) and isinstance(start.args[0], Ref)
        return single and start.target == f"{start.comm.kind}.start" and start.name in self.terms.sent

    def writer(self, names: Iterable[str]) -> Op | None:
        """Somebody who writes to one of these values."""
        for name in names:
            for storage in self.known.of_value(name):
                for op in self.writers.get(storage, ()):
                    return op
        return None

    def barrier(self, first: int, last: int) -> Op | None:
        """The first barrier between two positions."""
        at = bisect_left(self.barriers, first)
        return self.program.ops[self.barriers[at]] if at < len(self.barriers) and self.barriers[at] < last else None

    def lifetime(self, name: str) -> tuple[int, int, int]:
        """From which to which position the memory of a value of one tensor lives, and how many bytes it has."""
        storage = max(self.known.of_value(name))
        return self.memory.births[storage], self.memory.deaths[storage], self.known.nbytes[storage]

    def is_returned(self, name: str) -> bool:
        """Whether the caller gets the memory of a value."""
        return not self.returned.isdisjoint(self.known.of_value(name))

    def us(self, comm: Collective, nbytes: int) -> float:
        """What a collective takes; 0 if nobody says."""
        if self.cost is None:
            return 0.0
        if (comm, nbytes) not in self.asked:
            self.asked[comm, nbytes] = self.cost.collective_us(comm, nbytes)
        return self.asked[comm, nbytes]

    def start_us(self, start: Op) -> float:
        """What a start of the program takes; 0 if nobody says."""
        assert start.comm is not None, "a start communicates"
        return self.us(start.comm, total_bytes(start))

    def saved(self, us: float) -> str:
        """The end of a remark: what is saved, if somebody says what things cost."""
        return f", {us:,.0f} us saved" if self.cost is not None else ""


@dataclass
class Findings:
    """Steps and remarks of a pass as they are decided on. No two steps touch the same memory: `taken` has what is in
    use."""

    pass_name: str
    facts: Facts
    budget: Budget
    steps: list[Step] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    def refuse(self, op: Op, why: str) -> None:
        """Leave an op as it is."""
        self.remarks.append(Remark(self.pass_name, op.name, "refused", why))

    def is_taken(self, name: str) -> bool:
        """Whether another step has to do with the memory of a value."""
        return not self.taken.isdisjoint(self.facts.known.of_value(name))

    def reserve(self, *names: str) -> None:
        """Keep other steps away from the memory of these values."""
        self.taken.update(storage for name in names for storage in self.facts.known.of_value(name))

    def decide(self, op: Op, leases: list[Lease], what: str) -> bool:
        """Whether to do what changes memory like this: only within the limit."""
        if not self.budget.take(leases):
            held = max(more for _, _, more in leases)
            peak = f"memory would rise to {self.budget.peak(leases):,} bytes, and may to {self.budget.limit:,}"
            self.refuse(op, f"{held:,} bytes would be held longer: {peak}")
            return False
        self.remarks.append(Remark(self.pass_name, op.name, "done", what))
        return True
