"""What a pass is: it decides in `plan`, explains itself in remarks, and carries the plan out in `apply`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, Protocol

from weft.cost.model import CostModel
from weft.errors import OptionError, PlanError
from weft.ir.program import Group, Program

PLAN_VERSION = 1

Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Remark:
    """One line of explanation: what was done or refused, to which op, why, with the numbers."""

    pass_name: str
    op: str
    verdict: str  # "done", "refused" or "note"
    message: str

    def __str__(self) -> str:
        of = f" %{self.op}:" if self.op else ""
        return f"{self.pass_name}: {self.verdict}:{of} {self.message}"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: a verb, the ops that it is done to, and what else it needs."""

    verb: str
    ops: tuple[str, ...]
    detail: Mapping[str, Detail] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return " ".join([self.verb, *self.ops, *(f"{key}={value}" for key, value in self.detail.items())])


@dataclass(frozen=True)
class Plan:
    """What a pass decided, as plain data. It does not name a rank, so one plan serves all of them.

    `program` is the fingerprint of the program that it was made for. Remarks explain it and are not part of it.
    """

    pass_text: str
    program: str
    steps: tuple[Step, ...]
    remarks: tuple[Remark, ...] = field(default=(), compare=False)

    @property
    def hash(self) -> str:
        """The same on every rank that decided the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as JSON, in one canonical spelling."""
        steps = [{"verb": step.verb, "ops": step.ops, "detail": dict(step.detail)} for step in self.steps]
        content = {"weft_plan": PLAN_VERSION, "pass": self.pass_text, "program": self.program, "steps": steps}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that `to_json` wrote; PlanError says what is wrong with anything else."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"this plan is not JSON: {error}") from None
        version = content.get("weft_plan") if isinstance(content, dict) else None
        if version != PLAN_VERSION or isinstance(version, bool):
            raise PlanError(f"this is not a plan of version {PLAN_VERSION}, the only one that this Weft reads")
        steps = content.get("steps")
        if not isinstance(steps, list):
            raise PlanError("this plan has no list of steps")
        return Plan(_text(content, "pass"), _text(content, "program"), tuple(map(_step, steps)))


@dataclass(frozen=True)
class Context:
    """What a pass may know besides the program: its groups, what things cost, if somebody said so, and how many bytes
    of memory there are, None if that does not matter."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    cost: CostModel | None = None
    memory_limit: int | None = None

    @staticmethod
    def of(program: Program, cost: CostModel | None = None, memory_limit: int | None = None) -> Context:
        """The context that a program brings with it."""
        return Context({group.name: group for group in program.groups}, cost, memory_limit)

    def needed_cost(self, pass_name: str) -> CostModel:
        """The cost model, for a pass that cannot do without; OptionError says how to give one."""
        if self.cost is None:
            raise OptionError(f"{pass_name} decides by cost: say for which machine (weft opt --machine, or cost=)")
        return self.cost

    def group(self, name: str) -> Group:
        """The group of that name; OptionError lists those that there are."""
        if name not in self.groups:
            raise OptionError(f"there is no group {name!r}; this program has: {', '.join(self.groups) or 'none'}")
        return self.groups[name]


class Pass(Protocol):
    """A frozen dataclass; its fields are its options.

    - `exact`: every output keeps its bits; other passes change only the order in which numbers are summed
    - `reorders`: collectives of one group may change their order, which every rank must then do alike
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    reorders: ClassVar[bool]

    def plan(self, program: Program, context: Context) -> Plan:
        """Decide, and say why in remarks."""

    def apply(self, program: Program, plan: Plan) -> Program:
        """Carry the plan out. Nothing is decided here."""


def fingerprint(program: Program) -> str:
    """Tells programs apart by their ops and what those use, not by sizes: those may differ from rank to rank."""
    return program.fact(_fingerprint)


def _fingerprint(program: Program) -> str:
    lists = [(op.name, op.target, *op.given) for op in program.ops]  # told in JSON
    told = "".join([f'["{plain}"]' for plain in map('", "'.join, lists)])
    quotes = 2 * sum(map(len, lists))
    if len(encode_basestring_ascii(told)) != len(told) + quotes + 2:  # there is more to escape, as there never is
        told = "".join([f"[{', '.join(map(encode_basestring_ascii, words))}]" for words in lists])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def check_fits(plan: Plan, program: Program) -> None:
    """Raise PlanError unless the plan was made for this program."""
    if plan.program != fingerprint(program):
        raise PlanError(f"the plan of {plan.pass_text} was made for another program ({plan.program})")


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise PlanError(f"this plan lacks {key!r}, or it is not a string")
    return value


def _step(content: object) -> Step:
    match content:
        case {"verb": str(verb), "ops": list(ops), "detail": dict(detail)}:
            plain = all(isinstance(value, Detail) for value in detail.values())
            if plain and all(isinstance(op, str) for op in ops):
                return Step(verb, tuple(ops), detail)
    raise PlanError(f"this plan has a step that cannot be read: {str(content)[:80]}")
