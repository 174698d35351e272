"""`bench.speed` on a workload of a few hundred ops: what it measures, and its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from bench.rows import Row
from bench.speed import Times, captured, growth, growth_rows, plan_rows, ratio_rows, weft_times
from bench.workloads import WORKLOADS
from weft.cli import llama
from weft.cost import Machine

TINY = replace(WORKLOADS["llama3_8b_fsdp"], mesh=(("data", 4),), config=llama.llama_tiny())
MACHINE = Machine.load("h100-ib400")
PASSES = ("dedupe", "gather_once", "put_off", "bucket_auto", "halve", "micro_pipeline", "schedule")
PARTS = [
    "from_fx",
    *[f"{name}: {what}" for name in PASSES for what in ("plan", "apply", "verify")],
    "prices and simulations",
    "relink",
]


def test_every_part_is_measured() -> None:
    with captured(TINY, 1) as program:
        times = weft_times(program, MACHINE)
    assert (times.ops, times.starts) == (len(program), len(program.starts))
    assert [what for what, _ in times.parts] == PARTS
    assert all(seconds >= 0 for _, seconds in times.parts)
    assert times.seconds == pytest.approx(sum(seconds for _, seconds in times.parts))


def test_rows_beside_torch() -> None:
    rows = ratio_rows(TINY, MACHINE, 1)
    known = {row.what: row for row in rows}
    assert [row.what for row in rows] == [
        "1 layers: operations",
        "collectives",
        *[f"weft, {what}" for what in PARTS],
        "weft, all of it",
        "torch's pass",
        "weft ÷ torch's pass",
        "torch's pass, with buckets",
        "weft ÷ torch's pass, with buckets",
    ]
    for what in ("torch's pass", "torch's pass, with buckets"):
        ratio = known["weft, all of it"].found / known[what].found
        assert known[f"weft ÷ {what}"].found == pytest.approx(ratio)
    assert {row.limit for row in rows} == {inf}  # the limits are those of 32 layers


def test_growth_of_the_model() -> None:
    rows = growth_rows(TINY, MACHINE, (1, 2))
    assert [row.unit for row in rows] == ["s", "s", ""]
    assert rows[2].what.startswith("exponent of growth")


def test_exponents_and_limits() -> None:
    sizes = ((5_000, 1.0), (50_000, 10.0), (100_000, 40.0))
    found = [Times(ops, ops // 10, (("all", seconds),)) for ops, seconds in sizes]
    rows = growth(found)
    assert [(row.what, round(row.found, 4), row.unit, row.limit) for row in rows] == [
        ("weft, 5,000 ops and 500 collectives", 1.0, "s", inf),
        ("weft, 50,000 ops and 5,000 collectives", 10.0, "s", inf),
        ("weft, 100,000 ops and 10,000 collectives", 40.0, "s", 20.0),
        ("exponent of growth, 5,000 to 50,000 ops", 1.0, "", inf),
        ("exponent of growth, 50,000 to 100,000 ops", 2.0, "", inf),
        ("exponent of growth, 5,000 to 100,000 ops", 1.2314, "", 1.15),
    ]
    assert [row.holds for row in rows] == [True, True, False, True, True, False]
    assert growth(found[:1]) == [Row("weft, 5,000 ops and 500 collectives", 1.0, "s", inf)]


def test_processes_with_other_hash_seeds_make_one_plan() -> None:
    assert plan_rows(TINY, "h100-ib400", 2) == [Row("different plans of 2 processes with other hash seeds", 1, "", 1)]
