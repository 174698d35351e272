"""`Machine`: a cluster as a cost model, read from a TOML file. docs/machines.md describes the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from math import log
from pathlib import Path

from weft.cost import compute, fused, pieces, schema
from weft.cost.analytic import analytic_us, busy_us
from weft.cost.curves import Curve, measured_us
from weft.cost.matmul import Surface, flop_us
from weft.cost.toml import Table, read
from weft.cost.topology import Level, Placement, place
from weft.errors import MachineError
from weft.ir.program import Collective, Group, Op
from weft.ir.specs import DTYPES, TensorSpec

_PRESETS = Path(__file__).with_name("machines")


def presets() -> tuple[str, ...]:
    """The names of the machines that come with Weft."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


@dataclass(frozen=True)
class Machine:
    """How long ops and collectives take on one kind of cluster, each alone on an idle machine.

    Collectives go by measured curves where there is one for their kind, group size and number of nodes, and by an
    analytic model elsewhere. Groups are placed by their ranks, and their siblings are taken to run at the same time, as
    they do when all ranks run the same program.
    """

    name: str
    about: str
    accelerator: schema.Accelerator
    levels: tuple[Level, ...]
    start_us: float
    protocols: tuple[str, ...]
    compute_slowdown: float
    curves: tuple[Curve, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    path: Path | None = field(default=None, compare=False)
    _placements: dict[tuple[int, ...], Placement] = field(default_factory=dict, init=False, compare=False, repr=False)

    @staticmethod
    def load(name_or_path: str | Path) -> Machine:
        """A preset by its name, or the machine in a TOML file. Raises MachineError, with the line, if it is none."""
        path = _find(name_or_path)
        return _machine(read(path), path)

    def faster(self, level: str, times: float) -> Machine:
        """The same machine with so many times the bandwidth on the links of a level; latencies stay.

        Measured collectives carry so many times the bytes in the same time: those within a node for the innermost
        level, those across nodes for any other.
        """
        if level not in [one.name for one in self.levels]:
            known = ", ".join(one.name for one in self.levels)
            raise MachineError(f"has no level {level!r}; there are: {known}", self.name)
        levels = [replace(one, gb_per_s=one.gb_per_s * times) if one.name == level else one for one in self.levels]
        inner = level == self.levels[0].name
        curves = [
            replace(one, bytes=tuple(size * times for size in one.bytes)) if (one.nodes == 1) == inner else one
            for one in self.curves
        ]
        return replace(self, levels=tuple(levels), curves=tuple(curves))

    # Compute

    @property
    def launch_us(self) -> float:
        """What a kernel takes even if it does nothing."""
        return self.accelerator.launch_us

    @property
    def attention_efficiency(self) -> float:
        """The rate of fused attention, as a part of that of a matmul with as much arithmetic."""
        return self.accelerator.attention_efficiency

    def peak_tflops(self, dtype: str) -> float:
        """The rate of matmuls at best; that of f32 for a dtype that has none of its own."""
        return self.accelerator.tflops.get(self._rate_of(dtype), self.accelerator.tflops["f32"])

    def moved_us(self, nbytes: int) -> float:
        """How long a kernel takes to read and write so many bytes; without the launch."""
        return nbytes / (self.accelerator.memory_gb_per_s * 1e3 * self.accelerator.memory_efficiency)

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """How long b matmuls m×k by k×n take, launch included. `dtype` is that of the factors.

        By the measured surface, or by that of the dtype with the nearest peak, its arithmetic scaled. Never faster than
        the peak rate or the memory permits. The layers of a model ask for the same ones again and again.
        """
        key = dtype, b, m, n, k
        if key not in self._matmuls:
            self._matmuls[key] = max(self._surface_us(dtype, b > 1, (b, m, n, k)), self._limit_us(dtype, b, m, n, k))
        return self._matmuls[key]

    def matmul_pieces_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """How long they take at least, all together, if they are cut into pieces; those of a batch may be single."""
        kinds = (False, True) if b > 1 else (False,)
        least = min(self._surface_us(dtype, batched, (b, m, n, k), Surface.pieces_us) for batched in kinds)
        return max(least, self._limit_us(dtype, b, m, n, k))

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        """How long a compute op takes; `inputs` are the specs of its tensor arguments, in order.

        Raises CostError for a matmul with a collective inside it where the group has no symmetric memory.
        """
        return compute.op_us(self, op, inputs) if op.inside is None else fused.fused_us(self, op, inputs)

    def pieces_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        """How long the pieces of a compute op take at least, all together, however it is cut."""
        return compute.op_us(self._in_pieces, op, inputs)

    def parts_us(self, op: Op, inputs: tuple[TensorSpec, ...], count: int, more: bool = False) -> float:
        """How long so many equal pieces of a matmul take together, along whichever dimension that is best; or so many
        or `more`, which are pieces of these."""
        device = self._in_pieces if more else self
        return sum(pieces.parts_us(device, product, count) for product in pieces.products_of(self, op, inputs))

    def multiplied_us(self, matmuls: Sequence[tuple[Op, tuple[TensorSpec, ...]]], parts: int) -> tuple[float, float]:
        """How long some matmuls take in so many equal parts: each by itself, and all of them as one; infinite if they
        cannot be one."""
        return pieces.multiplied_us(self, [pieces.products_of(self, op, inputs) for op, inputs in matmuls], parts)

    def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        """Nobody measured single ops that are fused: a machine knows their bytes only."""
        return None

    @cached_property
    def _matmuls(self) -> dict[tuple[str, int, int, int, int], float]:
        """The times of those that were asked for."""
        return {}

    # Communication

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        """How long a collective takes; `total_bytes` is the whole tensor, as `analysis.total_bytes` counts it.

        A group of one talks to nobody, but its result is a tensor of its own: a copy. Beyond the last knot of a
        measured curve the time is extrapolated, with a WeftWarning.
        """
        placement = self._placed(collective.group.ranks)
        if placement.size < 2:
            return self.launch_us + self.moved_us(2 * total_bytes)
        kind = collective.kind
        found = self._measured_us(kind, placement.nodes, placement.size, total_bytes)
        if found is not None:
            return found
        reckoned = self.start_us + analytic_us(kind, placement, total_bytes, self.protocols)
        return max(reckoned, self._inside_us(kind, placement, total_bytes))

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        """For each level that a collective crosses, how long it keeps a rank's link there busy at full bandwidth."""
        placement = self._placed(collective.group.ranks)
        if placement.size < 2:
            return {}
        whole = self.collective_us(collective, total_bytes)
        return {
            one.level.name: min(whole, busy_us(collective.kind, placement, one, total_bytes))
            for one in placement.crossings
        }

    def is_symmetric(self, group: Group) -> bool:
        """Whether the ranks of a group have symmetric memory, which ops with a collective inside them need."""
        crossings = self._placed(group.ranks).crossings
        return bool(crossings) and all(one.level.symmetric for one in crossings)

    def inside_us(self, collective: Collective, total_bytes: int) -> tuple[float, float]:
        """What a matmul takes at least for a collective inside it: in any case, and for what travels meanwhile.

        The group must be one that `is_symmetric`.
        """
        return fused.around_us(self, collective, total_bytes)

    def peer_us(self, group: Group, nbytes: int) -> float:
        """How long it takes to read so many bytes from the memory of another rank of a group."""
        levels = [one.level for one in self._placed(group.ranks).crossings]
        return max((level.latency_us + nbytes / level.bytes_per_us(1) for level in levels), default=0.0)

    def _inside_us(self, kind: str, placement: Placement, total_bytes: int) -> float:
        """What as many ranks need inside one node, as far as that was measured: across nodes it takes no less."""
        measured = self._curves_of.get((kind, 1), ())
        if placement.nodes == 1 or not measured:
            return 0.0
        ranks = min(placement.size, measured[-1].ranks)
        share = ranks / placement.size if kind == "all_to_all" else 1.0
        used = [curve for curve in measured if curve.ranks == ranks] or measured
        nbytes = min(total_bytes * share, *(curve.bytes[-1] for curve in used))
        return measured_us(measured, ranks, nbytes, self.name) or 0.0

    def _measured_us(self, kind: str, nodes: int, ranks: int, nbytes: float) -> float | None:
        return measured_us(self._curves_of.get((kind, nodes), ()), ranks, nbytes, self.name)

    def _placed(self, ranks: tuple[int, ...]) -> Placement:
        found = self._placements.get(ranks)  # one look-up: hashing a thousand ranks is most of the work
        if found is None:
            found = self._placements[ranks] = place(self.levels, ranks)
        return found

    @cached_property
    def _curves_of(self) -> Mapping[tuple[str, int], tuple[Curve, ...]]:
        keys = dict.fromkeys((curve.kind, curve.nodes) for curve in self.curves)
        return {key: tuple(one for one in self.curves if (one.kind, one.nodes) == key) for key in keys}

    def _rate_of(self, dtype: str) -> str:
        """The name under which a dtype's rates are listed: f32 may be multiplied as tf32."""
        return self.accelerator.f32_matmuls if dtype == "f32" else dtype

    def _limit_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """What the launch, the arithmetic and the memory take at best."""
        # Results are at least two bytes wide: narrower factors are multiplied into bf16.
        width = DTYPES.get(dtype, 4)
        moved = b * ((m * k + k * n) * width + m * n * max(width, 2))
        return max(self.launch_us, flop_us(float(b * m * n), k, self.peak_tflops(dtype)), self.moved_us(moved))

    def _surface_us(
        self, dtype: str, batched: bool, sizes: tuple[int, int, int, int], asked: Callable[..., float] = Surface.us
    ) -> float:
        """What the surface of a dtype says, or the flat efficiency where there is none."""
        b, m, n, k = sizes
        surface = self._surface_for(dtype, batched)
        if surface is None:
            return flop_us(float(b * m * n), k, self.peak_tflops(dtype) * self.accelerator.matmul_efficiency)
        return asked(surface, b, m, n, k, self.peak_tflops(dtype) / self.accelerator.tflops[surface.dtype])

    @cached_property
    def _in_pieces(self) -> pieces.OtherMatmuls:
        return pieces.OtherMatmuls(self, self.matmul_pieces_us)

    def _surface_for(self, dtype: str, batched: bool) -> Surface | None:
        """The surface of a dtype, or else of the one that is nearest in peak rate."""
        own, peak = self._rate_of(dtype), self.peak_tflops(dtype)

        def distance(surface: Surface) -> tuple[bool, float]:
            return surface.dtype != own, abs(log(self.accelerator.tflops[surface.dtype] / peak))

        return min((one for one in self.surfaces if one.batched in (batched, None)), key=distance, default=None)


def _find(name_or_path: str | Path) -> Path:
    """The file of a preset, or the path itself: what has a folder or an ending is a path."""
    if name_or_path in presets():
        return _PRESETS / f"{name_or_path}.toml"
    path = Path(name_or_path)
    # os.path: a name that no file can have, because it is too long, names none.
    if isinstance(name_or_path, Path) or path.suffix or path.name != name_or_path or os.path.exists(path):
        return path
    near = get_close_matches(name_or_path[:100], presets(), 1)
    meant = f"; do you mean {near[0]}?" if near else ""
    known = ", ".join(presets())
    raise MachineError(f"is no machine; known are {known}, or the path of a .toml file{meant}", name_or_path)


def _machine(root: Table, path: Path) -> Machine:
    root.only("name", "about", "accelerator", "level", "collectives", "contention", "curve", "matmul")
    accelerator = schema.accelerator(root)
    start_us, protocols = schema.protocols(root)
    return Machine(
        name=root.text("name"),
        about=root.text("about"),
        accelerator=accelerator,
        levels=schema.levels(root),
        start_us=start_us,
        protocols=protocols,
        compute_slowdown=schema.slowdown(root),
        curves=schema.curves(root),
        surfaces=schema.surfaces(root, accelerator.tflops),
        path=path,
    )
