"""The chunks of a region: what each op is given for one, and how whole values are taken apart and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weft.analysis.axes import Axis
from weft.analysis.kernels import slice_args
from weft.ir.args import Arg, Ref, map_leaves, refs
from weft.ir.dims import Dim
from weft.ir.program import Op
from weft.ir.specs import Spec, TensorSpec, row_major
from weft.ir.targets import traits_of
from weft.passes.chunk_site import Key, Site
from weft.passes.region import ANEW, SUMS, Region

_Strides = tuple[Dim, ...] | None
# a target, what it is given besides, and the shape and strides of its result
_Making = tuple[str, tuple[Arg, ...], tuple[Dim, ...], _Strides]

_SHAPED = frozenset("aten.view.default aten.reshape.default aten._unsafe_view.default aten.expand.default".split())
_VIEWS = frozenset("aten.view.default aten._unsafe_view.default".split())


class Chunks:
    """Makes the chunks of one region."""

    def __init__(self, site: Site, region: Region) -> None:
        self._site, self._region = site, region
        self._program, self._editor, self._done = site.program, site.editor, site.done
        self._first = site.program.index[next(iter(region.axes))]

    def do(self, op: Op) -> None:
        """An op of the region, once for each chunk. What it takes of other regions must have been done before."""
        for chunk in range(self._region.chunks):
            self._do(op, chunk)

    def add_up(self) -> None:
        """The sums over rows, chunk by chunk."""
        for name in self._region.sums:
            op, total = self._program[name], None
            for chunk in range(self._region.chunks):
                total = self._add_to(total, op, chunk)
            assert total is not None, "a region has chunks"
            self._editor.remove(name, use=total.name)

    def _add_to(self, total: Ref | None, op: Op, chunk: int) -> Ref:
        stage = max(self._region.stages.get(name, 0) for name in op.given)
        wave = (self._first, stage + chunk + 1, stage, chunk)
        names, made = self._chunks(op, chunk, wave)
        args = tuple(_renamed(arg, names) for arg in op.args)
        target = op.target if total is None else SUMS[op.target]
        last = chunk == self._region.chunks - 1
        new = replace(
            op,
            name=f"{op.name}_c{chunk}",
            target=target,
            args=args if total is None else (total, *args),
            traits=traits_of(target),
            sources=(op.name,) if last else (),
        )
        done = self._add(new, wave)
        self._site.heirs.setdefault(op.name, {}).update(dict.fromkeys([*made, done.name], chunk))
        return done

    def _do(self, op: Op, chunk: int) -> None:
        """One op for one chunk."""
        region, axis = self._region, self._region.axes[op.name]
        if op.target == "aten.slice.Tensor" and self._trims(op, axis):
            self._done[op.name, chunk] = self._done[op.given[0], chunk]
            return
        wave = (self._first, region.stages[op.name] + chunk, region.stages[op.name], chunk)
        if op.name in region.moved:
            value, shape = self._done[region.moved[op.name], chunk], self._shape(self._specs(op)[0], axis)
            target = "aten.view.default" if self._of(value).strides is None else "aten.reshape.default"
            self._done[op.name, chunk] = self._new(f"{op.name}_c{chunk}", target, (value, shape), shape, wave, None, op)
            return
        names, made = self._chunks(op, chunk, wave)
        if op.is_start:
            names = {name: self._packed(ref, wave, made) for name, ref in names.items()}
        args = tuple(_renamed(arg, names) for arg in self._literals(op, axis))
        kwargs = {key: _renamed(arg, names) for key, arg in op.kwargs.items()}
        out = tuple(self._spec(spec, axis) for spec in op.out)
        of = () if op.name in region.overwritten else (op.name,)
        new = replace(op, name=f"{op.name}_c{chunk}", args=args, kwargs=kwargs, out=out, sources=of)
        target = ANEW.get(op.target, op.target)
        if op.target in _VIEWS and self._lies_apart(names):
            target = "aten.reshape.default"
        if target != op.target:
            new = replace(new, target=target, traits=traits_of(target))
        done = self._add(new, wave)
        self._done[op.name, chunk] = done
        self._site.heirs.setdefault(op.name, {}).update(dict.fromkeys([*made, done.name], chunk))

    def _chunks(self, op: Op, chunk: int, wave: Key) -> tuple[dict[str, Ref], list[str]]:
        """What an op is given for a chunk, and the ops that were made for that."""
        names: dict[str, Ref] = {}
        made: list[str] = []
        for name, where in self._region.given(op).items():
            if self._site.is_there(name, where, op):
                names[name] = self._done[name, chunk]
            else:
                parts = self._part(name, where, chunk, wave)
                made += [part.name for part in parts] if not self._site.is_steady(name) else []
                names[name] = parts[-1]
        return names, made

    def _trims(self, op: Op, axis: Axis) -> bool:
        """Whether a slice takes off no more than padding, which chunks keep until they are put together."""
        dim, rank = slice_args(op)[0], len(op.out[0].shape)
        return (dim if isinstance(dim, int) else 0) % rank == axis.dim

    def _lies_apart(self, names: Mapping[str, Ref]) -> bool:
        """Whether one of these, which stand for values of the program, has gaps that the value had not."""
        return any(
            self._of(ref).strides is not None and self._specs(self._program[name])[0].strides is None
            for name, ref in names.items()
        )

    def _packed(self, value: Ref, wave: Key, made: list[str]) -> Ref:
        """A value to be sent: it must lie in one piece."""
        spec = self._of(value)
        if spec.strides is None:
            return value
        made.append(self._new("packed", "aten.contiguous.default", (value,), spec.shape, wave).name)
        return Ref(made[-1])

    def _literals(self, op: Op, axis: Axis) -> tuple[Arg, ...]:
        """The arguments of an op, with those that say sizes as they are for a chunk."""
        first = op.args[0]
        if op.target in _SHAPED:
            return (first, self._shape(self._specs(op)[0], axis), *op.args[2:])
        if op.target == "aten.split.Tensor":
            dim = op.argument(2) or op.argument("dim") or 0
            if isinstance(dim, int) and dim % len(op.out[0].shape) == axis.dim:
                return (first, self._shape(self._specs(op)[0], axis)[axis.dim], *op.args[2:])
        if op.target == "all_to_all.start" and axis.dim == 0:
            return (first, *(_in_parts(arg, self._region.chunks) for arg in op.args[1:3]), *op.args[3:])
        return op.args

    # Values from outside, in parts

    def _part(self, name: str, axis: Axis, chunk: int, wave: Key) -> tuple[Ref, ...]:
        """The ops that take a chunk's part out of a value; the last one has it."""
        owner = -1 if self._site.is_steady(name) else self._first
        key, parts = (name, axis, self._region.chunks, chunk, owner), self._site.parts
        if key not in parts:
            parts[key] = tuple(self._take(name, axis, chunk, wave))
        return parts[key]

    def _take(self, name: str, axis: Axis, chunk: int, wave: Key) -> Iterable[Ref]:
        spec, dim, value = self._specs(self._program[name])[0], axis.dim, Ref(name)
        if axis.dropped:
            padding = (*(0, 0) * (len(spec.shape) - dim - 1), 0, axis.dropped)
            full = self._region.rows.full(spec, axis)
            assert full is not None, "a region has no symbolic sizes"
            value = self._new("padded", "aten.constant_pad_nd.default", (value, padding), full, wave)
            spec = self._of(value)
            yield value
        shape, strides = spec.shape, spec.strides if spec.strides is not None else row_major(spec.shape)
        rows = self._region.size // self._region.chunks * axis.inner
        if axis.outer > 1:
            all_rows = self._region.size * axis.inner
            shape = (*shape[:dim], axis.outer, all_rows, *shape[dim + 1 :])
            strides = (*strides[:dim], all_rows * strides[dim], *strides[dim:])
            value = self._new("apart", "aten.view.default", (value, shape), shape, wave, strides)
            dim += 1
            yield value
        shape = (*shape[:dim], rows, *shape[dim + 1 :])
        bounds = (dim, chunk * rows, (chunk + 1) * rows)
        value = self._new("part", "aten.slice.Tensor", (value, *bounds), shape, wave, strides)
        yield value
        if axis.outer > 1:
            shape = (*shape[: dim - 1], axis.outer * rows, *shape[dim + 1 :])
            # Of one row each, a reshape copies nothing, and leaves gaps.
            apart = (*strides[: dim - 1], strides[dim - 1], *strides[dim + 1 :]) if rows == 1 else None
            value = self._new("part", "aten.reshape.default", (value, shape), shape, wave, apart)
            yield value
            if self._of(value).strides is not None:
                yield self._new("part", "aten.contiguous.default", (value,), shape, wave)

    # Whole values, put together

    def join(self, op: Op) -> Ref:
        """The result of an op, from those of its chunks."""
        region, axis = self._region, self._region.axes[op.name]
        last = (self._first, region.stages[op.name] + region.chunks, region.stages[op.name], region.chunks)
        values = [self._done[op.name, chunk] for chunk in range(region.chunks)]
        spec, dim = self._specs(op)[0], axis.dim
        shape = self._region.rows.full(spec, axis)
        assert shape is not None, "a region has no symbolic sizes"
        rows = region.size // region.chunks * axis.inner
        if axis.outer > 1:
            apart = (*shape[:dim], axis.outer, rows, *shape[dim + 1 :])
            values = [self._new("apart", "aten.view.default", (value, apart), apart, last) for value in values]
            dim += 1
        whole = (*shape[: axis.dim], *((axis.outer,) if axis.outer > 1 else ()), region.size * axis.inner)
        whole = (*whole, *shape[axis.dim + 1 :])
        steps: list[_Making] = [("aten.cat.default", (tuple(values), dim), whole, None)]
        if axis.outer > 1:
            steps.append(("aten.view.default", (shape,), shape, None))
        if axis.dropped:
            steps.append(("aten.slice.Tensor", (axis.dim, 0, spec.shape[axis.dim]), spec.shape, row_major(shape)))
        return self._in_steps(op, [*steps, *_laid_out(spec)], last)

    def _in_steps(self, op: Op, steps: Sequence[_Making], wave: Key) -> Ref:
        """Ops one after the other, the last of which stands for the whole."""
        value: Ref | None = None
        for number, (target, args, shape, strides) in enumerate(steps):
            given = args if value is None else (value, *args)
            value = self._new("whole", target, given, shape, wave, strides, op if number == len(steps) - 1 else None)
        assert value is not None
        return value

    # New ops

    def _new(
        self,
        name: str,
        target: str,
        args: tuple[Arg, ...],
        shape: tuple[Dim, ...],
        wave: Key,
        strides: tuple[Dim, ...] | None = None,
        of: Op | None = None,
    ) -> Ref:
        first = next(ref for arg in args for ref in refs(arg))
        known = self._of(first)
        spec = TensorSpec(shape, known.dtype, _plain(shape, strides), known.device)
        origin, sources = (of.origin, (of.name,)) if of is not None else ("", ())
        return self._add(Op(name, target, args, {}, (spec,), traits_of(target), None, origin, sources), wave)

    def _add(self, op: Op, wave: Key) -> Ref:
        ref = self._editor.insert_before(self._program.ops[0].name, op)  # the order is settled at the end
        self._site.keys[ref.name] = (*wave, len(self._site.keys))
        return ref

    def _of(self, ref: Ref) -> TensorSpec:
        return self._specs((self._program if ref.name in self._program else self._editor)[ref.name])[0]

    @staticmethod
    def _specs(op: Op) -> list[TensorSpec]:
        return [spec for spec in op.out if isinstance(spec, TensorSpec)]

    def _spec(self, spec: Spec, axis: Axis) -> Spec:
        """What a result is for a chunk."""
        assert isinstance(spec, TensorSpec)
        shape = self._shape(spec, axis)
        strides = None if spec.strides is None else _squeezed(spec.strides, spec.shape, shape, axis.dim)
        return replace(spec, shape=shape, strides=_plain(shape, strides))

    def _shape(self, spec: TensorSpec, axis: Axis) -> tuple[Dim, ...]:
        rows = axis.outer * (self._region.size // self._region.chunks) * axis.inner
        return (*spec.shape[: axis.dim], rows, *spec.shape[axis.dim + 1 :])


def _renamed(arg: Arg, names: Mapping[str, Ref]) -> Arg:
    return map_leaves(arg, lambda leaf: names.get(leaf.name, leaf) if isinstance(leaf, Ref) else leaf)


def _in_parts(sizes: Arg, chunks: int) -> Arg:
    """Numbers of rows, each divided among chunks."""
    return map_leaves(sizes, lambda size: size // chunks if isinstance(size, int) else size)


def _plain(shape: tuple[Dim, ...], strides: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """None if it is laid out row by row; where there is one element only, the stride does not matter."""
    if strides is None:
        return None
    usual = zip(shape, strides, row_major(shape), strict=True)
    return None if all(size == 1 or one == other for size, one, other in usual) else strides


def _laid_out(spec: TensorSpec) -> list[_Making]:
    """What lays out a value as it was, if that is not row by row: others may look at it in ways that need that."""
    strides = [stride for stride in spec.strides or () if isinstance(stride, int)]
    if not strides:
        return []
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    turned = tuple(spec.shape[dim] for dim in order)
    usual = row_major(spec.shape)
    back = tuple(order.index(dim) for dim in range(len(order)))
    return [
        ("aten.permute.default", (order,), turned, tuple(usual[dim] for dim in order)),
        ("aten.contiguous.default", (), turned, None),
        ("aten.permute.default", (back,), spec.shape, spec.strides),
    ]


def _squeezed(strides: tuple[Dim, ...], was: tuple[Dim, ...], now: tuple[Dim, ...], dim: int) -> tuple[Dim, ...]:
    """The strides of a tensor without gaps, in the same order of dimensions, with fewer elements in one of them."""
    own, whole, part = strides[dim], was[dim], now[dim]
    if not (isinstance(own, int) and isinstance(whole, int) and isinstance(part, int)):
        return strides
    return tuple(
        one // whole * part if isinstance(one, int) and one > own and one % whole == 0 else one for one in strides
    )
