"""What every op of a Program takes, on a given cost model.

A plain CostModel is asked for every op. On a HardwareModel the ops of a fused region share a kernel, unless their times
were said: it is launched once, reads once what comes from outside and writes once what is used outside. Each op pays
for what it is the first to read and to write there, in an order that depends on what uses what and not on the order of
the Program. So a legal reordering changes no price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from weft.analysis.fusion import Fusion, fusion
from weft.analysis.kernels import Kernel, input_specs, kernel
from weft.analysis.reordering import reordering
from weft.analysis.traffic import total_bytes
from weft.cost.compute import known, priced
from weft.cost.machine import Machine
from weft.cost.model import CostModel, HardwareModel
from weft.cost.regions import Regions
from weft.errors import CostError
from weft.ir.program import Program


@dataclass(frozen=True)
class Prices:
    """Microseconds by position.

    - `us`: of each op, on the compute stream; 0 for views, starts, waits, and what else takes no kernel
    - `comm_us`: of each start, its collective alone on an idle machine; 0 for all other ops
    - `links`: of each start, how long each link that it crosses would be busy at full bandwidth
    - `slowdown`: the factor by which compute takes longer while anything is communicated
    - `unknown`: targets that were estimated from their bytes only, and how many ops that concerns
    """

    us: tuple[float, ...]
    comm_us: tuple[float, ...]
    links: Mapping[int, Mapping[str, float]]
    slowdown: float
    unknown: Mapping[str, int]

    def reordered(self, order: Sequence[int]) -> Prices:
        """The prices of the Program whose ops are those at these positions: they cost what they did."""
        return replace(
            self,
            us=tuple([self.us[place] for place in order]),
            comm_us=tuple([self.comm_us[place] for place in order]),
            links={now: self.links[place] for now, place in enumerate(order) if place in self.links},
        )


def prices(program: Program, cost: CostModel) -> Prices:
    """The prices of all ops. Raises CostError where the cost model gives an impossible time.

    A Machine never changes, so what it says of a Program is asked once.
    """
    return program.fact(_PricesOn(cost)) if isinstance(cost, Machine) else _prices(program, cost)


def note_prices(program: Program, cost: CostModel, priced: Prices) -> None:
    """Tell what `prices` would find: of ops whose prices are known from another Program."""
    if isinstance(cost, Machine):
        program.know(_PricesOn(cost), priced)


@dataclass(frozen=True, eq=False)
class OnMachine:
    """An analysis that asks a machine. It is the same one for the very same machine: to compare all figures of two
    would take longer than to ask again."""

    machine: Machine

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, OnMachine) and other.machine is self.machine

    def __hash__(self) -> int:
        return id(self.machine)


class _PricesOn(OnMachine):
    """The analysis that finds the prices on a machine."""

    def __call__(self, program: Program) -> Prices:
        how = reordering(program)
        if how is not None:
            return prices(how.original, self.machine).reordered(how.order)
        return _prices(program, self.machine)


def _prices(program: Program, cost: CostModel) -> Prices:
    hardware = cost if isinstance(cost, HardwareModel) else None
    comm_us, links = _communication(program, cost, hardware)
    if hardware is None:
        kinds = [kernel(op, input_specs(program, op)) for op in program.ops]
        us = _alone(program, cost, [kind is not Kernel.FREE for kind in kinds])
        return Prices(tuple(us), comm_us, links, 1.0, {})
    fused = fusion(program)
    us = _alone(program, cost, [kind is Kernel.ALONE for kind in fused.kinds])
    _add_fused(us, program, hardware, fused)
    slowdown = _checked(hardware.compute_slowdown, "compute_slowdown", least=1.0)
    strange = {target for target in {op.target for op in program.ops} if not priced(target)}
    doubtful = [(op, kind) for op, kind in zip(program.ops, fused.kinds, strict=True) if op.target in strange]
    runs = [op for op, kind in doubtful if kind is not Kernel.FREE or op.traits.copies]
    unknown = Counter([op.target for op in runs if not known(op)])
    return Prices(tuple(us), comm_us, links, slowdown, dict(sorted(unknown.items())))


# Ops alone


def _alone(program: Program, cost: CostModel, chosen: Sequence[bool]) -> list[float]:
    """The price of each chosen op by itself, 0 for all others."""
    us = [0.0] * len(program)
    for position, op in enumerate(program.ops):
        if chosen[position]:
            us[position] = _checked(cost.op_us(op, input_specs(program, op)), f"op_us of %{op.name} ({op.target})")
    return us


# Communication


def _communication(
    program: Program, cost: CostModel, hardware: HardwareModel | None
) -> tuple[tuple[float, ...], Mapping[int, Mapping[str, float]]]:
    us = [0.0] * len(program)
    links: dict[int, Mapping[str, float]] = {}
    asked: dict[object, tuple[float, Mapping[str, float]]] = {}
    for position, op in enumerate(program.ops):
        if op.comm is None:
            continue
        nbytes = total_bytes(op)
        key = op.comm, nbytes
        if key not in asked:
            busy = dict(hardware.link_us(op.comm, nbytes)) if hardware is not None else {}
            for link, time in busy.items():
                _checked(time, f"link_us of %{op.name} on {link}")
            asked[key] = _checked(cost.collective_us(op.comm, nbytes), f"collective_us of %{op.name}"), busy
        us[position], links[position] = asked[key]
    return tuple(us), links


def _checked(us: float, what: str, least: float = 0.0) -> float:
    if not (isinstance(us, int | float) and isfinite(us) and us >= least):
        raise CostError(f"{what} is {us!r}; it must be a finite number of at least {least:g}")
    return float(us)


# Ops that share a kernel


def _add_fused(us: list[float], program: Program, hardware: HardwareModel, fused: Fusion) -> None:
    """What each op of each region pays: what was said of it, or its part of the bytes, and the first one the launch."""
    launch = _checked(hardware.launch_us, "launch_us")
    silent = isinstance(hardware, Machine)  # it says nothing of single ops that are fused
    regions = Regions(program, fused)
    asked: dict[int, float] = {}
    for number, members in enumerate(fused.members):
        moved = regions.moved(number)
        whole = sum(moved)
        if whole not in asked:
            what = f"moved_us of the {whole} bytes around %{program.ops[members[0]].name}"
            asked[whole] = _checked(hardware.moved_us(whole), what)
        said = {} if silent else _said(program, hardware, members)
        for position, told in said.items():
            us[position] += told
        if len(said) < len(members):
            us[next(place for place in members if place not in said) if said else members[0]] += launch
        for position, nbytes in zip(members, moved, strict=True):
            if nbytes and position not in said:
                us[position] += asked[whole] * (nbytes / whole)


def _said(program: Program, hardware: HardwareModel, members: Sequence[int]) -> dict[int, float]:
    """What is known of fused ops by themselves: of those of which anything is."""
    found = {}
    for position in members:
        op = program.ops[position]
        us = hardware.said_us(op, input_specs(program, op))
        if us is not None:
            found[position] = _checked(us, f"said_us of %{op.name} ({op.target})")
    return found
