"""`Profile`: times from traces of torch.profiler, with the time that ranks wait for each other taken out.

A rank that comes to a collective early waits there for the last one, and the trace counts that as the collective's
time. With a file for every rank of a group, the same collective is looked up on all of them. None can leave an
all-gather, a reduce-scatter, an all-reduce or an exchange before all have come, so the rank that came last spent the
least time in it, and its time is that of the transfer alone. Taking the least needs no common clock, and hosts have
none; timestamps of different files are never compared. In a broadcast the source may leave early; there the longest
time counts, which still has waiting in it.

What has waiting in it is taken from the quick end of its repetitions, a tenth from the bottom; what has none, from the
middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from weft.cost.kineto import OpKey, Trace, erased, read_trace
from weft.cost.times import CollectiveKey, CollectiveTimes
from weft.cost.transfers import Transfer
from weft.errors import ProfileError
from weft.ir.args import refs
from weft.ir.dims import hint
from weft.ir.program import Collective, Op
from weft.ir.specs import TensorSpec
from weft.ir.text import counted

_QUICK = 0.1
_MEETINGS = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all"})  # nobody leaves before all came


@dataclass(frozen=True)
class Profile:
    """Measured times of ops by operator, shapes and dtypes, and of collectives.

    Strides and literals do not count: not every trace has them, and a compiler may lay out its tensors otherwise than
    the run that was profiled. `remarks` say in a line each what in the traces could not be used.
    """

    ops: Mapping[OpKey, float]
    collectives: CollectiveTimes
    remarks: tuple[str, ...] = ()

    @staticmethod
    def load(*paths: str | Path) -> Profile:
        """Read one trace, or one of each rank: Chrome JSON, packed with gzip or not. Raises ProfileError."""
        if not paths:
            raise ProfileError("name at least one trace", "a profile")
        return Profile.of([read_trace(Path(path)) for path in paths])

    @staticmethod
    def of(traces: Sequence[Trace]) -> Profile:
        """What traces say that were read already. Raises ProfileError if two are of one rank."""
        _check_ranks(traces)
        return Profile(_op_times(traces), CollectiveTimes(_collective_times(traces)), tuple(_remarks(traces)))

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        """The median time of this operator on tensors of these shapes and dtypes.

        Compiled code calls the form that is also given the memory for its result; that is the same op.
        """
        found = self.ops.get(_profiled(op, inputs))
        if found is not None:
            return found
        results = [spec for spec in op.out if isinstance(spec, TensorSpec)]
        return self.ops.get(_profiled(op, (*inputs, *results)))

    def collective_us(self, collective: Collective, total_bytes: int) -> float | None:
        """The time of a collective, as `CollectiveTimes.find` has it."""
        return self.collectives.find(collective, total_bytes)


def _profiled(op: Op, inputs: tuple[TensorSpec, ...]) -> OpKey:
    """What the profiler would record of an op: no overload, no dtypes where tensors are in lists."""
    name = "::".join(op.target.split(".")[:2])
    tensors = tuple((tuple(map(hint, spec.shape)), spec.dtype) for spec in inputs if spec.shape)
    in_lists = any(isinstance(arg, tuple) and refs(arg) for arg in (*op.args, *op.kwargs.values()))
    return (name, erased(tensors)) if in_lists else (name, tensors)


def _check_ranks(traces: Sequence[Trace]) -> None:
    seen: dict[int, str] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in seen:
            raise ProfileError(
                f"is of rank {trace.rank}, as is {seen[trace.rank]}; give one trace of each", trace.source
            )
        seen[trace.rank] = trace.source


def _op_times(traces: Iterable[Trace]) -> dict[OpKey, float]:
    times: dict[OpKey, list[float]] = {}
    for trace in traces:
        for key, found in trace.ops.items():
            times.setdefault(key, []).extend(found)
    return {key: median(found) for key, found in times.items()}


class _Sample(NamedTuple):
    key: CollectiveKey
    us: float
    waited: bool


def _collective_times(traces: Sequence[Trace]) -> dict[CollectiveKey, float]:
    samples: dict[CollectiveKey, list[_Sample]] = {}
    for sample in _samples(traces):
        samples.setdefault(sample.key, []).append(sample)
    return {key: _typical(found) for key, found in samples.items()}


def _typical(samples: Sequence[_Sample]) -> float:
    without = [sample.us for sample in samples if not sample.waited]
    if without:
        return median(without)
    ordered = sorted(sample.us for sample in samples)
    return ordered[int(_QUICK * (len(ordered) - 1))]


def _samples(traces: Sequence[Trace]) -> Iterator[_Sample]:
    """One time for each collective that is matched across ranks, and one for each rank where it cannot be matched."""
    groups: dict[object, dict[int, list[Transfer]]] = {}
    for file, trace in enumerate(traces):
        for transfer in trace.transfers:
            if transfer.group is None:
                yield _Sample(transfer.key, transfer.us, True)
            else:
                groups.setdefault(transfer.group, {}).setdefault(file, []).append(transfer)
    for of_ranks in groups.values():
        for met in _matched(list(of_ranks.values())):
            yield from _met(met)


def _matched(of_ranks: Sequence[Sequence[Transfer]]) -> Iterator[tuple[Transfer, ...]]:
    """The collectives of a group, each as the ranks saw it: by number, or else by order if all saw the same."""
    if all(transfer.number is not None for transfers in of_ranks for transfer in transfers):
        numbered = [_numbered(transfers) for transfers in of_ranks]
        for number in dict.fromkeys(number for one in numbered for number in one):
            yield tuple(one[number] for one in numbered if number in one)
        return
    looks = [list(map(_look, transfers)) for transfers in of_ranks]
    if all(one == looks[0] for one in looks):
        yield from zip(*of_ranks, strict=True)
    else:
        for transfers in of_ranks:
            yield from ((transfer,) for transfer in transfers)


def _numbered(transfers: Sequence[Transfer]) -> dict[tuple[int | None, int], Transfer]:
    """By number; those that were launched together have the same, and are told apart by their order."""
    found: dict[tuple[int | None, int], Transfer] = {}
    counts: Counter[int | None] = Counter()
    for transfer in transfers:
        found[transfer.number, counts[transfer.number]] = transfer
        counts[transfer.number] += 1
    return found


def _look(transfer: Transfer) -> object:
    """What all ranks see alike: in an exchange, each may get a different number of bytes."""
    return transfer.key.kind if transfer.key.kind == "all_to_all" else transfer.key


def _met(seen: tuple[Transfer, ...]) -> Iterator[_Sample]:
    """The time of one collective. Ranks may differ in how much they exchange; it holds for each of the sizes."""
    kind, size = seen[0].key.kind, seen[0].key.size
    times = [transfer.us for transfer in seen]
    us = min(times) if kind in _MEETINGS else max(times)
    waited = len(seen) < size or kind not in _MEETINGS
    for key in dict.fromkeys(transfer.key for transfer in seen):
        yield _Sample(key, us, waited)


def _remarks(traces: Sequence[Trace]) -> Iterator[str]:
    for trace in traces:
        if trace.unplaced:
            yield f"{trace.source}: {counted(trace.unplaced, 'collective')} of unknown kind or group not used"
        if not trace.ops:
            yield f"{trace.source}: no op has shapes; profile with record_shapes=True to use the times of ops too"
