"""Programs for property tests.

`programs()` draws Programs that are valid and can be executed, one text for every rank of a small mesh.
`arbitrary_programs()` draws anything that the text form can say, sense or no sense.

The generator of valid programs keeps two facts of every value: its layout and the storage that it lives in. While
a collective is in flight nobody writes to the storages that it reads and nobody touches those that it writes, so
whatever is drawn is free of races.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from weft.ir import (
    DTYPES,
    Arg,
    Collective,
    Const,
    Device,
    Dict,
    Dim,
    Dtype,
    Function,
    Group,
    Op,
    Opaque,
    Program,
    Ref,
    ScalarSpec,
    Slice,
    Spec,
    TensorSpec,
    Traits,
    Tuple,
    symbol,
)
from weft.ir.dims import call
from weft.ir.specs import SCALARS, row_major
from weft.ir.targets import FUSED, STARTS, TARGETS, traits_of

T = TypeVar("T")

# World size -> group -> all the rank lists that share its name; rank 0 is in the first, which is the one in the text.
MESHES: Mapping[int, Mapping[str, tuple[tuple[int, ...], ...]]] = {
    2: {"pair": ((0, 1),), "twin": ((0, 1),)},
    4: {"world": ((0, 1, 2, 3),), "row": ((0, 1), (2, 3)), "col": ((0, 2), (1, 3))},
}

_LARGEST = 512  # elements
_DTYPES = ("f32", "bf16", "f64")
_ORIGINS = (
    *("", "", "", "", "layers.0.up model.py:12", "layers.0.down model.py:14", "loss train.py:90", "optimizer.step"),
    'he said "no"',
    '"quoted"',
    '"half',
    "two\nlines",
    "# not a comment",
    " spaces around ",
    "back\\slash\ttab",
    "größe → 模型",
)


def world_of(program: Program) -> int:
    """The size of the smallest mesh that has the groups of a program from `programs()`."""
    names = {group.name for group in program.groups}
    return next(world for world, mesh in MESHES.items() if names <= mesh.keys())


def programs(
    *,
    world: int | None = None,
    steps: tuple[int, int] = (8, 40),
    mutation: bool = True,
    mutate_inputs: bool = False,
    random: bool = False,
    barriers: bool = False,
) -> st.SearchStrategy[Program]:
    """Valid programs, executable unless `barriers` are asked for.

    `world` is 2 or 4 ranks, by default either. `steps` bounds how many things are tried; some of them add no op, some
    add several. `mutation` allows ops that write in place, and `mutate_inputs` lets them write to inputs too.
    """
    menu = [*_STEPS, *(_WRITES if mutation else ()), *(_RANDOM if random else ()), *(_BARRIERS if barriers else ())]
    return _valid_programs(world, steps, menu, mutate_inputs)


@st.composite
def _valid_programs(
    draw: st.DrawFn, world: int | None, steps: tuple[int, int], menu: Sequence[Step], mutate_inputs: bool
) -> Program:
    size = world or draw(st.sampled_from(sorted(MESHES)))
    every = [Group(name, lists[0]) for name, lists in MESHES[size].items()]
    builder = Builder(draw, draw(st.permutations(every))[: draw(st.integers(1, len(every)))])
    _add_inputs(builder, size, mutate_inputs)
    for step in draw(st.lists(st.sampled_from(menu), min_size=steps[0], max_size=steps[1])):
        step(builder)
    while builder.flights:
        builder.wait(builder.flights[0])
    return Program(tuple(builder.ops), _outputs(builder))


# What the generator knows of a program while it grows


@dataclass(frozen=True)
class Layout:
    """A TensorSpec whose strides are always there and whose sizes are plain numbers."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def is_row_major(self) -> bool:
        return self.strides == row_major(self.shape)

    @property
    def is_settled(self) -> bool:
        """Whether the strides of an elementwise op on it are beyond doubt: sizes of one leave torch a choice."""
        return self.is_row_major or 1 not in self.shape

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype, None if self.is_row_major else self.strides)


@dataclass(frozen=True)
class Value:
    """A tensor that ops may be given. Values with the same storage may overlap."""

    ref: Ref
    layout: Layout
    storage: int


@dataclass(frozen=True)
class Flight:
    """A result to be waited for, and the storages that its collective reads and writes until then."""

    result: Value
    reads: frozenset[int]
    writes: frozenset[int]


class Builder:
    """The program so far."""

    def __init__(self, draw: st.DrawFn, groups: Sequence[Group]) -> None:
        self.draw, self.groups = draw, groups
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.flights: list[Flight] = []
        self.waited: list[Flight] = []  # those that a second wait would still be right for
        self.constant: set[int] = set()  # storages that are never written
        self._storages = count()

    def pick(self, items: Iterable[T]) -> T | None:
        """One of the items, None if there are none."""
        choices = list(items)
        return self.draw(st.sampled_from(choices)) if choices else None

    def choose(self, *items: T) -> T:
        return self.draw(st.sampled_from(items))

    def readable(self) -> list[Value]:
        busy = frozenset[int]().union(*(flight.writes for flight in self.flights))
        return [value for value in self.values if value.storage not in busy]

    def writable(self) -> list[Value]:
        busy = self.constant.union(*(flight.reads | flight.writes for flight in self.flights))
        return [value for value in self.values if value.storage not in busy]

    def fresh(self) -> int:
        return next(self._storages)

    def emit(
        self,
        target: str,
        *args: Arg,
        out: tuple[Spec, ...],
        kwargs: Mapping[str, Arg] | None = None,
        comm: Collective | None = None,
    ) -> Ref:
        """Add an op, whose results are nobody's value yet."""
        words = target.split(".")
        name = f"{words[1] if words[0] in ('aten', 'prims') else words[0]}_{len(self.ops)}"
        self.ops.append(Op(name, target, args, kwargs or {}, out, traits_of(target), comm, self.choose(*_ORIGINS)))
        return Ref(name)

    def add(self, target: str, *args: Arg, layout: Layout, of: Value | None = None, **kwargs: Arg) -> Value:
        """Add an op with one result: a view of the storage of `of`, or a tensor of its own."""
        ref = self.emit(target, *args, out=(layout.spec,), kwargs=kwargs)
        value = Value(ref, layout, self.fresh() if of is None else of.storage)
        self.values.append(value)
        return value

    def wrote(self, storages: Iterable[int]) -> None:
        """To be told by the steps that write: what was sent from there is gone, and nobody may wait for it again."""
        gone = frozenset(storages)
        self.waited = [flight for flight in self.waited if not flight.reads & gone]

    def wait(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self.waited.append(flight)
        self.add("wait", flight.result.ref, layout=flight.result.layout, of=flight.result)


Step: TypeAlias = Callable[[Builder], object]


def _contiguous(shape: tuple[int, ...], dtype: str) -> Layout:
    strides = tuple(step for step in row_major(shape) if isinstance(step, int))
    return Layout(shape, strides, dtype)


def _elementwise(layout: Layout) -> Layout:
    """What an elementwise op makes of a settled layout: the same order of dimensions, without gaps."""
    if layout.is_row_major:
        return layout
    strides, step = dict[int, int](), 1
    for dim in sorted(range(len(layout.shape)), key=lambda dim: layout.strides[dim]):
        strides[dim] = step
        step *= layout.shape[dim]
    return replace(layout, strides=tuple(strides[dim] for dim in range(len(layout.shape))))


def _settled(values: Iterable[Value]) -> list[Value]:
    return [value for value in values if value.layout.is_settled]


def _add_inputs(b: Builder, world: int, mutate_inputs: bool) -> None:
    sizes = st.integers(1, 4)
    # Few shapes among the inputs, so that ops with two operands find partners.
    sharded = (world * b.draw(sizes), b.draw(sizes))
    other = tuple(b.draw(st.lists(sizes, min_size=1, max_size=3)))
    for _ in range(b.draw(st.integers(2, 5))):
        layout = _contiguous(b.choose(sharded, other, sharded), b.choose("f32", *_DTYPES))
        value = b.add("input", layout=layout)
        if not mutate_inputs:
            b.constant.add(value.storage)


def _outputs(b: Builder) -> tuple[Arg, ...]:
    used = {ref.name for op in b.ops for ref in op.refs()}
    leaves = [value.ref for value in b.values if value.ref.name not in used]
    some = b.draw(st.lists(st.sampled_from([*(value.ref for value in b.values), None, None, None]), max_size=5))
    return (*some, *leaves) if b.draw(st.booleans()) else (*leaves[-1:], *some)


# Steps: each adds what it can and leaves the program valid


def _nothing(b: Builder) -> None:
    """What steps shrink to."""


def _unary(b: Builder) -> None:
    if x := b.pick(_settled(b.readable())):
        b.add(b.choose("aten.relu.default", "aten.neg.default"), x.ref, layout=_elementwise(x.layout))


def _binary(b: Builder) -> None:
    readable = _settled(b.readable())
    if not (x := b.pick(readable)):
        return
    like = [y for y in readable if (y.layout.shape, y.layout.dtype) == (x.layout.shape, x.layout.dtype)]
    target, y, layout = b.choose("aten.add.Tensor", "aten.mul.Tensor"), b.choose(*like), _elementwise(x.layout)
    if target == "aten.add.Tensor" and b.choose(False, False, True):
        b.add(target, x.ref, y.ref, layout=layout, alpha=2)
    else:
        b.add(target, x.ref, b.choose(y.ref, y.ref, 0.5), layout=layout)


def _matmul(b: Builder) -> None:
    matrices = [value for value in b.readable() if len(value.layout.shape) == 2]
    if not (x := b.pick(matrices)):
        return
    (rows, inner), dtype = x.layout.shape, x.layout.dtype
    partners = [y for y in matrices if y.layout.dtype == dtype and y.layout.shape[0] == inner]
    y = b.pick([y for y in partners if rows * y.layout.shape[1] <= _LARGEST]) or _transposed(b, x)
    if rows * y.layout.shape[1] <= _LARGEST:
        b.add("aten.mm.default", x.ref, y.ref, layout=_contiguous((rows, y.layout.shape[1]), dtype))


def _transposed(b: Builder, x: Value) -> Value:
    shape, strides = x.layout.shape[::-1], x.layout.strides[::-1]
    return b.add("aten.t.default", x.ref, layout=Layout(shape, strides, x.layout.dtype), of=x)


def _t(b: Builder) -> None:
    if x := b.pick(value for value in b.readable() if len(value.layout.shape) == 2):
        _transposed(b, x)


def _view(b: Builder) -> None:
    if not (x := b.pick(value for value in b.readable() if value.layout.is_row_major)):
        return
    numel = x.layout.numel
    splits = [size for size in range(1, numel + 1) if numel % size == 0]
    shapes: list[tuple[int, ...]] = [(numel,), *((size, numel // size) for size in splits)]
    shapes += [(size, 1, numel // size) for size in splits[:2]]
    shape = b.choose(*shapes)
    b.add("aten.view.default", x.ref, shape, layout=_contiguous(shape, x.layout.dtype), of=x)


def _permute(b: Builder) -> None:
    if x := b.pick(value for value in b.readable() if len(value.layout.shape) > 1):
        order = tuple(b.draw(st.permutations(range(len(x.layout.shape)))))
        shape, strides = (tuple(of[dim] for dim in order) for of in (x.layout.shape, x.layout.strides))
        b.add("aten.permute.default", x.ref, order, layout=Layout(shape, strides, x.layout.dtype), of=x)


def _slice(b: Builder) -> None:
    if x := b.pick(value for value in b.readable() if value.layout.shape):
        _part(b, x)


def _part(b: Builder, x: Value) -> Value:
    dim = b.choose(*range(len(x.layout.shape)))
    start = b.choose(*range(x.layout.shape[dim]))
    stop = b.choose(*range(start + 1, x.layout.shape[dim] + 1))
    step = b.choose(1, 1, 2)
    layout = _resized(x.layout, dim, len(range(start, stop, step)))
    if step > 1:
        strides = (*layout.strides[:dim], layout.strides[dim] * step, *layout.strides[dim + 1 :])
        layout = replace(layout, strides=strides)
    return b.add("aten.slice.Tensor", x.ref, dim, start, stop, *([step] if step > 1 else []), layout=layout, of=x)


def _split(b: Builder) -> None:
    if not (x := b.pick(value for value in b.readable() if value.layout.shape)):
        return
    dim = b.choose(*range(len(x.layout.shape)))
    whole = x.layout.shape[dim]
    size = b.choose(*range((whole + 3) // 4, whole + 1))
    layouts = [_resized(x.layout, dim, min(size, whole - start)) for start in range(0, whole, size)]
    pieces = b.emit("aten.split.Tensor", x.ref, size, dim, out=tuple(layout.spec for layout in layouts))
    for index in b.draw(st.lists(st.sampled_from(range(len(layouts))), min_size=1, unique=True)):
        b.add("getitem", pieces, index, layout=layouts[index], of=x)


def _resized(layout: Layout, dim: int, size: int) -> Layout:
    return replace(layout, shape=(*layout.shape[:dim], size, *layout.shape[dim + 1 :]))


def _unsqueeze(b: Builder) -> None:
    if x := b.pick(value for value in b.readable() if len(value.layout.shape) < 3):
        shape, strides = x.layout.shape, x.layout.strides
        dim = b.choose(*range(len(shape) + 1))
        step = shape[dim] * strides[dim] if dim < len(shape) else 1
        layout = Layout((*shape[:dim], 1, *shape[dim:]), (*strides[:dim], step, *strides[dim:]), x.layout.dtype)
        b.add("aten.unsqueeze.default", x.ref, dim, layout=layout, of=x)


def _squeeze(b: Builder) -> None:
    if x := b.pick(value for value in b.readable() if 1 in value.layout.shape):
        shape, strides = x.layout.shape, x.layout.strides
        dim = shape.index(1)
        layout = Layout((*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), x.layout.dtype)
        b.add("aten.squeeze.dim", x.ref, dim, layout=layout, of=x)


def _cast(b: Builder) -> None:
    if x := b.pick(_settled(b.readable())):
        dtype = b.choose(*(dtype for dtype in _DTYPES if dtype != x.layout.dtype))
        layout = replace(_elementwise(x.layout), dtype=dtype)
        b.add("prims.convert_element_type.default", x.ref, Dtype(dtype), layout=layout)


def _cat(b: Builder) -> None:
    values = [value for value in b.readable() if value.layout.shape]
    if not (x := b.pick(values)):
        return
    shape, dtype = x.layout.shape, x.layout.dtype
    dim = b.choose(*range(len(shape)))
    rest = _resized(x.layout, dim, 0).shape
    like = [y for y in values if y.layout.dtype == dtype and len(y.layout.shape) == len(shape)]
    like = [y for y in like if _resized(y.layout, dim, 0).shape == rest]
    parts = [x, *b.draw(st.lists(st.sampled_from(like), max_size=2))]
    total = _resized(x.layout, dim, sum(part.layout.shape[dim] for part in parts))
    if total.numel <= _LARGEST:
        b.add("aten.cat.default", tuple(part.ref for part in parts), dim, layout=_contiguous(total.shape, dtype))


def _clone(b: Builder) -> Value | None:
    x = b.pick(_settled(b.readable()))
    if x is None or b.draw(st.booleans()):
        return _contiguous_clone(b)
    return b.add("aten.clone.default", x.ref, layout=_elementwise(x.layout))


def _contiguous_clone(b: Builder) -> Value | None:
    if not (x := b.pick(b.readable())):
        return None
    layout = _contiguous(x.layout.shape, x.layout.dtype)
    return b.add("aten.clone.default", x.ref, layout=layout, memory_format=Const("torch.contiguous_format"))


def _rand_like(b: Builder) -> None:
    if x := b.pick(_settled(b.readable())):
        b.add("aten.rand_like.default", x.ref, layout=_elementwise(x.layout))


def _barrier(b: Builder) -> None:
    # It may do anything to its argument, so nothing that is in flight is given to it.
    busy = frozenset[int]().union(*(flight.reads | flight.writes for flight in b.flights))
    if x := b.pick(value for value in b.values if value.storage not in busy):
        b.wrote([x.storage])
        b.add("vendor.mystery.default", x.ref, layout=x.layout)


# Steps that write


def _write(b: Builder) -> None:
    if x := b.pick(b.writable()) or _clone(b):
        _write_to(b, x)


def _write_part(b: Builder) -> None:
    if x := b.pick(b.writable()) or _clone(b):
        _write_to(b, _part(b, x) if x.layout.shape else x)


def _write_to(b: Builder, x: Value) -> None:
    b.wrote([x.storage])
    # Operands that overlap in part are refused by torch.
    others = [y for y in b.readable() if y.layout.shape == x.layout.shape and (y == x or y.storage != x.storage)]
    target = b.choose("aten.add_.Tensor", "aten.mul_.Scalar", "aten.copy_.default")
    if target == "aten.mul_.Scalar":
        b.add(target, x.ref, b.choose(2, -0.5), layout=x.layout, of=x)
    elif target == "aten.copy_.default":
        b.add(target, x.ref, b.choose(*others).ref, layout=x.layout, of=x)
    else:
        y = b.choose(*(y for y in others if y.layout.dtype == x.layout.dtype))
        b.add(target, x.ref, y.ref, layout=x.layout, of=x)


def _write_list(b: Builder) -> None:
    if not b.writable():
        _clone(b)
    if writable := b.writable():
        some = st.lists(st.sampled_from(writable), min_size=1, max_size=3, unique_by=lambda value: value.storage)
        chosen = b.draw(some)
        b.wrote(value.storage for value in chosen)
        b.emit("aten._foreach_add_.Scalar", tuple(value.ref for value in chosen), 1.0, out=())


# Steps that communicate

_COLLECTIVES = (
    ("all_gather.start", ""),
    ("reduce_scatter.start", "sum"),
    ("reduce_scatter.start", "avg"),
    ("all_reduce.start", "sum"),
    ("all_reduce.start", "max"),
)
_SINGLE = (("all_to_all.start", ""), ("broadcast.start", ""))


def _collective(b: Builder) -> None:
    target, reduce_op = b.choose(*_COLLECTIVES, *_SINGLE)
    comm = Collective(STARTS[target], b.choose(*b.groups), reduce_op)
    if x := b.pick(value for value in b.readable() if _fits(comm, value.layout)):
        layout = _gathered(comm, x.layout)
        ref = b.emit(target, x.ref, *_extra_args(b, comm, x.layout), out=(layout.spec,), comm=comm)
        result = Value(ref, layout, b.fresh())
        _take_off(b, [Flight(result, frozenset({x.storage}), frozenset({result.storage}))])


def _coalesced(b: Builder) -> None:
    target, reduce_op = b.choose(*_COLLECTIVES)
    comm = Collective(STARTS[target], b.choose(*b.groups), reduce_op)
    if members := _members(b, b.readable(), comm):
        layouts = [_gathered(comm, member.layout) for member in members]
        results = [Value(Ref(""), layout, b.fresh()) for layout in layouts]
        _start_list(b, target, comm, members, results)


def _collective_in_place(b: Builder) -> None:
    comm = Collective("all_reduce", b.choose(*b.groups), "sum")
    if x := b.pick(value for value in b.writable() if _fits(comm, value.layout)) or _contiguous_clone(b):
        b.wrote([x.storage])
        ref = b.emit("all_reduce_.start", x.ref, out=(x.layout.spec,), comm=comm)
        busy = frozenset({x.storage})
        _take_off(b, [Flight(Value(ref, x.layout, x.storage), busy, busy)])


def _coalesced_in_place(b: Builder) -> None:
    comm = Collective("all_reduce", b.choose(*b.groups), "sum")
    _contiguous_clone(b)
    if members := _members(b, b.writable(), comm):
        b.wrote(member.storage for member in members)
        _start_list(b, "all_reduce_.start", comm, members, members)


def _members(b: Builder, values: list[Value], comm: Collective) -> list[Value]:
    """Up to three of the values, of one dtype and without a storage in common."""
    fitting = [value for value in values if _fits(comm, value.layout)]
    if not (first := b.pick(fitting)):
        return []
    alike = [value for value in fitting if value.layout.dtype == first.layout.dtype]
    least = min(b.choose(1, 2, 3), len({value.storage for value in alike}))
    some = st.lists(st.sampled_from(alike), min_size=least, max_size=3, unique_by=lambda value: value.storage)
    return b.draw(some)


def _start_list(b: Builder, target: str, comm: Collective, members: list[Value], results: list[Value]) -> None:
    """A start that takes a list and gives one; the results stand for the items of what it gives."""
    out = tuple(result.layout.spec for result in results)
    start = b.emit(target, tuple(member.ref for member in members), out=out, comm=comm)
    reads = frozenset(member.storage for member in members)
    flights = []
    for index, result in enumerate(results):
        item = replace(result, ref=b.emit("getitem", start, index, out=(result.layout.spec,)))
        # What is reduced in place is one buffer to the collective: no part of it is done before all are.
        writes = reads if results is members else frozenset({result.storage})
        flights.append(Flight(item, reads, writes))
    _take_off(b, flights)


def _take_off(b: Builder, flights: list[Flight]) -> None:
    b.flights += flights
    if b.choose(False, True, False):
        for flight in flights:
            b.wait(flight)


def _fits(comm: Collective, layout: Layout) -> bool:
    if not layout.is_row_major or (not layout.shape and comm.kind not in ("all_reduce", "broadcast")):
        return False
    if comm.kind == "all_gather":
        return layout.numel * comm.group.size <= _LARGEST
    return comm.kind not in ("reduce_scatter", "all_to_all") or layout.shape[0] % comm.group.size == 0


def _gathered(comm: Collective, layout: Layout) -> Layout:
    """What the collective makes of its argument."""
    if comm.kind == "all_gather":
        return _contiguous((layout.shape[0] * comm.group.size, *layout.shape[1:]), layout.dtype)
    if comm.kind == "reduce_scatter":
        return _contiguous((layout.shape[0] // comm.group.size, *layout.shape[1:]), layout.dtype)
    return layout


def _extra_args(b: Builder, comm: Collective, layout: Layout) -> tuple[Arg, ...]:
    if comm.kind == "broadcast":
        return (b.choose(*comm.group.ranks),)
    if comm.kind == "all_to_all":
        # Every rank runs this same text, so what it sends to each must be what it gets from each.
        sizes = (layout.shape[0] // comm.group.size,) * comm.group.size
        return (sizes, sizes)
    return ()


def _wait(b: Builder) -> None:
    if flight := b.pick(b.flights):
        b.wait(flight)


def _wait_again(b: Builder) -> None:
    readable = {value.storage for value in b.readable()}
    if flight := b.pick(flight for flight in b.waited if flight.result.storage in readable):
        b.add("wait", flight.result.ref, layout=flight.result.layout, of=flight.result)


_STEPS: Sequence[Step] = (
    *(_nothing, _unary, _binary, _binary, _matmul, _matmul, _cast, _cat, _clone),
    *(_t, _view, _view, _permute, _slice, _split, _unsqueeze, _squeeze),
    *(_collective, _collective, _collective, _collective, _coalesced, _coalesced, _wait, _wait, _wait_again),
)
_WRITES: Sequence[Step] = (_write, _write, _write_part, _write_list, _collective_in_place, _coalesced_in_place)
_RANDOM: Sequence[Step] = (_rand_like, _rand_like)
_BARRIERS: Sequence[Step] = (_barrier, _barrier)


# Anything that the text form can say


def combine(operator: str, left: Dim, right: Dim) -> Dim:
    """`left operator right`; nothing is divided by a plain zero."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            return left // (right or 1)
        case "%":
            return left % (right or 1)
    return call(operator, left, right)


# One hint per name, as in every program. Some names are words of the grammar, which is allowed.
_SYMBOLS: Sequence[Dim] = tuple(
    symbol(name, hint)
    for name, hint in {"s0": 4096, "u12": 0, "_": -3, "over": 10**20, "weft": 1, "by": 2, "S_9": -(10**20)}.items()
)
_OPERATORS = ("+", "-", "*", "//", "%", "max", "min")

_dim_leaves: st.SearchStrategy[Dim] = st.sampled_from(_SYMBOLS) | st.integers(-5, 10**6)
dims = st.recursive(
    _dim_leaves, lambda inner: st.builds(combine, st.sampled_from(_OPERATORS), inner, inner), max_leaves=6
)

_words = st.sampled_from(["a", "x1", "_", "out", "Über", "over", "from", "return", "None", "f32", "input", "max", "s0"])
_plain = _words.filter(str.isascii)
_dotted = st.lists(_plain, min_size=1, max_size=3).map(".".join)
_texts = st.text(max_size=6)
_names = _words | st.text(min_size=1, max_size=6)
_devices = st.sampled_from(["cpu", "cuda", "cuda:0", "xla:17", "_", "a.b"])
_keys = st.integers(0, 5) | _names | st.sampled_from(["0", "", "-1", "12"])

_floats = st.floats(allow_nan=False)
_leaves: st.SearchStrategy[Any] = st.one_of(
    st.builds(Ref, _names),
    st.sampled_from([None, True, False, math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e300, 10**100, -(2**63)]),
    st.integers(),
    _floats,
    st.builds(complex, _floats, _floats),
    dims,
    _texts,
    st.builds(Dtype, st.sampled_from(sorted(DTYPES))),
    st.builds(Device, _devices),
    st.builds(Const, _dotted.map("torch.{}".format)),
    st.builds(Function, _dotted),
    st.builds(Opaque, _texts, _texts),
)


def _containers(args: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(args, max_size=3).map(tuple)
    entries = st.lists(st.tuples(_texts, args), max_size=2).map(tuple)
    return lists | st.builds(Tuple, lists) | st.builds(Slice, args, args, args) | st.builds(Dict, entries)


_arguments: st.SearchStrategy[Any] = st.recursive(_leaves, _containers, max_leaves=6)

_shapes = st.lists(dims, max_size=3)
_scalars = st.builds(ScalarSpec, st.sampled_from(SCALARS), st.none() | dims)
_positions = st.lists(_keys, max_size=3).map(tuple)
_flags = st.booleans()
_traits = st.builds(
    Traits,
    views=_positions,
    mutates=_positions,
    copies=_flags,
    random=_flags,
    matmul=_flags,
    communicates=_flags,
    barrier=_flags,
)
_targets = st.sampled_from(sorted(TARGETS)) | _dotted | _texts
_reductions = st.sampled_from(["", "sum", "avg", "max", "premul_sum", "a.b", "from"])
_origins = st.sampled_from(_ORIGINS) | _texts

_ODD_RANKS: Sequence[tuple[int, ...]] = (
    (0,),
    tuple(range(64)),
    tuple(range(0, 64, 8)),
    (3, 2, 1, 0),
    (5, 5, 5, 5),
    (0, 1, 2, 4, 6, 8, 9, 10),
    (-3, -2, -1, 0),
    (0, 2, 4, 3, 2, 1),
    (10**30, 10**30 + 1, 10**30 + 2),
)
_ranks = st.sampled_from(_ODD_RANKS) | st.lists(st.integers(-9, 99), min_size=1, max_size=6).map(tuple)
_groups = st.lists(
    st.builds(Group, _names | st.just(""), _ranks), min_size=1, max_size=3, unique_by=lambda group: group.name
)


@st.composite
def arbitrary_programs(draw: st.DrawFn) -> Program:
    """Programs that need not make sense, with every kind of literal, name, trait and spec."""
    groups = draw(_groups)
    ops = [_arbitrary_op(draw, groups) for _ in range(draw(st.integers(0, 4)))]
    outputs, history = draw(st.lists(_arguments, max_size=3)), draw(st.lists(_texts, max_size=2))
    return Program(tuple(ops), tuple(outputs), tuple(history))


def _arbitrary_op(draw: st.DrawFn, groups: Sequence[Group]) -> Op:
    target, comm, inside = draw(_targets | st.sampled_from(sorted(STARTS))), None, None
    if target in STARTS:
        comm = Collective(STARTS[target], draw(st.sampled_from(groups)), draw(_reductions))
    if target in FUSED:
        inside = Collective(FUSED[target], draw(st.sampled_from(groups)), draw(_reductions))
    return Op(
        draw(_names),
        target,
        tuple(draw(st.lists(_arguments, max_size=3))),
        draw(st.dictionaries(_names | st.just(""), _arguments, max_size=2)),
        tuple(_arbitrary_spec(draw) for _ in range(draw(st.integers(0, 2)))),
        draw(_traits | st.just(traits_of(target))),
        comm,
        draw(_origins),
        tuple(draw(st.lists(_names, max_size=2))),
        inside,
    )


def _arbitrary_spec(draw: st.DrawFn) -> Spec:
    if draw(_flags):
        return draw(_scalars)
    shape = draw(_shapes)
    strides = tuple(draw(dims) for _ in shape) if draw(_flags) else None
    return TensorSpec(tuple(shape), draw(st.sampled_from(sorted(DTYPES))), strides, draw(st.just("") | _devices))
