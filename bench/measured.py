"""The measured rows that presets are fitted on and judged by, and what torch's own analytic model says of them."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from torch._inductor import comm_analysis

from weft.cost.machine import Machine
from weft.ir.program import Collective, Group

_HELD_OUT = 5  # one row in so many
_GPU_TYPES = {"sm_90": "HOPPER", "sm_100_B200": "BLACKWELL", "sm_100_GB200": "BLACKWELL", "sm_103": "BLACKWELL"}
_KINDS = {"collective_permute": "permute"}
_TORCH_KINDS = {
    "all_gather": comm_analysis.NCCL_COLL.ALL_GATHER,
    "reduce_scatter": comm_analysis.NCCL_COLL.REDUCE_SCATTER,
    "all_reduce": comm_analysis.NCCL_COLL.ALL_REDUCE,
    "all_to_all": comm_analysis.NCCL_COLL.ALL_TO_ALL,
    "permute": comm_analysis.NCCL_COLL.P2P,
}


@dataclass(frozen=True)
class Timed:
    """One collective that somebody timed. `held_out` rows are not fitted on."""

    device: str
    kind: str
    ranks: int
    nbytes: int
    us: float
    held_out: bool

    def collective(self) -> Collective:
        return Collective(self.kind, Group("measured", tuple(range(self.ranks))))


@dataclass(frozen=True)
class Matmul:
    """One shape of matmul that somebody timed."""

    device: str
    dtype: str
    shape: tuple[int, int, int, int]  # b, m, n, k
    us: float
    held_out: bool

    @property
    def area(self) -> int:
        b, m, n, _ = self.shape
        return b * m * n

    @property
    def large(self) -> bool:
        return min(self.shape[1:]) >= 1024


def collectives(folder: Path) -> list[Timed]:
    return [
        Timed(
            device=row["device"],
            kind=_KINDS.get(row["collective"], row["collective"]),
            ranks=int(row["group_size"]),
            nbytes=int(row["total_bytes"]),
            us=float(row["microseconds"]),
            held_out=_held_out(row),
        )
        for row in _rows(folder / "collectives.csv")
    ]


def matmuls(folder: Path) -> list[Matmul]:
    found = []
    for row in _rows(folder / "matmuls.csv"):
        b, m, n, k = (int(row[key]) for key in "bmnk")
        us = 2 * b * m * n * k / float(row["flops_per_second"]) * 1e6
        found.append(Matmul(row["device"], row["dtypes"].split("x")[0], (b, m, n, k), us, _held_out(row)))
    return found


def torch_collective_us(row: Timed, machine: Machine) -> float | None:
    """torch's estimate, told which GPU it is and how many of them share an NVLink; None where it knows no such GPU."""
    if row.device not in _GPU_TYPES:
        return None
    with _torch_believes(_GPU_TYPES[row.device], machine.levels[0].ranks or 1):
        kind = _TORCH_KINDS[row.kind]
        return 1e3 * comm_analysis.estimate_nccl_collective_runtime_impl(row.nbytes, row.ranks, kind)


@contextmanager
def _torch_believes(gpu: str, per_node: int) -> Iterator[None]:
    answers: dict[str, Callable[[], object]] = {
        "torch._inductor.comm_analysis.get_gpu_type": lambda: comm_analysis.NVIDIA_GPU_TYPE[gpu],
        "torch._inductor.comm_analysis._has_nvlink": lambda: True,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: per_node,
    }
    patches = [mock.patch(name, answer) for name, answer in answers.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _held_out(row: dict[str, str]) -> bool:
    """By a hash of the row, so that neither order nor other rows matter."""
    return hashlib.sha256(",".join(row.values()).encode()).digest()[0] % _HELD_OUT == 0
