"""How much of a program has a measured time, and what does not."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from weft.analysis.kernels import Kernel, input_specs, kernel
from weft.analysis.traffic import total_bytes
from weft.cost.estimates import Estimates
from weft.errors import WeftWarning
from weft.ir.printer import print_spec
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

_SHOWN = 3  # kinds of ops that fell back and are worth naming in a line


@dataclass(frozen=True)
class Coverage:
    """Who gave the times of a program: for ops that are kernels of their own, and for collectives.

    - `ops`, `collectives`: how many each source knew
    - `missing_ops`, `missing_collectives`: what fell back to the machine, and how often, the most frequent first;
      nothing where the machine was asked for to begin with
    """

    ops: Mapping[str, int]
    collectives: Mapping[str, int]
    missing_ops: Mapping[str, int]
    missing_collectives: Mapping[str, int]

    @property
    def missing(self) -> int:
        """How many ops and collectives fell back."""
        return sum(self.missing_ops.values()) + sum(self.missing_collectives.values())

    def __str__(self) -> str:
        both = (
            _share("op", self.ops, self.missing_ops),
            _share("collective", self.collectives, self.missing_collectives),
        )
        line = " and ".join(filter(None, both)) or "all times are the machine's"
        if not self.missing:
            return line
        return f"{line}; {self.missing} fell back to the machine: " + _named(self.missing_ops, self.missing_collectives)


def coverage(program: Program, estimates: Estimates) -> Coverage:
    """Ask for every op that is a kernel of its own, and for every collective, and count who answers.

    Ops that share kernels are not asked for one by one, here and in `prices`: they cost what their region moves.
    """
    ops: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    missing_ops: Counter[str] = Counter()
    missing_collectives: Counter[str] = Counter()
    for op in program.ops:
        if op.comm is not None:
            found = estimates.measured_collective(op.comm, total_bytes(op))
            _count(found, collectives, missing_collectives, _collective(op))
            continue
        inputs = input_specs(program, op)
        if kernel(op, inputs) is Kernel.ALONE:
            _count(estimates.measured_op(op, inputs), ops, missing_ops, _shapes(op, inputs))
    asked_ops, asked_collectives = estimates.asks
    return Coverage(
        dict(ops),
        dict(collectives),
        dict(missing_ops.most_common()) if asked_ops else {},
        dict(missing_collectives.most_common()) if asked_collectives else {},
    )


def warn_if_partial(found: Coverage) -> None:
    """A WeftWarning that says what fell back, if anything did."""
    if found.missing:
        warnings.warn(str(found), WeftWarning, stacklevel=2)


def _count(found: tuple[str, float] | None, known: Counter[str], missing: Counter[str], what: str) -> None:
    if found is None:
        missing[what] += 1
    else:
        known[found[0]] += 1


def _share(noun: str, known: Mapping[str, int], missing: Mapping[str, int]) -> str:
    """`412 of 430 ops by profile`; nothing if there are none."""
    measured, fell_back = sum(known.values()), sum(missing.values())
    if not measured and not fell_back:
        return ""
    by = f" by {', '.join(known)}" if known else ""
    return f"{measured} of {measured + fell_back} {noun}s{by}"


def _named(*missing: Mapping[str, int]) -> str:
    everything = sorted(((count, what) for one in missing for what, count in one.items()), key=lambda row: -row[0])
    shown = [what if count == 1 else f"{what} ({count}×)" for count, what in everything[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(everything) - _SHOWN} more kinds" if len(everything) > _SHOWN else "")


def _shapes(op: Op, inputs: tuple[TensorSpec, ...]) -> str:
    return " ".join((op.target, *map(print_spec, inputs)))


def _collective(op: Op) -> str:
    assert op.comm is not None
    return f"{op.comm.kind} of {total_bytes(op):,} bytes among {op.comm.group.size} ranks"
