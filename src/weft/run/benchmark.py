"""Times by measurement: every distinct op of a program, and its collectives, run on the device at hand."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch

from weft.analysis.kernels import Kernel, input_specs, kernel
from weft.cost.times import Times, op_key
from weft.errors import WeftError
from weft.fx.names import resolve
from weft.ir.program import Op, Program
from weft.ir.text import print_value
from weft.run.cache import load_times, save_times, user_cache
from weft.run.inputs import arguments, nbytes

# What is measured now, how many are done, and how many there are.
Progress: TypeAlias = Callable[[str, int, int], None]

_ENOUGH_S, _LEAST, _MOST = 0.1, 3, 50  # seconds to spend on an op, and how often it runs at least and at most
_MEMORY_SHARE = 0.5  # of what is free: the op itself needs room too
# How much they compute is in the values of an integer tensor, which are made up here.
_BY_VALUE = frozenset({"aten._grouped_mm.default", "aten._scaled_grouped_mm.default"})


def benchmark(
    program: Program,
    *,
    device: torch.device | str | None = None,
    cache: Path | Literal["user"] | None = "user",
    fused: bool = False,
    progress: Progress | None = None,
) -> Times:
    """Time each distinct op of a program that is a kernel of its own; with `fused`, those too that would share one.

    `device` is the accelerator if there is one, else the CPU. Times that are in the cache are not measured again; None
    keeps none. An op that cannot be run alone is left out, with a remark. Ops of unknown effect are never run.
    """
    where = present_device(device)
    path = user_cache() if cache == "user" else cache
    name = device_name(where)
    known = load_times(path, name) if path is not None else {}
    wanted = _distinct(program, fused)
    new: dict[str, float] = {}
    remarks: list[str] = []
    try:
        for number, (key, op) in enumerate(wanted.items()):
            if progress is not None:
                progress(op.target, number, len(wanted))
            if key not in known:
                found = _attempt(program, op, where)
                if isinstance(found, str):
                    remarks.append(f"{print_value(op.name)} ({op.target}) was not measured: {found}")
                else:
                    new[key] = found
    finally:  # what was measured before somebody lost patience is not lost
        if path is not None and new:
            save_times(path, name, new)
    return Times({key: us for key, us in (known | new).items() if key in wanted}, remarks=tuple(remarks))


def present_device(device: torch.device | str | None = None) -> torch.device:
    """The device that is named, or else the accelerator that torch would use, or the CPU. Raises WeftError."""
    if device is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=device).device
    except Exception as error:  # how a device that is not here fails is different for each kind
        raise WeftError(f"device {device} cannot be used: {str(error).splitlines()[0]}") from error


def device_name(device: torch.device) -> str:
    """What times depend on, besides the op: the device, and the torch that drives it."""
    torch_name = f"torch {torch.__version__}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {torch_name}"
    if device.type == "cpu":
        return f"{_cpu_name()}, {torch.get_num_threads()} threads, {torch_name}"
    return f"{device.type}, {torch_name}"


def _cpu_name() -> str:
    """The processor's model where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _distinct(program: Program, fused: bool) -> dict[str, Op]:
    """The ops to be measured, by their key: of those that are alike, the first."""
    found: dict[str, Op] = {}
    for op in program.ops:
        if op.traits.barrier or op.traits.communicates:
            continue
        inputs = input_specs(program, op)
        kind = kernel(op, inputs)
        if kind is Kernel.ALONE or (fused and kind is not Kernel.FREE):
            found.setdefault(op_key(op, inputs), op)
    return found


def _attempt(program: Program, op: Op, device: torch.device) -> float | str:
    """The time of an op in microseconds, or the reason why it has none."""
    if op.target in _BY_VALUE:
        return "how much it computes depends on the values of its arguments"
    if (needed := nbytes(program, op)) > (room := _MEMORY_SHARE * free_bytes(device)):
        return f"it needs {needed / 2**30:.1f} GiB, and there is room for {room / 2**30:.1f}"
    try:
        function = resolve(op.target)
        args, kwargs = arguments(program, op, device)
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            return _timed(lambda: function(*args, **kwargs), device)
    except WeftError as error:
        return str(error)
    except Exception as error:  # an operator may raise anything, and only its own time is lost
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def _timed(call: Callable[[], Any], device: torch.device) -> float:
    """The median of several runs, in microseconds, after the first, which also makes room and picks algorithms."""
    clock = _on_cuda if device.type == "cuda" else _on_host
    call()
    times: list[float] = []
    while len(times) < _LEAST or (sum(times) < _ENOUGH_S * 1e6 and len(times) < _MOST):
        times.append(clock(call, device))
    return median(times)


def _on_host(call: Callable[[], Any], device: torch.device) -> float:
    begin = perf_counter()
    call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return (perf_counter() - begin) * 1e6


def _on_cuda(call: Callable[[], Any], device: torch.device) -> float:
    stream = torch.cuda.current_stream(device)
    begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    stream.synchronize()
    begin.record(stream)
    call()
    end.record(stream)
    stream.synchronize()
    return begin.elapsed_time(end) * 1e3


def free_bytes(device: torch.device) -> float:
    """How much memory is left on a device, as far as it tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return float("inf")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kilobytes[0] * 1024 if kilobytes else float("inf")
