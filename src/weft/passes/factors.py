"""Matmuls that can have a collective inside them, and what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.analysis.insides import MATMULS
from weft.ir.args import Arg, Ref
from weft.ir.dims import Dim, product
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

_MM, _LINEAR = "aten.mm.default", "aten.linear.default"
# What keeps others from being such: said of those that a collective stands next to.
OTHERS: Mapping[str, str] = {
    "aten.addmm.default": "adds to its product, which a fused op does not",
    "aten.bmm.default": "multiplies stacks of matrices, which a fused op does not",
    "aten.baddbmm.default": "multiplies stacks of matrices, which a fused op does not",
    "aten.matmul.default": "may multiply stacks of matrices, which a fused op does not",
    "aten._grouped_mm.default": "multiplies groups of rows by matrices of their own, which a fused op does not",
}
_OPTIONS = ("bias", "scale_result", "out_dtype", "use_fast_accum")  # of a scaled matmul, behind the scales


@dataclass(frozen=True)
class Matmul:
    """A matmul of a left factor, of any number of rows, by a matrix.

    - `transposed`: the right factor is given transposed, and has to be turned first
    - `scale`: that of the left factor, if it is scaled; `scale_shape` is the shape that it has to have, if another
    - `options`: what else a scaled matmul is given: bias, scale of the result, dtype, fast accumulation
    """

    name: str
    left: str
    right: str
    transposed: bool = False
    scale: str | None = None
    right_scale: str | None = None
    options: tuple[Arg, ...] = ()
    scale_shape: tuple[Dim, ...] | None = None


def matmul_of(op: Op) -> Matmul | str | None:
    """An op as such a matmul; why it is none, if it multiplies matrices; None if it does not."""
    if op.target in OTHERS:
        return f"%{op.name} ({op.target}) {OTHERS[op.target]}"
    if op.target not in MATMULS:
        return None
    match op.target, op.args:
        case "aten.mm.default", (Ref(left), Ref(right)):
            return Matmul(op.name, left, right)
        case "aten.linear.default", (Ref(left), Ref(right), *bias):
            if any(one is not None for one in bias) or op.kwargs:
                return f"%{op.name} ({op.target}) adds a bias to its product, which a fused op does not"
            return Matmul(op.name, left, right, transposed=True)
        case "aten._scaled_mm.default", (Ref(left), Ref(right), Ref(scale), Ref(right_scale), *_):
            options = tuple(_option(op, 4 + place, name) for place, name in enumerate(_OPTIONS))
            return Matmul(op.name, left, right, False, scale, right_scale, options)
    return None


def _option(op: Op, place: int, name: str) -> Arg:
    given = op.argument(place)
    given = op.argument(name) if given is None else given
    return False if given is None and name == "use_fast_accum" else given


def rows_and_depth(program: Program, matmul: Matmul) -> tuple[int, int] | None:
    """The rows of the left factor and their length; None where sizes are symbols."""
    spec = tensor(program, matmul.left)
    rows, depth = product(spec.shape[:-1]), spec.shape[-1]
    return (rows, depth) if isinstance(rows, int) and isinstance(depth, int) else None


def tensor(program: Program, name: str) -> TensorSpec:
    """The spec of a value that is one tensor."""
    (spec,) = program[name].out
    assert isinstance(spec, TensorSpec), f"%{name} is a tensor"
    return spec


def scaled_like(program: Program, matmul: Matmul, shape: tuple[Dim, ...]) -> Matmul | str:
    """The matmul with its left factor in this shape; a scale for each row has to be seen likewise."""
    if matmul.scale is None:
        return matmul
    spec = tensor(program, matmul.scale)
    if spec.numel == 1:
        return matmul
    rows = product(shape[:-1])
    if spec.shape[-1] != 1 or spec.numel != rows:
        return f"the scales of %{matmul.name} are neither one nor one for each row"
    wanted = (*shape[:-1], 1)
    return replace(matmul, scale_shape=wanted if spec.shape != wanted else None)


@dataclass(frozen=True)
class Factors:
    """What the matmuls of one fused op are given besides the left factor, in the order of torch's operators."""

    matmuls: tuple[Matmul, ...]
    program: Program

    @staticmethod
    def of(program: Program, matmuls: Sequence[Matmul]) -> Factors:
        return Factors(tuple(matmuls), program)

    @property
    def scaled(self) -> bool:
        return self.matmuls[0].scale is not None

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of all tensors among them, in the order of the arguments."""
        found = [self._right(one) for one in self.matmuls]
        for one in self.matmuls[:1]:
            found += [tensor(self.program, one.scale)] if one.scale is not None else []
        found += [tensor(self.program, one.right_scale) for one in self.matmuls if one.right_scale is not None]
        options = [arg for one in self.matmuls for arg in one.options if isinstance(arg, Ref)]
        return tuple(found + [tensor(self.program, arg.name) for arg in options])

    def gather_args(self, dim: int) -> tuple[Arg, ...]:
        rights = tuple(Ref(one.right) for one in self.matmuls)
        if not self.scaled:
            return rights, dim
        scales = tuple(_ref(one.right_scale) for one in self.matmuls)
        options = tuple(zip(*(one.options for one in self.matmuls), strict=True))
        return rights, _ref(self.matmuls[0].scale), scales, dim, *options

    def scatter_args(self, dim: int, whole: tuple[Dim, ...]) -> tuple[Arg, ...]:
        (one,) = self.matmuls
        if not self.scaled:
            return Ref(one.right), dim
        return Ref(one.right), _ref(one.scale), _ref(one.right_scale), dim, dim, whole, *one.options

    def _right(self, one: Matmul) -> TensorSpec:
        spec = tensor(self.program, one.right)
        return TensorSpec(spec.shape[::-1], spec.dtype) if one.transposed else spec


def _ref(name: str | None) -> Arg:
    return Ref(name) if name is not None else None
