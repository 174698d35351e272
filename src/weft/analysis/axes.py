"""Along which dimension an op works piece by piece: what it must be given to make a part of its result, and no more.

Rows of a tensor are followed through a program: a gather repeats them for every rank, a view folds them into another
dimension, a matmul keeps them where they are those of its left argument. An `Axis` says where they are in a value. All
rules go backwards, from the part of a result that is wanted to the parts of the arguments that it takes; what follows
from a part of an argument is found by trying which part of the result takes just that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from weft.analysis.kernels import ELEMENTWISE, slice_args
from weft.ir.args import Arg, Ref
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the rows of a region are in a value: dimension `dim` is `outer` times all rows of `inner` elements each,
    less `dropped` elements at its end, which were padding."""

    dim: int
    outer: int = 1
    inner: int = 1
    dropped: int = 0


Given = Mapping[str, Axis]  # the arguments that are cut, and where; all others are given whole


def rows_of(program: Program, size: int) -> Rows:
    """The rules for regions of a Program that have so many rows."""
    return program.fact(_RowsOf(size))


@dataclass(frozen=True)
class _RowsOf:
    """The analysis that gives them."""

    size: int

    def __call__(self, program: Program) -> Rows:
        return Rows(program, self.size)


class Rows:
    """The rules for a region that has `size` rows. What was asked once is known."""

    def __init__(self, program: Program, size: int) -> None:
        self.program, self.size = program, size
        self._known: dict[tuple[str, Axis], Given | None] = {}

    def given(self, op: Op, axis: Axis) -> Given | None:
        """What an op takes to make a part of its result along an axis. None if it cannot be cut there, or nobody knows
        how."""
        key = op.name, axis
        if key not in self._known:
            self._known[key] = self._given(op, axis)
        return self._known[key]

    def _given(self, op: Op, axis: Axis) -> Given | None:
        rule = RULES.get(op.target) or (_elementwise if op.target in ELEMENTWISE else None)
        made = self.spec(op)
        if rule is None or made is None or op.traits.random or not self.is_at(made, axis):
            return None
        if self.full(made, axis) is None:  # chunks of it could not be put together
            return None
        found = rule(self, op, made, axis)
        if found is None or not all(self.is_at(self.of(name), one) for name, one in found.items()):
            return None
        return found

    def result(self, op: Op, name: str, axis: Axis) -> Axis | None:
        """Where the rows are in the result of an op of which one argument has them there; None if it mixes them."""
        made = self.spec(op)
        if made is None:
            return None
        for one in self._possible(op, made, axis):
            found = self.given(op, one)
            if found is not None and found.get(name) == axis:
                return one
        return None

    def spec(self, op: Op) -> TensorSpec | None:
        """What an op makes, if that is tensors that the same rows are in: several of them count as the first."""
        specs = [spec for spec in op.out if isinstance(spec, TensorSpec)]
        return specs[0] if specs and len(specs) == len(op.out) else None

    def of(self, name: str) -> TensorSpec | None:
        return self.spec(self.program[name])

    def tensors(self, op: Op) -> list[tuple[str, TensorSpec]]:
        """The tensors that an op is given, in order, each once."""
        names = dict.fromkeys(op.given)
        return [(name, spec) for name in names if (spec := self.of(name)) is not None]

    def full(self, spec: TensorSpec, axis: Axis) -> tuple[int, ...] | None:
        """The shape with what was dropped; None if it is not all numbers."""
        shape = tuple(size for size in spec.shape if isinstance(size, int))
        if len(shape) != len(spec.shape):
            return None
        return (*shape[: axis.dim], shape[axis.dim] + axis.dropped, *shape[axis.dim + 1 :])

    def is_at(self, spec: TensorSpec | None, axis: Axis) -> bool:
        if spec is None or not 0 <= axis.dim < len(spec.shape):
            return False
        whole = spec.shape[axis.dim]
        return isinstance(whole, int) and whole + axis.dropped == axis.outer * self.size * axis.inner

    def _possible(self, op: Op, made: TensorSpec, axis: Axis) -> Iterator[Axis]:
        """Where the rows might be in a result: in a dimension of which they are a part."""
        if op.target == "aten.slice.Tensor":
            yield axis  # as it was, or shorter
            given = self.of(op.given[0])
            if given is not None and axis.dim < len(made.shape):
                was, now = given.shape[axis.dim], made.shape[axis.dim]
                if isinstance(was, int) and isinstance(now, int) and now < was:
                    yield replace(axis, dropped=axis.dropped + was - now)
            return
        yield axis  # for most ops it is the same
        for dim, whole in enumerate(made.shape):
            if not isinstance(whole, int) or not whole or (whole + axis.dropped) % self.size:
                continue
            times = (whole + axis.dropped) // self.size
            yield from (
                Axis(dim, outer, times // outer, axis.dropped) for outer in range(1, times + 1) if times % outer == 0
            )


Rule = Callable[[Rows, Op, TensorSpec, Axis], Given | None]


# One rule for each kind of op: what it takes for a part of its result


def _elementwise(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """The same part of each argument; one that is spread over that dimension is given whole."""
    found: dict[str, Axis] = {}
    for name, spec in rows.tensors(op):
        dim = axis.dim - len(made.shape) + len(spec.shape)
        if dim >= 0 and (spec.shape[dim] != 1 or made.shape[axis.dim] == 1):
            found[name] = replace(axis, dim=dim)
    return found


def _same(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    return {op.given[0]: axis} if len(op.given) == 1 else None


def _viewed(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """The elements stay in their order, so the rows are where as many elements come before them and in each of them."""
    given, shape = rows.tensors(op), rows.full(made, axis)
    if len(given) != 1 or shape is None:
        return None
    name, spec = given[0]
    before = prod(shape[: axis.dim]) * axis.outer
    each = axis.inner * prod(shape[axis.dim + 1 :])
    missing = axis.dropped * prod(shape[axis.dim + 1 :])
    if axis.dropped and before != axis.outer:
        return None
    seen = 1
    for dim, size in enumerate(spec.shape):
        if not isinstance(size, int) or seen == 0:
            return None
        behind = _numbers(spec.shape[dim + 1 :])
        if behind is None:
            return None
        each_here = max(1, prod(behind))
        if before % seen == 0 and each % each_here == 0 and missing % each_here == 0:
            found = Axis(dim, before // seen, each // each_here, missing // each_here)
            if rows.is_at(spec, found):
                return {name: found}
        seen *= size
    return None


def _squeezed(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """If all dimensions that it names are gone: one that stays might be gone from a chunk, which has fewer rows."""
    (_, spec), dims = rows.tensors(op)[0], op.argument(1)
    named = (dims,) if isinstance(dims, int) else _items(dims)
    if not all(isinstance(dim, int) and spec.shape[dim] == 1 for dim in named):
        return None
    return _viewed(rows, op, made, axis)


def _numbers(shape: tuple[object, ...]) -> list[int] | None:
    found = [size for size in shape if isinstance(size, int)]
    return found if len(found) == len(shape) else None


def _expanded(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    (name, spec) = rows.tensors(op)[0]
    dim = axis.dim - len(made.shape) + len(spec.shape)
    if dim < 0 or spec.shape[dim] != made.shape[axis.dim]:
        return None  # all parts are the same
    return {name: replace(axis, dim=dim)}


def _permuted(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    (name, spec) = rows.tensors(op)[0]
    order = list(range(len(spec.shape)))
    match op.target, op.args[1:]:
        case "aten.t.default", _:
            order.reverse()
        case "aten.transpose.int", (int(one), int(other)):
            order[one], order[other] = order[other], order[one]
        case "aten.permute.default", (tuple() as dims,):
            order = [dim % len(order) for dim in dims if isinstance(dim, int)]
    return {name: replace(axis, dim=order[axis.dim])}


def _sliced(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Along another dimension, or no more than what is at the end of this one."""
    (name, spec) = rows.tensors(op)[0]
    dim, first, _, step = slice_args(op)
    if len(op.given) != 1 or not isinstance(dim, int | None) or step not in (1, None):
        return None
    if (dim or 0) % len(spec.shape) != axis.dim:
        return {name: axis}
    was, now = spec.shape[axis.dim], made.shape[axis.dim]
    if first not in (0, None) or not isinstance(was, int) or not isinstance(now, int) or was - now > axis.dropped:
        return None
    return {name: replace(axis, dropped=axis.dropped - (was - now))}


def _split(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Along another dimension, or into equal parts that have all rows."""
    (name, spec) = rows.tensors(op)[0]
    dim = op.argument(2) or op.argument("dim") or 0
    if not isinstance(dim, int) or axis.dropped:
        return None
    if dim % len(spec.shape) != axis.dim:
        return {name: axis}
    equal = all(isinstance(one, TensorSpec) and one.shape == made.shape for one in op.out)
    return {name: replace(axis, outer=axis.outer * len(op.out))} if equal else None


def _taken(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """One of several results that have the same rows at the same place."""
    return {op.given[0]: axis}


def _concatenated(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Along another dimension, or of parts that have all rows."""
    dim = op.argument(1) or op.argument("dim") or 0
    if not isinstance(dim, int) or axis.dropped:
        return None
    if dim % len(made.shape) != axis.dim:
        return {name: axis for name, _ in rows.tensors(op)}
    found: dict[str, Axis] = {}
    for name, spec in rows.tensors(op):
        size = spec.shape[axis.dim]
        if not isinstance(size, int) or size % (rows.size * axis.inner):
            return None
        found[name] = replace(axis, outer=size // (rows.size * axis.inner))
    return found if len(op.given) == len(found) else None


def _reduced(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Over other dimensions."""
    (name, spec) = rows.tensors(op)[0]
    dims = op.argument(1)
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(dims, tuple) or not dims:
        return None
    gone = {dim % len(spec.shape) for dim in dims if isinstance(dim, int)}
    left = [dim for dim in range(len(spec.shape)) if dim not in gone]
    dim = axis.dim if len(made.shape) == len(spec.shape) else left[axis.dim]
    return None if dim in gone else {name: replace(axis, dim=dim)}


def _along_rows(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Softmaxes over another dimension."""
    dim = op.argument(1)
    if not isinstance(dim, int) or dim % len(made.shape) == axis.dim:
        return None
    return {name: axis for name, spec in rows.tensors(op) if spec.shape == made.shape}


def _normalised(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """A norm over the last dimensions; its weights are given whole."""
    over = op.argument(1)
    if not isinstance(over, tuple) or axis.dim >= len(made.shape) - len(over):
        return None
    return {op.given[0]: axis}


# Matmuls: a part of the rows takes a part of the left argument, a part of the columns one of the right


def _product(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    match op.args:
        case (Ref(left), Ref(right)):
            return _multiplied(left, right, made, axis)
    return None


def _multiplied(left: str, right: str, made: TensorSpec, axis: Axis) -> Given | None:
    last = len(made.shape) - 1
    if left == right:
        return None
    if axis.dim == last:
        return {right: axis}
    if axis.dim == last - 1:
        return {left: axis}
    return {left: axis, right: axis}  # one matrix of several


def _added_to(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    match op.args:
        case (Ref(added), Ref(left), Ref(right)) if added not in (left, right):
            found = _multiplied(left, right, made, axis)
            spec = rows.of(added)
            dim = axis.dim - len(made.shape) + len(spec.shape) if spec is not None else -1
            if found is None or spec is None or dim < 0 or spec.shape[dim] == 1:
                return found
            return {**found, added: replace(axis, dim=dim)}
    return None


def _linear(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    match (*op.args, None)[:3]:
        case (Ref(left), Ref(weight), bias) if left != weight and bias != Ref(left):
            if axis.dim < len(made.shape) - 1:
                return {left: axis}
            found = {weight: replace(axis, dim=0)}
            return {**found, bias.name: replace(axis, dim=0)} if isinstance(bias, Ref) else found
    return None


def _scaled(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """A scale for each row or column is cut as those are; one for all is given whole."""
    names = [arg.name if isinstance(arg, Ref) else None for arg in op.args]
    if len(names) < 4 or None in names[:4] or len(made.shape) != 2:
        return None
    left, right, of_left, of_right = (str(name) for name in names[:4])
    value, scale = (left, of_left) if axis.dim == 0 else (right, of_right)
    found = {value: axis}
    for name in (scale, *(_bias(op) if axis.dim == 1 else ())):
        spec = rows.of(name)
        if spec is None:
            return None
        dim = axis.dim if len(spec.shape) == 2 else 0
        if any(size != 1 for size in spec.shape):
            found[name] = replace(axis, dim=dim)
    return found


def _bias(op: Op) -> tuple[str, ...]:
    given = op.argument(4) or op.argument("bias")
    return (given.name,) if isinstance(given, Ref) else ()


# Collectives: dimension 0 is that of the ranks, all others pass


def _gathered(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    assert op.comm is not None, "a start communicates"
    if axis.dropped:
        return None
    return _sent(op, axis if axis.dim else replace(axis, outer=axis.outer // op.comm.group.size))


def _scattered(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    assert op.comm is not None, "a start communicates"
    if axis.dropped:
        return None
    return _sent(op, axis if axis.dim else replace(axis, outer=axis.outer * op.comm.group.size))


def _exchanged(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    """Equal parts for each rank; rows of another dimension, or all rows in each part."""
    assert op.comm is not None, "a start communicates"
    equal = op.args[1] == op.args[2] and len(set(_items(op.args[1]))) == 1
    if not equal or axis.dropped or (axis.dim == 0 and axis.outer % op.comm.group.size):
        return None
    return _sent(op, axis)


def _reduced_by_all(rows: Rows, op: Op, made: TensorSpec, axis: Axis) -> Given | None:
    return _sent(op, axis) if not axis.dropped else None  # chunks have the padding, and would send it


def _sent(op: Op, axis: Axis) -> Given | None:
    return {op.args[0].name: axis} if isinstance(op.args[0], Ref) else None


def _items(arg: Arg) -> tuple[Arg, ...]:
    return arg if isinstance(arg, tuple) else ()


RULES: Mapping[str, Rule] = {
    "wait": _same,
    "getitem": _taken,
    "aten.detach.default": _same,
    "aten.alias.default": _same,
    "aten.slice.Tensor": _sliced,
    "aten.cat.default": _concatenated,
    "aten.expand.default": _expanded,
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.addmm.default": _added_to,
    "aten.baddbmm.default": _added_to,
    "aten.linear.default": _linear,
    "aten._scaled_mm.default": _scaled,
    "aten.native_layer_norm.default": _normalised,
    "aten._fused_rms_norm.default": _normalised,
    "all_gather.start": _gathered,
    "reduce_scatter.start": _scattered,
    "all_to_all.start": _exchanged,
    "all_reduce.start": _reduced_by_all,
    **dict.fromkeys(("aten.t.default", "aten.transpose.int", "aten.permute.default"), _permuted),
    **dict.fromkeys(("aten.squeeze.dim", "aten.squeeze.dims"), _squeezed),
    **dict.fromkeys(("aten.split.Tensor", "aten.chunk.default"), _split),
    **dict.fromkeys(("aten._softmax.default", "aten._log_softmax.default"), _along_rows),
    **dict.fromkeys(
        """
        aten.view.default aten.reshape.default aten._unsafe_view.default aten.unsqueeze.default
        aten.flatten.using_ints
        """.split(),
        _viewed,
    ),
    **dict.fromkeys(
        "aten.mean.dim aten.sum.dim_IntList aten.amax.default aten.amin.default aten.var.correction".split(), _reduced
    ),
}
