"""`Estimates`: other sources of times in front of a machine. docs/estimates.md says when to use which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from sys import float_info
from typing import Any, TypeAlias

from weft.cost.model import HardwareModel
from weft.cost.times import Measured
from weft.errors import CostError, OptionError
from weft.ir.program import Collective, Op
from weft.ir.specs import TensorSpec
from weft.ir.text import print_value

OpEstimator: TypeAlias = Callable[[Op, tuple[TensorSpec, ...]], float | None]
CollectiveEstimator: TypeAlias = Callable[[Collective, int], float | None]
Source: TypeAlias = tuple[str, Callable[..., float | None]]  # a name, and whom to ask under it

# "analytical" is how torch spells it.
_ANALYTIC = ("analytic", "analytical")
_MEASURED: Mapping[str, str] = {"benchmark": "benchmarks", "profile": "profile"}  # and the field that it needs


@dataclass(frozen=True)
class Estimates:
    """A cost model that asks others first, and the machine where they have no answer.

    Each estimator is "analytic" (the machine alone), "benchmark" (`benchmarks` must be given), "profile" (`profile`
    must be given) or a function, which takes what the method of a cost model takes and returns microseconds or None.
    `custom_runtime_estimation` is such a function for both: it is given an Op and its inputs, or a Collective and its
    bytes, and comes before either estimator. What ops share is the machine's: fusion, links, contention.
    """

    machine: HardwareModel
    compute_estimator: str | OpEstimator = "analytic"
    collective_estimator: str | CollectiveEstimator = "analytic"
    profile: Measured | None = None
    benchmarks: Measured | None = None
    custom_runtime_estimation: Callable[[Any, Any], float | None] | None = None

    def __post_init__(self) -> None:
        for option in ("compute_estimator", "collective_estimator"):
            _check_estimator(option, getattr(self, option), self)
        custom = self.custom_runtime_estimation
        if custom is not None and not callable(custom):
            raise OptionError(f"custom_runtime_estimation must be a function or None, not {custom!r}")

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        """How long a compute op takes; `inputs` are the specs of its tensor arguments, in order."""
        found = self.measured_op(op, inputs)
        return self.machine.op_us(op, inputs) if found is None else found[1]

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        """How long a collective takes; `total_bytes` is the whole tensor, as `analysis.total_bytes` counts it."""
        found = self.measured_collective(collective, total_bytes)
        return self.machine.collective_us(collective, total_bytes) if found is None else found[1]

    def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        """The time of an op that would be fused, where a function or a benchmark has one for it.

        A profile is not asked. It has a time for every small op that ran alone; compiled, they share kernels.
        """
        sources = [(name, source) for name, source in self._sources("compute_estimator") if name != "profile"]
        found = _first(sources, _named(op), op, inputs)
        return self.machine.said_us(op, inputs) if found is None else found[1]

    def measured_op(self, op: Op, inputs: tuple[TensorSpec, ...]) -> tuple[str, float] | None:
        """Who knows the time of an op, and the time; None if that is for the machine to say."""
        return _first(self._sources("compute_estimator"), _named(op), op, inputs)

    def measured_collective(self, collective: Collective, total_bytes: int) -> tuple[str, float] | None:
        """Who knows the time of a collective, and the time; None if that is for the machine to say."""
        what = f"{collective.kind} of {total_bytes:,} bytes over {collective.group.name}"
        return _first(self._sources("collective_estimator"), what, collective, total_bytes)

    @property
    def asks(self) -> tuple[bool, bool]:
        """Whether anybody but the machine is asked for ops, and for collectives."""
        return bool(self._sources("compute_estimator")), bool(self._sources("collective_estimator"))

    @property
    def compute_slowdown(self) -> float:
        """The machine's."""
        return self.machine.compute_slowdown

    @property
    def launch_us(self) -> float:
        """The machine's."""
        return self.machine.launch_us

    def moved_us(self, nbytes: int) -> float:
        """The machine's."""
        return self.machine.moved_us(nbytes)

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        """The machine's, but no more than the collective takes by these estimates."""
        whole = self.collective_us(collective, total_bytes)
        return {link: min(us, whole) for link, us in self.machine.link_us(collective, total_bytes).items()}

    def _sources(self, option: str) -> list[Source]:
        """Whom to ask before the machine, by name, in order."""
        custom, chosen = self.custom_runtime_estimation, getattr(self, option)
        found: list[Source] = []
        if custom is not None:
            found.append(("custom_runtime_estimation", custom))
        if callable(chosen):
            found.append((option, chosen))
        elif chosen in _MEASURED:
            table: Measured = getattr(self, _MEASURED[chosen])
            found.append((chosen, table.op_us if option == "compute_estimator" else table.collective_us))
        return found


def _check_estimator(option: str, value: object, estimates: Estimates) -> None:
    if callable(value) or value in _ANALYTIC:
        return
    if not isinstance(value, str) or value not in _MEASURED:
        known = ", ".join(f'"{name}"' for name in (_ANALYTIC[0], *_MEASURED))
        raise OptionError(f"{option} must be {known} or a function, not {value!r}")
    if getattr(estimates, _MEASURED[value]) is None:
        raise OptionError(f'{option}="{value}" needs {_MEASURED[value]}=, the times that were measured')


def _named(op: Op) -> str:
    return f"{print_value(op.name)} ({op.target})"


def _first(sources: list[Source], what: str, *given: Any) -> tuple[str, float] | None:
    """The first answer, and whose it is."""
    for name, source in sources:
        us = _asked(name, source, what, *given)
        if us is not None:
            return name, us
    return None


def _asked(name: str, source: Callable[..., float | None], what: str, *given: Any) -> float | None:
    """What a source answers. It may be anybody's code, so what it does wrong is said in its name."""
    try:
        us = source(*given)
    except Exception as error:
        raise CostError(f"{name} failed on {what}: {type(error).__name__}: {error}") from error
    if us is None:
        return None
    if isinstance(us, bool) or not isinstance(us, Real) or not 0 <= us <= float_info.max:
        raise CostError(f"{name} says {us!r} for {what}; it must be microseconds, at least 0, or None for no answer")
    return float(us)
