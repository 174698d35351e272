"""Real arguments for a single op: tensors of the specs that it has in its program, and its literals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.errors import GraphError
from weft.fx.importer import Source
from weft.fx.literals import ArgWriter
from weft.fx.values import TO_TORCH
from weft.ir.args import Arg, Device, map_leaves
from weft.ir.dims import hint
from weft.ir.program import Op, Program
from weft.ir.specs import DTYPES, ScalarSpec, Spec, TensorSpec, row_major


def arguments(program: Program, op: Op, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an op is called with, on a device.

    Numbers are random; integers are zero, which is an index into anything. Symbols have their hints. Raises GraphError
    where an argument cannot be made up.
    """
    write = writer(program, device)
    args = tuple(write(arg) for arg in op.args)
    return args, {key: write(arg) for key, arg in op.kwargs.items()}


def writer(program: Program, device: torch.device) -> Callable[[Arg], Any]:
    """What turns the arguments of a program's ops into values that torch can be called with."""
    objects: Mapping[str, object] = program.source.objects if isinstance(program.source, Source) else {}

    def made(name: str) -> Any:
        values = [value(spec, device) for spec in program[name].out]
        return values[0] if len(values) == 1 else values

    write = ArgWriter(made, hint, objects).write
    # A program that was planned elsewhere names devices that are not here.
    return lambda arg: write(map_leaves(arg, lambda leaf: Device(str(device)) if isinstance(leaf, Device) else leaf))


def value(spec: Spec, device: torch.device) -> Any:
    """Something of a spec: a tensor, or a number of the host."""
    if isinstance(spec, TensorSpec):
        return tensor(spec, torch.device(spec.device) if spec.device else device)
    return _scalar(spec)


def tensor(spec: TensorSpec, device: torch.device) -> Tensor:
    """A tensor with the layout of a spec. Elements that share memory in it, share it here."""
    shape = [hint(size) for size in spec.shape]
    strides = [hint(stride) for stride in (row_major(spec.shape) if spec.strides is None else spec.strides)]
    dtype = TO_TORCH[spec.dtype]
    flat = torch.zeros(_span(shape, strides), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        # Zeros multiply faster than numbers on devices that save power. Not all dtypes can be drawn directly.
        drawn = dtype if DTYPES[spec.dtype] >= 2 else torch.bfloat16
        flat = torch.randn(flat.numel(), dtype=drawn, device=device).to(dtype)
    return flat.as_strided(shape, strides)


def nbytes(program: Program, op: Op) -> int:
    """The bytes that an op's arguments and results take, as they are made here."""
    made = [spec for name in op.given if name in program for spec in program[name].out]
    return sum(spec.nbytes for spec in (*made, *op.out))


def _span(shape: list[int], strides: list[int]) -> int:
    """How many elements of memory a tensor reaches over."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _scalar(spec: ScalarSpec) -> Any:
    if spec.value is not None:
        return hint(spec.value)
    if spec.dtype not in _SCALARS:
        raise GraphError(f"it takes a value of type {spec.dtype}, which cannot be made up")
    return _SCALARS[spec.dtype]


_SCALARS: Mapping[str, object] = {"int": 1, "float": 1.0, "bool": False, "none": None}
