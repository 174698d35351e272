"""Calibration: what the fits make of times that are known, and what ranks measure."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest

import weft
from bench.reality import STEPS
from weft import Collective, Group, Machine
from weft.cost.analytic import analytic_us
from weft.cost.curves import Curve
from weft.cost.matmul import flop_us
from weft.cost.topology import Level, place
from weft.errors import WeftError
from weft.run import fit, local_ranks
from weft.run.calibrate import Calibration, calibrate
from weft.run.probes import DEPTHS, KINDS, Beside, Key, Moved, Product, Transfer
from weft.run.samples import Effort
from weft.sim.streams import Flight, Streams

TINY = Effort(rounds=1, sample_s=0.001, growth=16, longest_s=0.001)
SIZES = tuple(2**power for power in range(10, 27, 2))


def transfers(us: Any, ranks: int = 2, nodes: int = 1) -> dict[Key, float]:
    return {Transfer(kind, ranks, nodes, size): us(kind, size) for kind in KINDS for size in SIZES}


def by_levels(levels: tuple[Level, ...], start: float, ranks: int, nodes: int) -> list[Curve]:
    """The curves of a machine that is just as the analytic model has it."""
    where = place(levels, tuple(range(ranks)))

    def us(kind: str, size: int) -> float:
        return start + analytic_us(kind, where, size, ("plain",))

    return [fit.curve(transfers(us, ranks, nodes), kind, ranks, nodes)[0] for kind in KINDS]


# Fits


def test_a_straight_curve_is_predicted_without_error() -> None:
    curve, found = fit.curve(transfers(lambda kind, size: size / 100), "all_gather", 2, 1)
    assert curve.bytes == SIZES
    assert curve.at(2**15, "") == pytest.approx(327.68)
    assert (found.what, found.points) == ("all_gather, 2 ranks", len(SIZES))
    assert found.error == pytest.approx(0)


def test_a_curve_never_falls_and_its_error_tells_of_the_outlier() -> None:
    curve, found = fit.curve(transfers(lambda kind, size: 1e6 if size == 2**12 else size / 100), "broadcast", 2, 1)
    assert list(curve.us) == sorted(curve.us)
    assert found.error > 0.1


def test_a_surface_of_one_rate_has_no_error() -> None:
    times: dict[Key, float] = {
        Product("f32", side, k): flop_us(side**2, k, 0.05) for side in (128, 256, 512) for k in DEPTHS
    }
    surface, found = fit.surface(times, "f32")
    assert surface.top_tflops == pytest.approx(0.05)
    assert surface.us(1, 256, 512, 1024) == pytest.approx(flop_us(256 * 512, 1024, 0.05))
    assert found.error == pytest.approx(0)


def test_a_surface_of_two_sizes_cannot_be_judged() -> None:
    times: dict[Key, float] = {Product("bf16", side, k): 1.0 * side * k for side in (128, 256) for k in DEPTHS}
    assert isnan(fit.surface(times, "bf16")[1].error)


def test_memory_is_a_launch_and_a_rate() -> None:
    times: dict[Key, float] = {Moved("copy", 128): 3.0}
    times |= {Moved("copy", size): 3 + size / 10e3 for size in SIZES[-3:]}
    found = fit.memory(times)
    assert found.launch_us == 3
    assert found.gb_per_s == pytest.approx(10)
    assert found.fit.error == pytest.approx(0)


def figures(level: Level) -> list[float]:
    return [level.gb_per_s, level.latency_us]


def test_links_of_one_level_are_found_again() -> None:
    (level,), start = fit.links(by_levels((Level("all", None, 2.0, 40.0, 1.0),), 60, 4, 1), None)
    assert level.ranks is None
    assert [*figures(level), start] == pytest.approx([2, 40, 60], rel=0.01)


def test_links_of_two_levels_are_found_again() -> None:
    levels = (Level("node", 4, 100.0, 2.0, 1.0), Level("network", None, 10.0, 9.0, 1.0))
    curves = by_levels(levels, 20, 4, 1) + by_levels(levels, 20, 8, 2)
    (inner, outer), start = fit.links(curves, 4)
    assert (inner.ranks, outer.ranks) == (4, None)
    assert [*figures(inner), *figures(outer), start] == pytest.approx([100, 2, 10, 9, 20], rel=0.01)


BESIDE: dict[Key, float] = {
    Beside("all_reduce", matmuls=False, flight=True): 1000.0,
    Beside("all_reduce", matmuls=True, flight=False): 3000.0,
    Beside("all_reduce", matmuls=True, flight=True): 3600.0,
}


def test_the_slowdown_holds_compute_up_for_as_long_as_was_measured() -> None:
    assert fit.slowdown(BESIDE) == pytest.approx(2.5)
    streams = Streams(fit.slowdown(BESIDE))
    streams.launch(Flight(0, "dp", 1000.0, {}, 0.0))
    streams.compute(3000.0)
    assert streams.now == pytest.approx(3600)


@pytest.mark.parametrize(("both", "slowdown"), [(2900.0, 1.0), (9000.0, 20.0)])
def test_a_slowdown_stays_within_what_a_machine_may_have(both: float, slowdown: float) -> None:
    times = {**BESIDE, Beside("all_reduce", matmuls=True, flight=True): both}
    assert fit.slowdown(times) == pytest.approx(slowdown)


# Ranks


def tiny(rank: int, ranks_per_node: int | None) -> Calibration:
    return calibrate(TINY, ranks_per_node=ranks_per_node)


def loaded(found: Calibration, folder: Path) -> Machine:
    path = folder / "machine.toml"
    path.write_text(found.text('a "quoted" name'))
    return Machine.load(path)


@pytest.mark.gloo
def test_two_ranks_agree_on_a_machine_that_can_be_loaded(tmp_path: Path) -> None:
    one, other = local_ranks(tiny, 2, None)
    assert repr(replace(one, seconds=0)) == repr(replace(other, seconds=0))  # an error that is NaN equals nothing
    machine = loaded(one, tmp_path)
    assert machine.name == 'a "quoted" name'
    assert {(curve.kind, curve.ranks, curve.nodes) for curve in machine.curves} == {(kind, 2, 1) for kind in KINDS}
    assert [surface.dtype for surface in machine.surfaces] == ["f32", "bf16"]
    assert machine.compute_slowdown >= 1
    assert [found.what for found in one.fits][-3:] == ["f32 matmuls", "bf16 matmuls", "memory"]
    pair = Group("dp", (0, 1))
    assert machine.collective_us(Collective("permute", pair), 4096) > 0  # a kind that has no curve
    assert machine.matmul_us("f32", 1, 256, 256, 256) > machine.launch_us


@pytest.mark.gloo
def test_nodes_have_curves_of_their_own(tmp_path: Path) -> None:
    machine = loaded(local_ranks(tiny, 4, 2)[3], tmp_path)
    assert {(curve.ranks, curve.nodes) for curve in machine.curves} == {(2, 1), (4, 2)}
    assert [(level.name, level.ranks) for level in machine.levels] == [("node", 2), ("network", None)]


def fails_midway(rank: int) -> Calibration:
    def progress(what: str, left: float | None) -> None:
        if rank == 1 and left is not None:
            raise ValueError("rank 1 has had enough")

    return calibrate(TINY, progress=progress)


@pytest.mark.gloo
def test_a_rank_that_fails_ends_the_others() -> None:
    with pytest.raises(WeftError, match=r"a rank failed|did not finish"):
        local_ranks(fails_midway, 2, time_limit_s=60)


@pytest.mark.gloo
def test_nodes_must_divide_the_ranks() -> None:
    with pytest.raises(WeftError, match="2 ranks cannot be nodes of 3 each"):
        local_ranks(tiny, 2, 3, time_limit_s=60)


def test_one_process_has_nothing_to_measure() -> None:
    with pytest.raises(WeftError, match="takes two ranks"):
        calibrate(TINY)


# The steps of bench.reality


@pytest.mark.parametrize("name", STEPS)
def test_the_steps_that_are_compared_with_reality_are_sound(name: str) -> None:
    program = STEPS[name]("0")
    weft.verify(program)
    assert weft.simulate(program, Machine.load("gloo-cpu")).step_us > 0


def test_prefetching_is_predicted_to_help() -> None:
    machine = Machine.load("gloo-cpu")
    serial, prefetched = (weft.simulate(STEPS[name]("0"), machine) for name in ("fully serial", "prefetched"))
    assert prefetched.step_us < serial.step_us
