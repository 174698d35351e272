"""Values: from the fake tensors and symbolic numbers in a node's metadata to specs, and back to fake tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._sympy import functions as torch_sympy

from weft.errors import GraphError
from weft.ir.dims import Atom, Call, Dim, Expr, call, product, symbol
from weft.ir.specs import DTYPES, ScalarSpec, Spec, TensorSpec, row_major

UNKNOWN_SIZE = 8192  # the hint of a size that depends on data: torch has none either

TO_TORCH: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
        "f8e4m3fn": torch.float8_e4m3fn, "f8e4m3fnuz": torch.float8_e4m3fnuz, "f8e5m2": torch.float8_e5m2,
        "f8e5m2fnuz": torch.float8_e5m2fnuz, "f8e8m0fnu": torch.float8_e8m0fnu, "f4e2m1fnx2": torch.float4_e2m1fn_x2,
        "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u64": torch.uint64,
        "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8, "bool": torch.bool,
        "c128": torch.complex128, "c64": torch.complex64, "c32": torch.complex32,
        "qi8": torch.qint8, "qu8": torch.quint8, "qi32": torch.qint32,
    }
)  # fmt: skip
FROM_TORCH: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in TO_TORCH.items()})

_INT = frozenset({int})
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class SpecReader:
    """Reads specs off metadata. `main_device` is the type of the device that the graph runs on."""

    def __init__(self, main_device: str) -> None:
        self._main_device = main_device
        self._sizes: dict[sympy.Basic, Dim] = {}
        self._specs: dict[tuple[Any, ...], tuple[TensorSpec]] = {}  # by what torch says, and by what that means

    def specs(self, value: Any) -> tuple[Spec, ...]:
        """The specs of a node's results: several for a tuple or list of values."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        return tuple(map(self.spec, value)) if isinstance(value, tuple | list) else (self.spec(value),)

    def spec(self, value: Any) -> Spec:
        """The spec of one value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)[0]
        if value is None:
            return ScalarSpec("none")
        if isinstance(value, bool | torch.SymBool):
            return ScalarSpec("bool")
        if isinstance(value, int | torch.SymInt):
            return ScalarSpec("int", self.dim(value))
        if isinstance(value, float | torch.SymFloat):
            return ScalarSpec("float")
        return ScalarSpec("str" if isinstance(value, str) else "object")

    def dim(self, size: int | torch.SymInt) -> Dim:
        """A size, symbolic if torch's is. Never adds a guard."""
        if isinstance(size, int):
            return size
        return self._size(size.node.expr, size.node.shape_env)

    def _tensor(self, value: torch.Tensor) -> tuple[TensorSpec]:
        strides = value.stride() if value.layout is torch.strided else None
        device = value.fake_device if type(value) is FakeTensor else value.device
        key = (value.shape, strides, value.dtype, device)
        try:
            return self._specs[key]
        except KeyError:
            found = self._specs[key] = self._new(*key)
            return found
        except TypeError:  # sizes that are symbols cannot be looked up
            return self._new(*key)

    def _new(
        self,
        sizes: Sequence[int | torch.SymInt],
        steps: Sequence[int | torch.SymInt] | None,
        given: torch.dtype,
        where: torch.device,
    ) -> tuple[TensorSpec]:
        dtype = FROM_TORCH.get(given)
        if dtype is None:
            raise GraphError(f"Weft does not know the dtype {given}")
        shape = self._dims(sizes)
        strides = self._dims(steps) if steps is not None else None
        key = (shape, strides, dtype, where.type)
        if key not in self._specs:
            usual = strides is None or _is_row_major(shape, strides)
            device = "" if where.type == self._main_device else where.type
            self._specs[key] = (TensorSpec(shape, dtype, None if usual else strides, device),)
        return self._specs[key]

    def _dims(self, sizes: Sequence[int | torch.SymInt]) -> tuple[Dim, ...]:
        # Nearly always these are plain numbers.
        return tuple(sizes) if {*map(type, sizes)} <= _INT else tuple(map(self.dim, sizes))  # type: ignore[arg-type]

    def _size(self, expression: sympy.Basic, shape_env: Any) -> Dim:
        if expression not in self._sizes:
            self._sizes[expression] = self._convert(expression, shape_env)
        return self._sizes[expression]

    def _convert(self, expression: sympy.Basic, shape_env: Any) -> Dim:
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            value = shape_env.backed_var_to_val.get(expression, UNKNOWN_SIZE)
            return symbol(_plain(str(expression)), int(value))
        if isinstance(expression, sympy.Add | sympy.Mul) and all(arg.is_integer for arg in expression.args):
            return _fold(expression, [self._size(arg, shape_env) for arg in expression.args])
        if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer) and expression.exp > 0:
            return product([self._size(expression.base, shape_env)] * int(expression.exp))
        function = _FUNCTIONS.get(type(expression).__name__)
        if function is not None and len(expression.args) == 2:
            left, right = (self._size(arg, shape_env) for arg in expression.args)
            return _apply(function, left, right)
        # Anything else keeps its value as a hint and becomes a symbol of its own.
        known = expression.xreplace(shape_env.backed_var_to_val)
        hint = int(known) if known.is_number else UNKNOWN_SIZE
        return symbol(f"e{len(self._sizes)}_{_plain(type(expression).__name__)}", hint)


_FUNCTIONS = {
    torch_sympy.FloorDiv.__name__: "//",
    torch_sympy.CleanDiv.__name__: "//",
    torch_sympy.Mod.__name__: "mod",
    torch_sympy.PythonMod.__name__: "mod",
    "Max": "max",
    "Min": "min",
}


def _apply(function: str, left: Dim, right: Dim) -> Dim:
    if function == "//":
        return left // right
    return left % right if function == "mod" else call(function, left, right)


def _fold(expression: sympy.Basic, parts: list[Dim]) -> Dim:
    result, *rest = parts
    for part in rest:
        result = result + part if isinstance(expression, sympy.Add) else result * part
    return result


def _plain(name: str) -> str:
    plain = _PLAIN_NAME.fullmatch(name) and name not in DTYPES  # torch's u8 may be a size; here it is a dtype
    return name if plain else "x_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def _is_row_major(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Whether elements lie row by row; the stride of a dimension of one is never used."""
    pairs = zip(shape, strides, row_major(shape), strict=True)
    return 0 in shape or all(
        size == 1 or stride == usual or _unclamped(stride) == _unclamped(usual) for size, stride, usual in pairs
    )


def _unclamped(stride: Dim) -> Dim:
    """A stride without torch's guards against empty dimensions: where there are elements, max(1, n) is n."""
    if isinstance(stride, int):
        return stride
    total: Dim = 0
    for atoms, factor in stride.terms:
        total = total + product([factor, *map(_unclamped_atom, atoms)])
    return total


def _unclamped_atom(atom: Atom) -> Dim:
    if isinstance(atom, Call) and atom.function == "max" and 1 in atom.args:
        return atom.args[1 - atom.args.index(1)]
    return Expr((((atom,), 1),))


def fake_input(spec: TensorSpec) -> torch.Tensor:
    """A tensor of a spec without symbols, on the CPU; fake if called under a FakeTensorMode."""
    strides = spec.strides if spec.strides is not None else row_major(spec.shape)
    return torch.empty_strided(_ints(spec.shape), _ints(strides), dtype=TO_TORCH[spec.dtype])


def _ints(dims: tuple[Dim, ...]) -> list[int]:
    return [size for size in dims if isinstance(size, int)]
