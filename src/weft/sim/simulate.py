"""`simulate`: when each op of a Program runs on a machine, what overlaps, and what the compute stream waits for."""

from __future__ import annotations

from dataclasses import replace

from weft.analysis.pairs import pairs
from weft.cost.machine import Machine
from weft.cost.model import CostModel
from weft.cost.prices import OnMachine, Prices, prices
from weft.ir.program import Op, Program
from weft.sim.intervals import Interval
from weft.sim.streams import Flight, Streams, link_shares
from weft.sim.timeline import Timeline


def simulate(program: Program, cost: CostModel | str, *, priced: Prices | None = None) -> Timeline:
    """Run a Program in its order on a machine that `cost` describes, or that is a preset or a file of this name.

    The compute stream takes the ops one after the other. A start hands its collective to its group's stream, behind
    those that the group was given before, once the compute stream has come so far; a wait holds the compute stream
    until that collective is through. `priced` are the prices of this very program, where they are known already.
    The result depends on nothing but the arguments. A Machine never changes, so on one a Program is run once.
    """
    if isinstance(cost, str):
        cost = Machine.load(cost)
    if isinstance(cost, Machine) and (priced is None or priced is prices(program, cost)):
        found = program.fact(_TimelineOn(cost))
        return found if found.program is program else replace(found, program=program)
    return _run(program, cost, priced if priced is not None else prices(program, cost))


class _TimelineOn(OnMachine):
    """The analysis that runs a Program on a machine."""

    def __call__(self, program: Program) -> Timeline:
        return _run(program, self.machine, prices(program, self.machine))


def _run(program: Program, cost: CostModel, known: Prices) -> Timeline:
    index = program.index
    start_of = {index[wait]: index[start] for wait, start in pairs(program).start.items()}
    streams = Streams(known.slowdown)
    ends: list[float] = []
    for position, us in enumerate(known.us):
        if position in known.links:
            streams.launch(_flight(program.ops[position], position, known, streams.now))
        elif position in start_of:
            streams.wait(start_of[position])
        elif us:
            streams.compute(us)
        ends.append(streams.now)
    last = max(streams.now, streams.drain())
    flights = {position: Interval(flight.begin, flight.end) for position, flight in sorted(streams.landed.items())}
    begins = (0.0, *ends)[:-1]  # each op where the one before it ends
    return Timeline(program, cost, known, begins, tuple(ends), flights, last)


def _flight(start: Op, position: int, known: Prices, now: float) -> Flight:
    assert start.comm is not None, "a start communicates"
    us = known.comm_us[position]
    shares = link_shares(known.links[position], us)
    return Flight(position, start.comm.group.name, us, shares, now)
