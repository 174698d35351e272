"""What a calibration measures: kernels that move bytes, matmuls, collectives, and matmuls beside a collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.fx.collectives import WAIT
from weft.fx.values import TO_TORCH
from weft.run.samples import Probe

DTYPES = ("f32", "bf16")
DEPTHS = (128, 512, 2048)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")

_C10D = torch.ops._c10d_functional
_TINY = 64  # bytes; a kernel on so few does nothing but start
_SMALLEST = 1024  # bytes of the first collective


class Moved(NamedTuple):
    """A kernel that reads and writes so many bytes in all."""

    kernel: str
    nbytes: int

    @property
    def is_launch(self) -> bool:
        return self.nbytes < 4 * _TINY

    def __str__(self) -> str:
        return f"{self.kernel} of {self.nbytes:,} bytes"


class Product(NamedTuple):
    """A matmul side×k by k×side."""

    dtype: str
    side: int
    k: int

    def __str__(self) -> str:
        return f"{self.dtype} matmul {self.side}x{self.k} by {self.k}x{self.side}"


class Transfer(NamedTuple):
    """A collective; `nodes` as a Curve counts them."""

    kind: str
    ranks: int
    nodes: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.nbytes:,} bytes among {self.ranks}"


class Beside(NamedTuple):
    """Matmuls, alone or while a collective of `kind` is in flight; without matmuls that collective alone."""

    kind: str
    matmuls: bool
    flight: bool

    def __str__(self) -> str:
        return f"matmuls beside {self.kind}"


Key: TypeAlias = Moved | Product | Transfer | Beside


@dataclass(frozen=True)
class Ranks:
    """A group that takes part in collectives: its name in torch, its size, and how many nodes it touches."""

    name: str
    size: int
    nodes: int


def kernels(device: torch.device) -> Iterator[Probe[Key]]:
    """Kernels that move bytes; what they move is beyond the cache that a core has to itself."""
    sizes = (2**20, 2**22, 2**24) if device.type == "cpu" else (2**26, 2**28)
    for nbytes in (_TINY, *sizes):
        one, other = (torch.ones(nbytes // 4, device=device) for _ in range(2))
        yield Probe(Moved("copy", 2 * nbytes), one.clone)
        yield Probe(Moved("add", 3 * nbytes), partial(torch.add, one, other))


def matmuls(dtype: str, most: int, device: torch.device) -> Iterator[list[Probe[Key]]]:
    """Square results at every depth, each four times the one before, up to `most` bytes."""
    side = 128
    while 4 * side**2 <= most:
        batch: list[Probe[Key]] = []
        for k in DEPTHS:
            left = torch.randn(side, k, device=device).to(TO_TORCH[dtype])
            right = torch.randn(k, side, device=device).to(TO_TORCH[dtype])
            batch.append(Probe(Product(dtype, side, k), partial(torch.mm, left, right)))
        yield batch
        side *= 2


def collectives(ranks: Ranks, growth: int, most: int, device: torch.device) -> Iterator[list[Probe[Key]]]:
    """Every kind at one size after the other, up to `most` bytes. Whole tensors divide among the ranks."""
    nbytes = _SMALLEST
    while nbytes <= most:
        whole = torch.ones(_divisible(nbytes // 4, ranks.size), device=device)
        key = ranks.size, ranks.nodes, 4 * whole.numel()
        yield [Probe(Transfer(kind, *key), waited(start)) for kind, start in starts(ranks, whole).items()]
        nbytes *= growth


def starts(ranks: Ranks, whole: Tensor) -> Mapping[str, Callable[[], Tensor]]:
    """What starts each kind of collective, such that `whole` is its whole tensor."""
    name, size = ranks.name, ranks.size
    shard, parts = whole[: whole.numel() // size], [whole.numel() // size] * size
    return {
        "all_gather": lambda: _C10D.all_gather_into_tensor(shard, size, name),
        "reduce_scatter": lambda: _C10D.reduce_scatter_tensor(whole, "sum", size, name),
        "all_reduce": lambda: _C10D.all_reduce(whole, "sum", name),
        "all_to_all": lambda: _C10D.all_to_all_single(whole, parts, parts, name),
        "broadcast": lambda: _C10D.broadcast(whole, 0, name),
    }


def waited(start: Callable[[], Tensor], between: Callable[[], Any] | None = None) -> Callable[[], Any]:
    """A collective from its start to its wait, with something to compute in between, or nothing."""

    def call() -> Any:
        flying = start()
        if between is not None:
            between()
        return WAIT(flying)

    return call


def beside(ranks: Ranks, sizes: Mapping[str, int], side: int, times: int, device: torch.device) -> Iterator[Probe[Key]]:
    """For each kind in `sizes`: the collective alone, matmuls alone, and the matmuls while it is in flight."""
    left, right = (torch.randn(side, side, device=device) for _ in range(2))

    def compute() -> None:
        for _ in range(times):
            torch.mm(left, right)

    for kind, nbytes in sizes.items():
        start = starts(ranks, torch.ones(_divisible(nbytes // 4, ranks.size), device=device))[kind]
        yield Probe(Beside(kind, matmuls=False, flight=True), waited(start))
        yield Probe(Beside(kind, matmuls=True, flight=False), compute)
        yield Probe(Beside(kind, matmuls=True, flight=True), waited(start, compute))


def groups(ranks_per_node: int) -> Sequence[Ranks]:
    """All ranks, and where there are several nodes also the ranks of this one. Every rank must call this."""
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = dist.group.WORLD
    assert whole is not None, "torch.distributed is initialised"
    if ranks_per_node in (1, world):  # nodes of one rank have no links of their own
        return [Ranks(whole.group_name, world, 1)]
    nodes = [list(range(first, first + ranks_per_node)) for first in range(0, world, ranks_per_node)]
    inside = [dist.new_group(node) for node in nodes][rank // ranks_per_node]
    return [Ranks(inside.group_name, ranks_per_node, 1), Ranks(whole.group_name, world, len(nodes))]


def _divisible(elements: int, ranks: int) -> int:
    return -(-elements // ranks) * ranks
