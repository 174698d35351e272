"""What matmuls with a collective inside them are given, and what they give back.

The layouts of results are those of torch's operators: what is gathered along a dimension lies there with that dimension
outermost, and what is scattered lies row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.args import Dtype
from weft.ir.dims import Dim, hint
from weft.ir.program import Op
from weft.ir.specs import ScalarSpec, Spec, TensorSpec, row_major

GATHERS = ("all_gather_matmul.fused", "all_gather_scaled_matmul.fused")
SCALED = ("all_gather_scaled_matmul.fused", "scaled_matmul_reduce_scatter.fused")


@dataclass(frozen=True)
class Fused:
    """The parts of such an op: the left factor, the right ones, the dimension that is gathered or scattered.

    - `dtypes`: of the products
    - `whole`: the shape of what is gathered, or of the product that is scattered
    """

    left: TensorSpec
    rights: tuple[TensorSpec, ...]
    dim: int
    ranks: int
    dtypes: tuple[str, ...]
    whole: tuple[Dim, ...]

    @property
    def along_last(self) -> bool:
        """Whether the last dimension is gathered, which the matmuls contract, or that of the product is scattered."""
        return self.dim == len(self.whole) - 1


def fused_parts(op: Op, inputs: tuple[TensorSpec, ...]) -> Fused | str:
    """The parts of an op with a collective inside it, or what is wrong with its arguments.

    `inputs` are the specs of its tensor arguments, in order.
    """
    if op.inside is None or not inputs:
        return "needs a group and two matrices"
    gathers, scaled = op.target in GATHERS, op.target in SCALED
    dim = op.argument((4 if gathers else 5) if scaled else 2)
    listed = op.argument(1)
    count = len(listed) if isinstance(listed, tuple) else 1
    left, rights, ranks = inputs[0], inputs[1 : 1 + count], op.inside.group.size
    if not isinstance(dim, int) or len(left.shape) < 2 or not 0 <= dim < len(left.shape):
        return "needs a matrix and a dimension of it"
    if len(rights) != count or not count or any(len(right.shape) != 2 for right in rights):
        return "needs matrices to multiply by"
    depth = left.shape[-1] * (ranks if gathers and dim == len(left.shape) - 1 else 1)
    if any(hint(right.shape[0]) != hint(depth) for right in rights):
        return f"multiplies rows of {depth} by matrices with {', '.join(str(one.shape[0]) for one in rights)} rows"
    whole = _along(left.shape, dim, ranks) if gathers else (*left.shape[:-1], rights[0].shape[1])
    if not gathers and hint(whole[dim]) % ranks:
        return f"cannot scatter {whole[dim]} among {ranks} ranks"
    return Fused(left, rights, dim, ranks, _dtypes(op, left, count), whole)


def fused_results(op: Op, inputs: tuple[TensorSpec, ...]) -> tuple[Spec, ...] | str:
    """What such an op gives back, or what is wrong with its arguments."""
    found = fused_parts(op, inputs)
    if isinstance(found, str):
        return found
    if op.target not in GATHERS:
        shape = (*found.whole[: found.dim], found.whole[found.dim] // found.ranks, *found.whole[found.dim + 1 :])
        return (TensorSpec(shape, found.dtypes[0]),)
    first = found.dim if not found.along_last else 0
    gathered: Spec = TensorSpec(found.whole, found.left.dtype, outermost(found.whole, first))
    if op.kwargs.get("return_A") is False:
        gathered = ScalarSpec("none")
    shapes = [(*found.whole[:-1], right.shape[1]) for right in found.rights]
    products = zip(shapes, found.dtypes, strict=True)
    return gathered, *(TensorSpec(shape, dtype, outermost(shape, first)) for shape, dtype in products)


def outermost(shape: tuple[Dim, ...], dim: int) -> tuple[Dim, ...] | None:
    """The strides of a tensor that lies row by row but for `dim`, which comes first; None if that is row by row."""
    if all(size == 1 for size in shape[:dim]):
        return None
    first, *rest = row_major((shape[dim], *shape[:dim], *shape[dim + 1 :]))
    return (*rest[:dim], first, *rest[dim:])


def _along(shape: tuple[Dim, ...], dim: int, times: int) -> tuple[Dim, ...]:
    return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])


def _dtypes(op: Op, left: TensorSpec, count: int) -> tuple[str, ...]:
    """Of the products: that of the left factor where nothing else is said."""
    said = op.argument(7) if op.target == GATHERS[1] else op.argument(9) if op.target in SCALED else None
    listed = said if isinstance(said, tuple) else (said,) * count
    return tuple(one.name if isinstance(one, Dtype) else left.dtype for one in listed)
