"""Times of a program's collectives by measurement, on the ranks that are here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName, ProcessGroup, _resolve_process_group  # type: ignore[attr-defined]

from weft.analysis.traffic import total_bytes
from weft.cost.times import CollectiveKey, CollectiveTimes, Times, layout
from weft.errors import WeftError
from weft.fx.collectives import WAIT, write_collective
from weft.ir.dims import hint
from weft.ir.program import Collective, Op, Program
from weft.ir.text import print_value
from weft.run.benchmark import Progress, free_bytes, present_device
from weft.run.inputs import nbytes, writer

_WARM_UP, _TIMES = 2, 7  # the same on all ranks, whatever their clocks say: they have to stay in step
_MEMORY_SHARE = 0.5


def benchmark_collectives(
    program: Program, *, device: torch.device | str | None = None, progress: Progress | None = None
) -> Times:
    """Time each distinct collective of a program; every rank must call this, with its program, and gets the same times.

    torch.distributed must be initialised, and know the program's groups by their names. Exchanges are measured with
    even parts. A collective that cannot be measured is left out on all ranks, with a remark. Raises WeftError if ranks
    have different collectives.
    """
    if not dist.is_initialized():
        raise WeftError("collectives are measured between ranks: start this with torchrun, or in weft.run.local_ranks")
    where = present_device(device if device is not None or _is_nccl() else "cpu")
    wanted = _distinct(program)
    _check_same([key for key, _ in wanted])
    us: dict[CollectiveKey, float] = {}
    remarks: list[str] = []
    for number, (key, op) in enumerate(wanted):
        if progress is not None:
            progress(key.kind, number, len(wanted))
        made = _made(program, op, where)
        # A rank that cannot take part must say so before the others begin, or they wait for ever.
        reason = next((why for why in _from_all(made if isinstance(made, str) else "") if why), "")
        if reason or isinstance(made, str):
            remarks.append(f"{print_value(op.name)} ({key.kind}) was not measured: {reason}")
        else:
            us[key] = min(_timed(made, where), us.get(key, inf))  # groups that lie alike differ by chance
    return Times(collectives=CollectiveTimes(us), remarks=tuple(remarks))


@dataclass(frozen=True)
class _Call:
    """A collective with its arguments, and the ranks that take part."""

    run: Callable[[], Any]
    group: ProcessGroup


def _is_nccl() -> bool:
    return "nccl" in str(dist.get_backend())


def _distinct(program: Program) -> list[tuple[CollectiveKey, Op]]:
    """The collectives to be measured, in the program's order: the first of each kind, size and group."""
    found: dict[tuple[CollectiveKey, str], Op] = {}
    for op in program.starts:
        assert op.comm is not None
        group = op.comm.group
        key = CollectiveKey(op.comm.kind, group.size, layout(group.ranks), total_bytes(op))
        found.setdefault((key, group.name), op)
    return [(key, op) for (key, _), op in found.items()]


def _check_same(keys: list[CollectiveKey]) -> None:
    for rank, others in enumerate(_from_all(keys)):
        if others != keys:
            raise WeftError(f"rank {rank} has other collectives than this one; all must be given the same program")


def _from_all(value: Any) -> list[Any]:
    """What every rank has to say, in their order."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _made(program: Program, op: Op, device: torch.device) -> _Call | str:
    """A collective that is ready to run, or the reason why it cannot be."""
    assert op.comm is not None
    wanted = op.comm.group
    if nbytes(program, op) > _MEMORY_SHARE * free_bytes(device) / dist.get_world_size():
        return "it needs more memory than there is"
    try:
        group = _resolve_process_group(GroupName(wanted.name))
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks != wanted.ranks:
            return f"group {wanted.name} has the ranks {ranks} here, and {wanted.ranks} in the program"
        kwargs = {name: arg for name, arg in op.kwargs.items() if name != "group"}
        spelled = replace(op, args=_even(op, op.comm), kwargs=kwargs)
        function, args, named = write_collective(spelled, writer(program, device))
    except Exception as error:  # whatever it is, all ranks have to hear of it
        return f"{type(error).__name__}: {error}"
    return _Call(lambda: function(*args, **named), group)


def _even(op: Op, comm: Collective) -> tuple[Any, ...]:
    """The arguments of a start; an exchange sends the same to everybody, as ranks know only their own parts."""
    if comm.kind != "all_to_all":
        return op.args
    rows, rest = divmod(hint(op.out[0].shape[0]), comm.group.size)
    if rest:
        raise WeftError(f"{hint(op.out[0].shape[0])} rows cannot be exchanged evenly among {comm.group.size}")
    return op.args[0], (rows,) * comm.group.size, (rows,) * comm.group.size


def _timed(call: _Call, device: torch.device) -> float:
    """The median of several runs in microseconds, and then of all ranks."""
    times = [_once(call, device) for _ in range(_WARM_UP + _TIMES)]
    return float(median(_from_all(median(times[_WARM_UP:]))))


def _once(call: _Call, device: torch.device) -> float:
    dist.barrier(call.group)
    _synchronise(device)
    begin = perf_counter()
    result = call.run()
    for tensor in result if isinstance(result, list | tuple) else [result]:
        WAIT(tensor)
    _synchronise(device)
    return (perf_counter() - begin) * 1e6


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
