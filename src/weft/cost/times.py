"""Measured times, and how an op or a collective finds its own among them.

What is measured is found again by what it is, never by its name in a program: an op by its target, its literals and
the specs of its tensors; a collective by its kind, how its group lies among the ranks, and its bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from typing import NamedTuple, Protocol, TypeAlias

from weft.ir.args import Arg, Ref, map_leaves
from weft.ir.dims import Expr, hint
from weft.ir.printer import print_op, print_spec
from weft.ir.program import Collective, Op
from weft.ir.specs import ScalarSpec, Spec, TensorSpec

Ranks: TypeAlias = tuple[int, ...]


class Measured(Protocol):
    """A source of measured times. Both answers are microseconds, or None where nothing was measured."""

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None: ...

    def collective_us(self, collective: Collective, total_bytes: int) -> float | None: ...


class CollectiveKey(NamedTuple):
    """What a collective's time goes by. `layout` is empty where it is not known which ranks took part."""

    kind: str
    size: int
    layout: Ranks
    nbytes: int


def layout(ranks: Ranks) -> Ranks:
    """How a group lies among the ranks, wherever it begins: neighbours share links that distant ranks do not."""
    return tuple(rank - ranks[0] for rank in ranks)


@dataclass(frozen=True)
class CollectiveTimes:
    """Microseconds of collectives that were measured."""

    us: Mapping[CollectiveKey, float] = field(default_factory=dict)

    def find(self, collective: Collective, total_bytes: int) -> float | None:
        """The time of a collective: as measured, or on the line between the sizes measured below and above.

        The line is straight where both axes are logarithmic. Beyond the smallest and the largest size there is no
        answer. A group that lies otherwise than those that were measured has none either, unless it is not known how
        those lay.
        """
        ranks = collective.group.ranks
        for lies in (layout(ranks), ()):
            key = CollectiveKey(collective.kind, len(ranks), lies, total_bytes)
            found = self.us.get(key)
            if found is None:
                found = _between(self._knots.get(key[:3], ()), total_bytes)
            if found is not None:
                return found
        return None

    @cached_property
    def _knots(self) -> Mapping[tuple[str, int, Ranks], tuple[tuple[int, float], ...]]:
        """For each kind and layout, bytes and microseconds, ascending in bytes."""
        knots: dict[tuple[str, int, Ranks], list[tuple[int, float]]] = {}
        for key, us in sorted(self.us.items()):
            if key.nbytes > 0 and us > 0:  # what has a logarithm
                knots.setdefault(key[:3], []).append((key.nbytes, us))
        return {key: tuple(found) for key, found in knots.items()}


def _between(knots: tuple[tuple[int, float], ...], nbytes: int) -> float | None:
    after = bisect_left(knots, (nbytes, 0.0))
    if not 0 < after < len(knots):
        return None
    (low, low_us), (high, high_us) = knots[after - 1 : after + 1]
    share = log(nbytes / low) / log(high / low)
    return exp((1 - share) * log(low_us) + share * log(high_us))


@dataclass(frozen=True)
class Times:
    """What was measured by running it: microseconds by `op_key`, and of collectives.

    `remarks` say in a line each what could not be measured, and why.
    """

    ops: Mapping[str, float] = field(default_factory=dict)
    collectives: CollectiveTimes = field(default_factory=CollectiveTimes)
    remarks: tuple[str, ...] = ()

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        """The time of an op, if one was measured that does the same to tensors of the same specs."""
        return self.ops.get(op_key(op, inputs))

    def collective_us(self, collective: Collective, total_bytes: int) -> float | None:
        """The time of a collective, as `CollectiveTimes.find` has it."""
        return self.collectives.find(collective, total_bytes)

    def __or__(self, other: Times) -> Times:
        """Both together; where both have a time, that of `other`."""
        collectives = CollectiveTimes({**self.collectives.us, **other.collectives.us})
        return Times({**self.ops, **other.ops}, collectives, self.remarks + other.remarks)


def op_key(op: Op, inputs: tuple[TensorSpec, ...]) -> str:
    """All that the time of an op may depend on, as text that stays the same from run to run.

    Symbolic sizes count by their hints.
    """
    args = tuple(_nameless(arg) for arg in op.args)
    kwargs = {key: _nameless(arg) for key, arg in op.kwargs.items()}
    bare = Op("_", op.target, args, kwargs, tuple(map(_plain, op.out)), op.traits)
    return f"{print_op(bare)} given {' '.join(print_spec(_plain(spec)) for spec in inputs)}"


def _nameless(arg: Arg) -> Arg:
    def change(leaf: Arg) -> Arg:
        if isinstance(leaf, Ref):
            return Ref("_")
        return hint(leaf) if isinstance(leaf, Expr) else leaf

    return map_leaves(arg, change)


def _plain(spec: Spec) -> Spec:
    """A spec with the hints of its symbols in their place."""
    if isinstance(spec, ScalarSpec):
        return spec if spec.value is None else ScalarSpec(spec.dtype, hint(spec.value))
    strides = None if spec.strides is None else tuple(map(hint, spec.strides))
    return replace(spec, shape=tuple(map(hint, spec.shape)), strides=strides)
