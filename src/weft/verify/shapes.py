"""The rule `shapes`: what the table below knows of an op must agree with what the op says of its results.

Strides are not checked: they may change where nobody sees them. Symbolic sizes are compared as polynomials, and where
those differ by their hints: two sizes that torch proved equal may be written differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from weft.analysis.fused import fused_results
from weft.analysis.kernels import input_specs
from weft.analysis.reordering import reordering
from weft.ir.args import Arg, Dtype, Ref
from weft.ir.dims import Dim, hint
from weft.ir.program import Op, Program
from weft.ir.specs import Spec, TensorSpec
from weft.ir.targets import FUSED
from weft.ir.text import counted, print_spec

Tensors = list[TensorSpec]
Expected = TensorSpec | str | None  # the first result, or what is wrong with the arguments, or nothing known


def shapes(program: Program) -> Iterator[tuple[str, str]]:
    """Shapes and dtypes are consistent, as far as the table knows the op. The order has no part in it."""
    how = reordering(program)
    yield from (program if how is None else how.original).fact(_misshapen)


def _misshapen(program: Program) -> list[tuple[str, str]]:
    return list(_find_misshapen(program))


def _find_misshapen(program: Program) -> Iterator[tuple[str, str]]:
    for op in program.ops:
        rule = _TABLE.get(op.target)
        if rule is None and op.target != "getitem" and not _is_fused(op):
            continue
        if rule is not None and op.comm is None and len(op.out) == 1:  # nearly all, and nearly all of them are right
            wanted = rule(op, _tensors(op.args, program))
            if wanted is None or wanted is op.out[0] or (isinstance(wanted, TensorSpec) and _agree(wanted, op.out[0])):
                continue
        for expected, found in _results(op, program):
            if isinstance(expected, str):
                yield op.name, f"%{op.name} ({op.target}): {expected}"
            elif expected is not None and not _agree(expected, found):
                shown = print_spec(TensorSpec(expected.shape, expected.dtype))
                yield op.name, f"%{op.name} ({op.target}) should be {shown}, and says {print_spec(found)}"


def _results(op: Op, program: Program) -> Iterator[tuple[Expected, Spec]]:
    if op.target == "getitem":
        yield from _getitem(op, program)
        return
    if _is_fused(op):
        yield from _fused(op, program)
        return
    rule = _TABLE[op.target]
    coalesced = op.args[0] if op.comm is not None and op.args and isinstance(op.args[0], tuple) else None
    if coalesced is None:
        if len(op.out) != 1:
            yield f"makes one result, and says {len(op.out)}", op.out[0] if op.out else TensorSpec((), "bool")
        else:
            yield rule(op, _tensors(op.args, program)), op.out[0]
    elif len(coalesced) != len(op.out):
        given, said = counted(len(coalesced), "tensor"), counted(len(op.out), "result")
        yield f"is given {given} and says {said}", TensorSpec((), "bool")
    else:
        for item, found in zip(coalesced, op.out, strict=True):
            yield rule(op, _tensors((item,), program)), found


def _tensors(args: tuple[Arg, ...], program: Program) -> Tensors:
    """The specs of the tensors among positional arguments; lists are opened."""
    found: Tensors = []
    ops, index = program.ops, program.index
    for arg in args:
        if isinstance(arg, Ref):
            out = ops[index[arg.name]].out
            if len(out) == 1 and isinstance(out[0], TensorSpec):
                found.append(out[0])
        elif isinstance(arg, tuple) and arg and not isinstance(arg[0], int):
            found += _tensors(arg, program)
    return found


def _getitem(op: Op, program: Program) -> Iterator[tuple[Expected, Spec]]:
    match op.args, op.out:
        case (Ref(name), int(index)), (found,):
            results = program[name].out
            if not -len(results) <= index < len(results):
                yield f"%{name} has {len(results)} results, so there is no number {index}", found
            elif isinstance(result := results[index], TensorSpec):
                yield result, found


def _is_fused(op: Op) -> bool:
    return op.inside is not None and op.target in FUSED


def _fused(op: Op, program: Program) -> Iterator[tuple[Expected, Spec]]:
    expected, nothing = fused_results(op, input_specs(program, op)), TensorSpec((), "bool")
    if isinstance(expected, str):
        yield expected, nothing
    elif len(expected) != len(op.out):
        yield f"makes {counted(len(expected), 'result')}, and says {len(op.out)}", nothing
    else:
        for one, found in zip(expected, op.out, strict=True):
            if isinstance(one, TensorSpec):
                yield one, found
            elif one != found:
                yield f"gives nothing back for what is gathered, and says {print_spec(found)}", found


def _agree(expected: TensorSpec, found: Spec) -> bool:
    if not isinstance(found, TensorSpec) or len(expected.shape) != len(found.shape):
        return False
    if expected.dtype != found.dtype:
        return False
    return expected.shape == found.shape or all(map(_same, expected.shape, found.shape))


def _same(left: Dim, right: Dim) -> bool:
    if left == right:
        return True
    return not (isinstance(left, int) and isinstance(right, int)) and hint(left) == hint(right)


# The table's functions: the op and its tensor arguments to the spec of one result.


def _spec(op: Op, shape: tuple[Dim, ...], dtype: str) -> TensorSpec:
    """A tensor of this shape and dtype: what the op says, if that is one, as nearly always."""
    said = op.out[0] if op.out else None
    if isinstance(said, TensorSpec) and said.dtype == dtype and said.shape == shape:
        return said
    return TensorSpec(shape, dtype)


def _like_first(op: Op, given: Tensors) -> Expected:
    return given[0] if given else "needs a tensor"


def _gathered(op: Op, given: Tensors) -> Expected:
    if not given or not given[0].shape or op.comm is None:
        return "needs a tensor with at least one dimension"
    first, *rest = given[0].shape
    return _spec(op, (first * op.comm.group.size, *rest), given[0].dtype)


def _scattered(op: Op, given: Tensors) -> Expected:
    if not given or not given[0].shape or op.comm is None:
        return "needs a tensor with at least one dimension"
    first, *rest = given[0].shape
    size = op.comm.group.size
    if hint(first) % size:
        return f"cannot scatter {first} rows among {size} ranks"
    return _spec(op, (first // size, *rest), given[0].dtype)


def _exchanged(op: Op, given: Tensors) -> Expected:
    match op.args:
        case _, tuple() as out_splits, tuple() if given and given[0].shape:
            if not all(isinstance(size, int) for size in out_splits):
                return None
            rows = sum(size for size in out_splits if isinstance(size, int))
            return _spec(op, (rows, *given[0].shape[1:]), given[0].dtype)
    return "needs a tensor and two lists of split sizes"


def _matmul(op: Op, given: Tensors) -> Expected:
    if len(given) != 2 or len(given[0].shape) != len(given[1].shape):
        return "needs two matrices of the same number of dimensions"
    left, right = given
    if len(left.shape) < 2 or not _same(left.shape[-1], right.shape[-2]):
        return f"cannot multiply {print_spec(left)} by {print_spec(right)}"
    return _spec(op, (*left.shape[:-1], right.shape[-1]), left.dtype)


def _addmm(op: Op, given: Tensors) -> Expected:
    return _matmul(op, given[1:]) if len(given) == 3 else "needs a bias and two matrices"


def _transposed(op: Op, given: Tensors) -> Expected:
    if not given or len(given[0].shape) > 2:
        return "needs a matrix"
    return _spec(op, given[0].shape[::-1], given[0].dtype)


def _permuted(op: Op, given: Tensors) -> Expected:
    order = op.argument(1, "dims")
    if not given or not isinstance(order, tuple):
        return "needs a tensor and an order of its dimensions"
    rank = len(given[0].shape)
    places = [place % rank if isinstance(place, int) and rank else -1 for place in order]
    if sorted(places) != list(range(rank)):
        return f"{list(order)} is no order of {rank} dimensions"
    return _spec(op, tuple([given[0].shape[place] for place in places]), given[0].dtype)


def _reshaped(op: Op, given: Tensors) -> Expected:
    if not given or not op.out or not isinstance(op.out[0], TensorSpec):
        return "needs a tensor"
    if given[0].count != op.out[0].count:
        return f"cannot view {print_spec(given[0])} as {print_spec(op.out[0])}: another number of elements"
    return op.out[0] if op.out[0].dtype == given[0].dtype else TensorSpec(op.out[0].shape, given[0].dtype)


def _cast(op: Op, given: Tensors) -> Expected:
    dtype = op.argument(1, "dtype")
    if not given or not isinstance(dtype, Dtype):
        return "needs a tensor and a dtype"
    return _spec(op, given[0].shape, dtype.name)


def _broadcast(op: Op, given: Tensors) -> Expected:
    """Pointwise ops: the shape is known, the dtype is torch's business."""
    if not given or not op.out or not isinstance(op.out[0], TensorSpec):
        return None
    if all(spec.shape == op.out[0].shape for spec in given):
        return op.out[0]
    rank = max(len(spec.shape) for spec in given)
    sizes: list[Dim] = [1] * rank
    for spec in given:
        for place, size in enumerate(spec.shape, start=rank - len(spec.shape)):
            if size != 1 and sizes[place] != 1 and not _same(size, sizes[place]):
                return f"cannot combine {' and '.join(map(print_spec, given))}"
            sizes[place] = size if size != 1 else sizes[place]
    return TensorSpec(tuple(sizes), op.out[0].dtype)


def _concatenated(op: Op, given: Tensors) -> Expected:
    dim = op.argument(1, "dim")
    dim = dim if isinstance(dim, int) else 0
    # torch skips empty one-dimensional tensors here, whatever the others are.
    given = [spec for spec in given if spec.shape != (0,)] or given
    if not given or not all(len(spec.shape) == len(given[0].shape) for spec in given) or not given[0].shape:
        return "needs tensors of the same number of dimensions"
    dim %= len(given[0].shape)
    total: Dim = 0
    for spec in given:
        others = zip(spec.shape, given[0].shape, strict=True)
        if not all(_same(a, b) for place, (a, b) in enumerate(others) if place != dim):
            return f"cannot join {print_spec(given[0])} and {print_spec(spec)} along dimension {dim}"
        total = total + spec.shape[dim]
    shape = (*given[0].shape[:dim], total, *given[0].shape[dim + 1 :])
    return TensorSpec(shape, op.out[0].dtype)


def _packed(op: Op, given: Tensors) -> Expected:
    dtype, rows = op.argument(1), op.argument(2)
    if not given or not isinstance(dtype, Dtype) or not isinstance(rows, int) or rows < 1:
        return "needs tensors, a dtype and a number of rows"
    total: Dim = 0
    for spec in given:
        if hint(spec.numel) % rows:
            return f"cannot cut {print_spec(spec)} into {rows} equal rows"
        total = total + spec.numel
    return TensorSpec((total,), dtype.name)


_LIKE_FIRST = """
wait all_reduce.start all_reduce_.start broadcast.start broadcast_.start aten.clone.default aten.alias.default
aten.detach.default aten.relu.default aten.neg.default aten.add_.Tensor aten.mul_.Tensor aten.mul_.Scalar
aten.div_.Scalar aten.copy_.default aten.zero_.default
"""

_POINTWISE = "aten.add.Tensor aten.sub.Tensor aten.mul.Tensor aten.div.Tensor"

_TABLE: Mapping[str, Callable[[Op, Tensors], Expected]] = {
    "all_gather.start": _gathered,
    "all_gather_out.start": _gathered,
    "reduce_scatter.start": _scattered,
    "reduce_scatter_out.start": _scattered,
    "all_to_all.start": _exchanged,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.t.default": _transposed,
    "aten.permute.default": _permuted,
    "aten.view.default": _reshaped,
    "aten.reshape.default": _reshaped,
    "aten._unsafe_view.default": _reshaped,
    "prims.convert_element_type.default": _cast,
    "aten.cat.default": _concatenated,
    "weft.pack.default": _packed,
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(_POINTWISE.split(), _broadcast),
}
