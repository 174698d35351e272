"""The rules that keep a step safe. Each is one function; `RULES` and `CHANGES` are the tables of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from weft.errors import VerifyError
from weft.ir.program import Program
from weft.verify import changes, collectives, mutation, program_rules, shapes
from weft.verify.change import Change
from weft.verify.excerpts import excerpt
from weft.verify.ranks import verify_ranks

__all__ = ["CHANGES", "RULES", "Violation", "verify", "verify_ranks", "violations"]

Finding = tuple[str, str]  # the op at fault (or "" for the program as a whole), and what is wrong

STRUCTURE: Mapping[str, Callable[[Program], Iterable[Finding]]] = {
    "unique_names": program_rules.unique_names,
    "defined_before_use": program_rules.defined_before_use,
}

# What must hold of any Program.
RULES: Mapping[str, Callable[[Program], Iterable[Finding]]] = {
    **STRUCTURE,
    "collectives_complete": program_rules.collectives_complete,
    "starts_waited": program_rules.starts_waited,
    "waited_before_read": program_rules.waited_before_read,
    "unchanged_in_flight": program_rules.unchanged_in_flight,
    "shapes": shapes.shapes,
}

# What must hold between a Program and the one that was made from it.
CHANGES: Mapping[str, Callable[[Change], Iterable[Finding]]] = {
    "inputs_kept": changes.inputs_kept,
    "outputs_kept": changes.outputs_kept,
    "arguments_kept": changes.arguments_kept,
    "mutation_order": mutation.mutation_order,
    "random_order": changes.random_order,
    "barriers": changes.barriers,
    "collectives_accounted": collectives.collectives_accounted,
    "group_order": collectives.group_order,
}


@dataclass(frozen=True)
class Violation:
    """One breach of one rule. `excerpt` shows the ops around the one at fault, which is marked."""

    rule: str
    op: str
    message: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f"\n{self.excerpt}" if self.excerpt else "")


def verify(before: Program, after: Program | None = None, *, reorders: bool = False) -> None:
    """Raise VerifyError, listing every violation, unless `after` is a safe replacement for `before`.

    With one program, check that one by itself. `reorders` permits another order of the collectives within a group:
    only a pass that makes the same choice on every rank may ask for that.
    """
    found = violations(before, after, reorders=reorders)
    if found:
        raise VerifyError(found)


def violations(before: Program, after: Program | None = None, *, reorders: bool = False) -> tuple[Violation, ...]:
    """What `verify` would complain of."""
    subject = before if after is None else after
    found = subject.fact(_of_structure)
    if not found and after is not None:
        found = tuple(replace(one, message=f"in the original, {one.message}") for one in before.fact(_of_structure))
    if found:  # the other rules rely on names and definitions being in order
        return found
    found = subject.fact(_of_the_rest)
    if after is None or (before.ops is after.ops and before.outputs is after.outputs):
        return found
    change = Change(before, after)
    for name, compare in CHANGES.items():
        if name == "group_order" and reorders:
            continue
        found += tuple(_violation(name, op, message, after) for op, message in compare(change))
    return found


def _of_structure(program: Program) -> tuple[Violation, ...]:
    return _run(STRUCTURE, program)


def _of_the_rest(program: Program) -> tuple[Violation, ...]:
    return _run({name: rule for name, rule in RULES.items() if name not in STRUCTURE}, program)


def _run(rules: Mapping[str, Callable[[Program], Iterable[Finding]]], program: Program) -> tuple[Violation, ...]:
    return tuple(_violation(name, op, why, program) for name, rule in rules.items() for op, why in rule(program))


def _violation(rule: str, op: str, message: str, program: Program) -> Violation:
    return Violation(rule, op, message, excerpt(program, op) if op in program else "")
