"""From a TOML file to the parts of a Machine: every value checked, every refusal with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product

from weft.cost.analytic import PROTOCOLS
from weft.cost.curves import Curve
from weft.cost.matmul import Surface, flop_us
from weft.cost.toml import Table
from weft.cost.topology import Level
from weft.ir.program import KINDS
from weft.ir.specs import DTYPES

# A matmul of f32 may run on tensor cores with ten bits of mantissa; that has a rate of its own.
RATES = (*DTYPES, "tf32")


@dataclass(frozen=True)
class Accelerator:
    """One device: its memory, its peak rates by dtype, and what is lost on the way to them."""

    name: str
    memory_gb: float
    memory_gb_per_s: float
    memory_efficiency: float
    launch_us: float
    f32_matmuls: str
    matmul_efficiency: float
    attention_efficiency: float
    tflops: Mapping[str, float]


def accelerator(root: Table) -> Accelerator:
    """The device, with its peak rates; that of f32 must be among them."""
    table = root.table("accelerator")
    table.only(
        "name", "memory_gb", "memory_gb_per_s", "memory_efficiency", "launch_us", "f32_matmuls", "matmul_efficiency",
        "attention_efficiency", "tflops",
    )  # fmt: skip
    tflops = _tflops(table.table("tflops"))
    f32_matmuls = table.text("f32_matmuls") if "f32_matmuls" in table.values else "f32"
    if f32_matmuls not in ("f32", "tf32") or f32_matmuls not in tflops:
        raise table.wrong("f32_matmuls", f'must be "f32" or "tf32", with a rate under tflops, not "{f32_matmuls}"')
    return Accelerator(
        name=table.text("name"),
        memory_gb=table.number("memory_gb"),
        memory_gb_per_s=table.number("memory_gb_per_s"),
        memory_efficiency=table.number("memory_efficiency", high=1),
        launch_us=table.at_least("launch_us", 0),
        f32_matmuls=f32_matmuls,
        matmul_efficiency=table.number("matmul_efficiency", high=1, default=0.7),
        attention_efficiency=table.number("attention_efficiency", high=1, default=0.65),
        tflops=tflops,
    )


def _tflops(table: Table) -> Mapping[str, float]:
    for dtype in table.values:
        if dtype not in RATES:
            raise table.wrong(dtype, f"is no dtype; known are {', '.join(RATES)}")
    if "f32" not in table.values:
        raise table.wrong("f32", "is missing; dtypes that have no rate of their own run at it")
    return {dtype: table.number(dtype) for dtype in table.values}


def levels(root: Table) -> tuple[Level, ...]:
    """The levels from the inside out. Each must hold several of the one inside it; the last holds everything."""
    tables = root.tables("level")
    if not tables:
        raise root.wrong("level", "is missing; a machine has at least one [[level]] of links")
    found: list[Level] = []
    for table in tables:
        table.only("name", "ranks", "gb_per_s", "latency_us", "efficiency", "shared_by", "mesh", "symmetric")
        found.append(_level(table, outermost=table is tables[-1]))
        _check_nesting(table, found)
    return tuple(found)


def _level(table: Table, outermost: bool) -> Level:
    if outermost and "ranks" in table.values:
        raise table.wrong("ranks", "must be left out on the last level, which connects all ranks there are")
    mesh = table.flag("mesh")
    if mesh and outermost:
        raise table.wrong("mesh", "needs a number of ranks, and the last level has none")
    return Level(
        name=table.text("name"),
        ranks=None if outermost else table.count("ranks", low=2),
        gb_per_s=table.number("gb_per_s"),
        latency_us=table.at_least("latency_us", 0),
        efficiency=table.number("efficiency", high=1),
        shared_by=table.count("shared_by", default=1),
        mesh=mesh,
        symmetric=table.flag("symmetric"),
    )


def _check_nesting(table: Table, found: list[Level]) -> None:
    *inner, last = found
    if any(level.name == last.name for level in inner):
        raise table.wrong("name", f'"{last.name}" is the name of a level further in; each needs its own')
    if inner and last.ranks is not None and inner[-1].ranks is not None:
        below = inner[-1].ranks
        if last.ranks <= below or last.ranks % below:
            raise table.wrong(
                "ranks", f"must be a multiple of the {below} ranks of the level inside it, not {last.ranks}"
            )


def protocols(root: Table) -> tuple[float, tuple[str, ...]]:
    """What starting a collective takes, and the protocols that the library may choose from."""
    table = root.table("collectives")
    table.only("start_us", "protocols")
    names = table.texts("protocols")
    for name in names:
        if name not in PROTOCOLS:
            raise table.wrong("protocols", f'"{name}" is not known; known are {", ".join(PROTOCOLS)}')
    return table.at_least("start_us", 0), names


def slowdown(root: Table) -> float:
    """The factor by which compute takes longer while anything is communicated."""
    table = root.table("contention")
    table.only("compute_slowdown")
    return table.at_least("compute_slowdown", 1)


def curves(root: Table) -> tuple[Curve, ...]:
    """The measured curves by kind, nodes and ranks, in that order; each at most once."""
    found: dict[tuple[str, int, int], Curve] = {}
    for table in root.tables("curve"):
        table.only("kind", "ranks", "nodes", "bytes", "us")
        kind = table.text("kind")
        if kind not in KINDS:
            raise table.wrong("kind", f'"{kind}" is no collective; known are {", ".join(KINDS)}')
        curve = Curve(kind, table.count("ranks", low=2), table.count("nodes", default=1), *_knots(table))
        key = (kind, curve.nodes, curve.ranks)
        if curve.nodes > curve.ranks:
            raise table.wrong("nodes", f"cannot be more than the {curve.ranks} ranks")
        if key in found:
            raise table.wrong("kind", f"there is another curve for {kind} among {curve.ranks} ranks; join the two")
        found[key] = curve
    return tuple(found[key] for key in sorted(found))


def _knots(table: Table) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nbytes, us = table.numbers("bytes"), table.numbers("us")
    if len(nbytes) != len(us):
        raise table.wrong("us", f"has {len(us)} numbers for {len(nbytes)} in bytes; each knot needs both")
    _check_ascending(table, "bytes", nbytes)
    for before, after in pairwise(us):
        if after < before:
            raise table.wrong("us", f"falls from {before:g} to {after:g}; more bytes cannot take less time")
    return nbytes, us


def surfaces(root: Table, peaks: Mapping[str, float]) -> tuple[Surface, ...]:
    """The measured matmul surfaces. No rate may exceed the dtype's peak, and no larger matmul may be faster."""
    found: list[Surface] = []
    for table in root.tables("matmul"):
        table.only("dtype", "batched", "area", "k", "tflops")
        surface = Surface(
            dtype=table.text("dtype"),
            batched=table.flag("batched") if "batched" in table.values else None,
            areas=table.numbers("area"),
            depths=table.numbers("k"),
            tflops=table.rows("tflops"),
        )
        _check_surface(table, surface, peaks)
        if any(_same_matmuls(surface, other) for other in found):
            raise table.wrong("dtype", f'"{surface.dtype}" has another surface; say which is batched, or join them')
        found.append(surface)
    return tuple(found)


def _same_matmuls(one: Surface, other: Surface) -> bool:
    overlap = one.batched is None or other.batched is None or one.batched == other.batched
    return one.dtype == other.dtype and overlap


def _check_surface(table: Table, surface: Surface, peaks: Mapping[str, float]) -> None:
    if surface.dtype not in peaks:
        known = ", ".join(peaks)
        raise table.wrong("dtype", f'"{surface.dtype}" has no rate under accelerator.tflops, which has {known}')
    _check_ascending(table, "area", surface.areas)
    _check_ascending(table, "k", surface.depths)
    rows, columns = len(surface.areas), len(surface.depths)
    if len(surface.tflops) != rows or any(len(row) != columns for row in surface.tflops):
        raise table.wrong("tflops", f"must have {rows} rows, one for each area, of {columns} numbers, one for each k")
    if surface.top_tflops > peaks[surface.dtype]:
        peak = peaks[surface.dtype]
        raise table.wrong("tflops", f"{surface.top_tflops:g} is more than the peak of {surface.dtype}, {peak:g}")
    _check_times(table, surface)


def _check_times(table: Table, surface: Surface) -> None:
    """Time may not fall along rows or columns; a per mille is what four digits of a rate leave open."""
    areas, depths = surface.areas, surface.depths
    us = [[flop_us(a, k, surface.tflops[i][j]) for j, k in enumerate(depths)] for i, a in enumerate(areas)]
    for i, j in product(range(len(areas)), range(len(depths))):
        for before_i, before_j in ((i - 1, j), (i, j - 1)):
            if min(before_i, before_j) >= 0 and us[i][j] < us[before_i][before_j] * 0.999:
                here, before = f"{areas[i]:g}, k {depths[j]:g}", f"{areas[before_i]:g}, k {depths[before_j]:g}"
                raise table.wrong("tflops", f"area {here} would take less time than the smaller area {before}")


def _check_ascending(table: Table, key: str, values: tuple[float, ...]) -> None:
    for before, after in pairwise(values):
        if after <= before:
            raise table.wrong(key, f"must ascend, and {after:g} follows {before:g}")
