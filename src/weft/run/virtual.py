"""Virtual ranks: all ranks of a program, interpreted in one process, op by op, with exact collectives.

A collective that is under way is made to look like one. Its result is poison until the wait, and it may read its
input at the start or only at the wait: a program without races gives the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node, map_arg

from weft.analysis.pairs import pairs
from weft.errors import GraphError
from weft.fx.collectives import bound
from weft.fx.exporter import lower
from weft.ir.program import Group, Op, Program
from weft.run.fused import run_fused

_REDUCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "sum": torch.add,
        "avg": torch.add,  # and divided in the end
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
)


def virtual(
    program: Program, inputs_per_rank: Sequence[Sequence[Any]], *, reads: Literal["early", "late"] = "late"
) -> list[Any]:
    """What each rank returns, given the inputs of each. Inputs that the program writes to are written to.

    Reductions go through the ranks in order. `reads` says when a collective looks at its input: at its start, or only
    at its wait. A group that is not all ranks is repeated over the others as in a device mesh.
    """
    return _World(program, inputs_per_rank, reads).run()


@dataclass
class _Flight:
    """A collective under way: per rank, what it sends and where its results go."""

    op: Op
    args: list[tuple[Any, ...]]  # per rank, as the operator is given them
    sent: list[list[Tensor]]
    results: list[list[Tensor]]
    landed: bool = False


class _World:
    def __init__(self, program: Program, inputs: Sequence[Sequence[Any]], reads: str) -> None:
        for rank, given in enumerate(inputs):
            if len(given) != len(program.inputs):
                raise GraphError(f"rank {rank} was given {len(given)} inputs; the program has {len(program.inputs)}")
        self.program, self.inputs, self.reads = program, inputs, reads
        self.module, nodes = lower(program)
        self.op_of = {node: program[name] for name, node in nodes.items()}
        self.starts = pairs(program).start
        self.ranks = range(len(inputs))
        self.values: list[dict[Node, Any]] = [{} for _ in inputs]
        self.flights: dict[str, _Flight] = {}

    def run(self) -> list[Any]:
        given = [iter(inputs) for inputs in self.inputs]
        for node in self.module.graph.nodes:
            if node.op == "output":
                return [self.argument(rank, node.args[0]) for rank in self.ranks]
            op = self.op_of.get(node)
            if node.op == "placeholder":
                results = [next(inputs) for inputs in given]
            elif op is not None and op.comm is not None:
                results = self.start(op, node)
            elif op is not None and op.inside is not None:
                results = self.fused(op, node)
            else:
                if op is not None and op.name in self.starts:
                    self.land(self.flights[self.starts[op.name]])
                results = [self.compute(rank, node) for rank in self.ranks]
            for rank in self.ranks:
                self.values[rank][node] = results[rank]
        return [None for _ in self.ranks]

    def compute(self, rank: int, node: Node) -> Any:
        if node.op == "get_attr":
            return reduce(getattr, str(node.target).split("."), self.module)
        op = self.op_of.get(node)
        args, kwargs = self.argument(rank, node.args), self.argument(rank, node.kwargs)
        if op is not None and op.is_wait:
            return args[0]
        if not callable(node.target):
            raise GraphError(f"%{node.name}: a {node.op} cannot be run on virtual ranks")
        return node.target(*args, **kwargs)

    def fused(self, op: Op, node: Node) -> list[Any]:
        """A matmul with a collective inside it, on all ranks."""
        assert op.inside is not None
        given = [self.argument(rank, bound(node)) for rank in self.ranks]
        peers = [peers_of(op.inside.group, rank, len(self.ranks)) for rank in self.ranks]
        return [
            run_fused(op, [given[peer] for peer in peers[rank]], peers[rank].index(rank), _reduced)
            for rank in self.ranks
        ]

    def argument(self, rank: int, arg: Any) -> Any:
        return map_arg(arg, self.values[rank].__getitem__)

    def start(self, op: Op, node: Node) -> list[Any]:
        args = [self.argument(rank, node.args) for rank in self.ranks]
        sent = [_listed(given[0]) for given in args]
        results = [self.landing(rank, op, node, args[rank]) for rank in self.ranks]
        for tensors, originals in zip(results, sent, strict=True):
            for tensor in tensors:
                if not any(tensor is original for original in originals):
                    tensor.copy_(_poison(tensor))
        if self.reads == "early":
            # What arrives is settled now, and is still not to be seen before the wait.
            sent = [[tensor.clone() for tensor in tensors] for tensors in sent]
        self.flights[op.name] = _Flight(op, args, sent, results)
        return [tensors if isinstance(op.args[0], tuple) else tensors[0] for tensors in results]

    def landing(self, rank: int, op: Op, node: Node, args: tuple[Any, ...]) -> list[Tensor]:
        """The tensors into which the results will be written."""
        if "out" in node.kwargs:
            return _listed(self.argument(rank, node.kwargs["out"]))
        if op.traits.mutates:
            return _listed(args[0])
        return [tensor.new_empty(_shape(op, tensor, args)) for tensor in _listed(args[0])]

    def land(self, flight: _Flight) -> None:
        """Let a collective finish on all ranks."""
        if flight.landed:
            return
        flight.landed = True
        arrived = [self.received(rank, flight) for rank in self.ranks]
        for results, tensors in zip(flight.results, arrived, strict=True):
            for result, tensor in zip(results, tensors, strict=True):
                result.copy_(tensor)

    def received(self, rank: int, flight: _Flight) -> list[Tensor]:
        assert flight.op.comm is not None
        peers = peers_of(flight.op.comm.group, rank, len(self.ranks))
        return [_received(flight, number, rank, peers) for number in range(len(flight.sent[rank]))]


def peers_of(group: Group, rank: int, world: int) -> tuple[int, ...]:
    """The ranks that `rank` meets in a group, whose `ranks` are those that the program's own rank meets.

    Groups are taken to be the rows of a device mesh: equally spaced, and repeated over the world.
    """
    if rank in group.ranks:
        return group.ranks
    step = group.ranks[1] - group.ranks[0] if group.size > 1 else 1
    regular = all(later - earlier == step for earlier, later in zip(group.ranks, group.ranks[1:], strict=False))
    first = rank - rank % (step * group.size) + rank % step
    peers = tuple(range(first, first + step * group.size, step))
    if not regular or step < 1 or peers[-1] >= world or rank not in peers:
        raise GraphError(f"which ranks rank {rank} meets in group {group.name} cannot be told from {group.ranks}")
    return peers


def _received(flight: _Flight, number: int, rank: int, peers: tuple[int, ...]) -> Tensor:
    """What a rank gets, of the tensor `number` of a collective."""
    comm = flight.op.comm
    assert comm is not None
    tensors = [flight.sent[peer][number] for peer in peers]
    match comm.kind:
        case "all_gather":
            return torch.cat(tensors)
        case "all_reduce":
            return _reduced(tensors, comm.reduce_op)
        case "reduce_scatter":
            return _reduced(tensors, comm.reduce_op).chunk(len(peers))[peers.index(rank)]
        case "broadcast":
            # The source is named as the program's own rank sees the group; the others' is at the same place in theirs.
            return tensors[comm.group.ranks.index(flight.args[rank][1])]
        case "all_to_all":
            parts = [torch.split(flight.sent[peer][number], flight.args[peer][2]) for peer in peers]
            return torch.cat([part[peers.index(rank)] for part in parts])
    raise GraphError(f"%{flight.op.name}: virtual ranks do not know {comm.kind}")


def _reduced(tensors: list[Tensor], reduce_op: str) -> Tensor:
    total = reduce(_REDUCTIONS[reduce_op], tensors)
    return total / len(tensors) if reduce_op == "avg" else total


def _shape(op: Op, tensor: Tensor, args: tuple[Any, ...]) -> list[int]:
    """The shape of a result, from what is really sent: it may differ from rank to rank."""
    assert op.comm is not None
    shape = list(tensor.shape)
    if op.comm.kind == "all_gather":
        shape[0] *= op.comm.group.size
    elif op.comm.kind == "reduce_scatter":
        shape[0] //= op.comm.group.size
    elif op.comm.kind == "all_to_all":
        shape[0] = sum(args[1])
    return shape


def _poison(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.full_like(tensor, float("nan"))
    return torch.full_like(tensor, True) if tensor.dtype == torch.bool else torch.full_like(tensor, 113)


def _listed(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]
