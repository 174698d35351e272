"""What one file of torch.profiler says: how long ops took, and which collectives ran.

Ops go by the name of their ATen operator and the shapes and dtypes of their tensors. Where the trace has kernels, an
op took as long as the kernels that were launched inside it, not as long as launching them; without kernels it ran on
the CPU, and took what it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from weft.cost.events import read_events
from weft.cost.transfers import Groups, Launch, Run, Transfer, gloo_transfers, kernel_transfer, read_groups
from weft.errors import ProfileError

# Name, and shape and dtype of each tensor. The profiler does not say the dtypes in lists of tensors: then all are "".
OpKey: TypeAlias = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]

# How the profiler spells dtypes in the arguments of ops, which is how C++ does.
_INPUT_TYPES: Mapping[str, str] = {
    "double": "f64", "float": "f32", "c10::Half": "f16", "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "f8e4m3fn", "c10::Float8_e4m3fnuz": "f8e4m3fnuz", "c10::Float8_e5m2": "f8e5m2",
    "c10::Float8_e5m2fnuz": "f8e5m2fnuz", "c10::Float8_e8m0fnu": "f8e8m0fnu", "c10::Float4_e2m1fn_x2": "f4e2m1fnx2",
    "long": "i64", "long int": "i64", "int": "i32", "short": "i16", "short int": "i16", "signed char": "i8",
    "unsigned long": "u64", "long unsigned int": "u64", "unsigned int": "u32", "unsigned short": "u16",
    "short unsigned int": "u16", "unsigned char": "u8", "bool": "bool",
    "c10::complex<double>": "c128", "c10::complex<float>": "c64", "c10::complex<c10::Half>": "c32",
}  # fmt: skip
_LIST = "TensorList"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_FOREVER = 1e18  # microseconds
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})


@dataclass(frozen=True)
class Trace:
    """One file. `ops` holds the microseconds of every time that an op ran; `transfers` the collectives, in order.

    `unplaced` counts collectives of which the trace does not say how large their group was.
    """

    source: str
    rank: int | None
    ops: Mapping[OpKey, tuple[float, ...]]
    transfers: tuple[Transfer, ...]
    unplaced: int


def read_trace(path: Path) -> Trace:
    """The times in a trace. Raises ProfileError if there are none in it, and says why."""
    reader = _Reader()
    header = read_events(path, reader.take)
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    transfers, unplaced = reader.transfers(read_groups(info))
    ops = reader.times()
    if not ops and not transfers:
        raise ProfileError(_nothing(reader), str(path))
    rank = info.get("rank")
    return Trace(str(path), rank if isinstance(rank, int) else None, ops, transfers, unplaced)


def _nothing(reader: _Reader) -> str:
    if reader.calls and not any(call.key for call in reader.calls):
        return "was recorded without shapes; profile with torch.profiler.profile(record_shapes=True)"
    return "is a trace, but neither ops with shapes nor collectives are in it; was it written by torch.profiler?"


@dataclass(slots=True)
class _Call:
    """An op that ran on a thread of the host. `us` is its time there, and later that of its kernels."""

    thread: object
    begin: float
    us: float
    id: object
    key: OpKey | None
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.begin + self.us


class _Reader:
    """Takes events, and keeps of each no more than is needed."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.kernels: list[tuple[object, object, float]] = []  # id, correlation, microseconds
        self.launched_by: dict[object, object] = {}  # correlation -> id of the op
        self.communicated: dict[object, Mapping[str, Any]] = {}  # id of the op -> what it communicates
        self.collectives: list[tuple[object, float, float, Mapping[str, Any]]] = []
        self.launches: list[Launch] = []
        self.runs: list[Run] = []
        self.keys: dict[OpKey, OpKey] = {}  # one object for each: they repeat by the thousand

    def take(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name, category = str(event.get("name")), str(event.get("cat"))
        begin, us = _number(event.get("ts")), _number(event.get("dur"))
        if category in _LAUNCHES:
            self.launched_by[_correlation(args)] = _id(args)
        if begin is None or us is None:
            return
        if name.startswith("gloo:"):
            self.runs.append(Run(name, begin, us, _tensors(args)))
        elif category == "cpu_op":
            self.call(name, event.get("tid"), args, begin, us)
        elif category in _ON_DEVICE and name.startswith("nccl"):
            self.collectives.append((_id(args), begin, us, args))
        elif category in _ON_DEVICE:
            self.kernels.append((_id(args), _correlation(args), us))

    def call(self, name: str, thread: object, args: Mapping[str, Any], begin: float, us: float) -> None:
        if "Collective name" in args:
            self.communicated[_id(args)] = args
        if name.startswith("c10d::"):
            self.launches.append(Launch(name, begin, _shapes(args)))
        key = _key(name, args)
        key = self.keys.setdefault(key, key) if key is not None else None
        self.calls.append(_Call(thread, begin, us, _id(args), key))

    def times(self) -> dict[OpKey, tuple[float, ...]]:
        on_device = bool(self.kernels)
        if on_device:
            self.count_kernels()
        times: dict[OpKey, list[float]] = {}
        for call in self.calls:
            # An op without kernels did nothing on the device, or what it did cannot be traced back to it.
            if call.key is not None and (call.us > 0 or not on_device):
                times.setdefault(call.key, []).append(call.us)
        return {key: tuple(found) for key, found in times.items()}

    def count_kernels(self) -> None:
        """Let every call take as long as its kernels, and those of the calls inside it."""
        own: dict[object, float] = {}
        for id_, correlation, us in self.kernels:
            caller = id_ if id_ is not None else self.launched_by.get(correlation)
            own[caller] = own.get(caller, 0.0) + us
        inside: list[_Call] = []
        for call in sorted(self.calls, key=lambda one: (str(one.thread), one.begin, -one.us)):
            call.us = own.get(call.id, 0.0) if call.id is not None else 0.0
            while inside and (inside[-1].thread != call.thread or inside[-1].end <= call.begin):
                _close(inside)
            inside.append(call)
        while inside:
            _close(inside)

    def transfers(self, groups: Groups) -> tuple[tuple[Transfer, ...], int]:
        found: list[Transfer | None] = []
        for id_, begin, us, args in self.collectives:
            found.append(kernel_transfer({**self.communicated.get(id_, {}), **args}, groups, begin, us))
        found += gloo_transfers(self.launches, self.runs, groups)
        known = [one for one in found if one is not None]
        return tuple(sorted(known, key=lambda one: one.begin)), len(found) - len(known)


def _close(inside: list[_Call]) -> None:
    """End the innermost call; what its kernels took, the call around it took too."""
    ended = inside.pop()
    if inside and inside[-1].thread == ended.thread:
        inside[-1].us += ended.us


def _id(args: Mapping[str, Any]) -> object:
    found = args.get("External id", args.get("external id"))
    return found if isinstance(found, int) else None


def _correlation(args: Mapping[str, Any]) -> object:
    found = args.get("correlation")
    return found if isinstance(found, int) else None


def _number(value: object) -> float | None:
    """A time; None for what cannot be one. JSON has integers that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _FOREVER:
        return None
    return float(value)


def _key(name: str, args: Mapping[str, Any]) -> OpKey | None:
    """What an op is found by; None if the trace does not say its shapes.

    Tensors without dimensions are left out: the profiler writes numbers as such.
    """
    if "Input Dims" not in args:
        return None
    tensors = tuple(tensor for tensor in _tensors(args) if tensor[0])
    return (name, erased(tensors)) if any(not dtype for _, dtype in tensors) else (name, tensors)


def erased(tensors: tuple[tuple[tuple[int, ...], str], ...]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """The same shapes, without their dtypes."""
    return tuple((shape, "") for shape, _ in tensors)


def _tensors(args: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and dtype of each tensor argument, those in lists one by one and without a dtype."""
    found: list[tuple[tuple[int, ...], str]] = []
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return ()
    for shape, kind in zip(dims, types, strict=False):
        if kind == _LIST and isinstance(shape, list):
            found += [(_ints(one), "") for one in shape]
        elif isinstance(kind, str) and kind in _INPUT_TYPES:
            found.append((_ints(shape), _INPUT_TYPES[kind]))
    return tuple(found)


def _shapes(args: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each argument the shapes of its tensors: several for a list, none for what is no tensor."""
    dims = args.get("Input Dims")
    found = []
    for shape in dims if isinstance(dims, list) else []:
        nested = isinstance(shape, list) and any(isinstance(one, list) for one in shape)
        found.append(tuple(_ints(one) for one in (shape if nested else [shape] if shape else [])))
    return tuple(found)


def _ints(shape: object) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
