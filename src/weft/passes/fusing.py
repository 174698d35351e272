"""Collectives inside matmuls: which all-gathers and reduce-scatters can be done there, and how.

An all-gather and the matmuls that multiply what it gathers, row by row, become one op; what was gathered is given back
for those who also use it otherwise. A matmul and the reduce-scatter of its result become one, too. Views, copies and
slices that cut nothing away may stand between them, and so may the split and the concatenation by which a dimension
other than the first is gathered or scattered.

Several matmuls may become one. Those of one gather are small, and smaller still in as many parts as there are shards;
they can be *joined*: their right factors are put side by side in one matrix, and each shard is multiplied once. Those
whose products are added up before they are scattered are always one: no fused op adds anything up.

`find_fused` decides about one collective, `apply_fused` carries any number of such matches out. Whether it pays is for
the caller to find out: a match has the op that would be made, with the specs of what it would be given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.analysis.fused import fused_results
from weft.errors import PlanError
from weft.ir.args import Arg, Ref
from weft.ir.dims import hint
from weft.ir.editor import Editor
from weft.ir.program import Op, Program
from weft.ir.specs import ScalarSpec, Spec, TensorSpec, row_major
from weft.ir.targets import traits_of
from weft.passes.factors import Factors
from weft.passes.gathering import Gathering, gathering
from weft.passes.holders import CAT, unfit
from weft.passes.layouts import spread_views
from weft.passes.scattering import Scattering, scattering

_VIEW, _RESHAPE, _CONTIGUOUS, _SLICE, _T = (
    "aten.view.default",
    "aten.reshape.default",
    "aten.contiguous.default",
    "aten.slice.Tensor",
    "aten.t.default",
)
_LEFT, _RIGHT = "<left>", "<right>"  # the factors of an op that is not yet in a program


@dataclass(frozen=True)
class Match:
    """A collective that can be inside a matmul.

    - `op`: what would be made, without a name of its own; its left factor, which has none either, is made by a view of
      the value that the collective or the matmul is given now
    - `inputs`: the specs of what it is given, as a cost model wants them
    - `matmuls`, `dropped`: what it does instead, and what nobody needs any more then, the collective among them
    - `as_one`: whether one matmul does what several did
    """

    start: str
    op: Op
    inputs: tuple[TensorSpec, ...]
    matmuls: tuple[str, ...]
    dropped: tuple[str, ...]
    found: Gathering | Scattering
    as_one: bool = False

    @property
    def can_be_joined(self) -> bool:
        """Whether there are several matmuls that one could do for all."""
        rights = self.inputs[1:]
        alike = len(rights) == len(self.matmuls) > 1 and len({right.dtype for right in rights}) == 1
        return alike and not self.as_one and all(isinstance(right.shape[1], int) for right in rights)

    def joined(self) -> Match:
        """The same with one matmul for all of its matmuls."""
        left, *rights = self.inputs
        columns = sum(hint(right.shape[1]) for right in rights)
        inputs = left, TensorSpec((rights[0].shape[0], columns), rights[0].dtype)
        bare = replace(self.op, args=(self.op.args[0], (Ref(_RIGHT),), *self.op.args[2:]))
        out = fused_results(bare, inputs)
        assert not isinstance(out, str), out
        return replace(self, op=replace(bare, out=out), inputs=inputs, as_one=True)


def find_fused(program: Program, start: str, joined: bool = False) -> Match | str:
    """How the collective that `start` begins can be inside a matmul, or inside several of them `joined` to one; or why
    it cannot."""
    found = _find_fused(program, start)
    if isinstance(found, str) or not joined:
        return found
    return found.joined() if found.can_be_joined else "there are no matmuls that one could do for all"


def _find_fused(program: Program, start: str) -> Match | str:
    why = unfit(program, program[start])
    if why is not None:
        return why
    comm = program[start].comm
    assert comm is not None, "a start communicates"
    if comm.kind == "all_gather":
        gathered = gathering(program, start)
        return gathered if isinstance(gathered, str) else _gather_match(program, gathered)
    scattered = scattering(program, start)
    return scattered if isinstance(scattered, str) else _scatter_match(program, scattered)


def _gather_match(program: Program, found: Gathering) -> Match | str:
    factors = Factors.of(program, found.matmuls)
    args = (Ref(_LEFT), *factors.gather_args(found.dim))
    kwargs: dict[str, Arg] = {} if found.whole_used or factors.scaled else {"return_A": False}
    target = "all_gather_scaled_matmul.fused" if factors.scaled else "all_gather_matmul.fused"
    return _match(program, found, target, args, kwargs, factors.specs)


def _scatter_match(program: Program, found: Scattering) -> Match | str:
    if len(found.matmuls) > 1:
        right = TensorSpec((found.left.shape[-1], found.whole[-1]), found.left.dtype)
        args: tuple[Arg, ...] = (Ref(_LEFT), Ref(_RIGHT), found.dim)
        made = _match(program, found, "matmul_reduce_scatter.fused", args, {}, (right,))
        return made if isinstance(made, str) else replace(made, as_one=True)
    factors = Factors.of(program, found.matmuls)
    args = (Ref(_LEFT), *factors.scatter_args(found.dim, found.whole))
    target = "scaled_matmul_reduce_scatter.fused" if factors.scaled else "matmul_reduce_scatter.fused"
    return _match(program, found, target, args, {}, factors.specs)


def _match(
    program: Program,
    found: Gathering | Scattering,
    target: str,
    args: tuple[Arg, ...],
    kwargs: Mapping[str, Arg],
    others: tuple[TensorSpec, ...],
) -> Match | str:
    start = program[found.start]
    # It sees what the matmuls saw that are its sources. A product that is scattered is nowhere any more.
    stands_for = [one.name for one in found.matmuls] if isinstance(found, Gathering) else [found.wait]
    sources = (start.name, *stands_for)
    bare = Op("fused", target, args, kwargs, (), traits_of(target), None, start.origin, sources, start.comm)
    inputs = (found.left, *others)
    out = fused_results(bare, inputs)
    if isinstance(out, str):
        return f"the fused op {out}"
    names = tuple(one.name for one in found.matmuls)
    return Match(start.name, replace(bare, out=out), inputs, names, found.dropped, found)


def apply_fused(program: Program, matches: Iterable[Match], stamp: str) -> Program:
    """The program with these collectives inside matmuls. The matches must be the program's, and share no matmul."""
    editor, seen = Editor(program), set[str]()
    for match in sorted(matches, key=lambda one: program.index[one.start]):
        touched = {match.start, *match.matmuls}
        if touched & seen or any(name not in program for name in touched):
            raise PlanError(f"%{match.start} has part in another change, or is not in this program")
        seen |= touched
        if isinstance(match.found, Gathering):
            _gather(editor, program, match, match.found)
        else:
            _scatter(editor, program, match, match.found)
    return editor.finish(stamp)


def _gather(editor: Editor, program: Program, match: Match, found: Gathering) -> None:
    for name in found.hoisted:
        editor.move_before(name, found.wait)
    made = _Maker(editor, program, found.wait)
    fused = made.fused(match, found.sent)
    for matmul, product in zip(match.matmuls, made.products(match, fused), strict=True):
        editor.remove(matmul, use=made.in_its_place(product, program[matmul]))
    if found.whole_used:
        whole = made.part(fused, 0, match.op.out[0], found.whole)
        editor.remove(found.whole, use=made.shaped(whole, program[found.whole]))
    _drop(editor, program, found.dropped)


def _scatter(editor: Editor, program: Program, match: Match, found: Scattering) -> None:
    made = _Maker(editor, program, found.start)
    fused = made.fused(match, made.left_of(found))
    wait = program[found.wait]
    if match.op.out == wait.out:
        editor.remove(wait.name, use=fused)
    else:
        editor.remove(wait.name, use=made.shaped(fused, wait))
    _drop(editor, program, found.dropped)


def _drop(editor: Editor, program: Program, names: Sequence[str]) -> None:
    for name in sorted(names, key=program.index.__getitem__, reverse=True):
        editor.remove(name)


class _Maker:
    """Adds the ops of one match before an op."""

    def __init__(self, editor: Editor, program: Program, anchor: str) -> None:
        self._editor, self._program, self._anchor = editor, program, anchor
        self._specs: dict[str, Spec] = {}

    def fused(self, match: Match, left: str) -> str:
        """The fused op and what it needs first: its left factor in the right shape, right ones transposed or joined."""
        factors = {_LEFT: self._viewed(left, match.inputs[0], match.op.origin)}
        if match.as_one:
            factors[_RIGHT] = self._right_of(match)
        else:
            factors |= self._each(match)
        args = tuple(_with(arg, factors) for arg in match.op.args)
        return self._add(replace(match.op, args=args))

    def _each(self, match: Match) -> dict[str, str]:
        """By what right factors and scales are replaced that are not yet as the op wants them."""
        factors: dict[str, str] = {}
        for matmul in match.found.matmuls:
            if matmul.transposed:
                factors[matmul.right] = self._transposed(matmul.right, match.op.origin)
            if matmul.scale is not None and matmul.scale_shape is not None:
                scale = TensorSpec(matmul.scale_shape, self._spec(matmul.scale).dtype)
                factors[matmul.scale] = self._viewed(matmul.scale, scale, match.op.origin)
        return factors

    def left_of(self, found: Scattering) -> str:
        """The left factor of a product that is scattered: of several, all side by side."""
        if len(found.matmuls) == 1:
            return found.matmuls[0].left
        rows, origin = found.left.shape[:-1], self._program[found.start].origin
        depths = [self._spec(one.left).shape[-1] for one in found.matmuls]
        shapes = [TensorSpec((*rows, depth), found.left.dtype) for depth in depths]
        names = [self._viewed(one.left, spec, origin) for one, spec in zip(found.matmuls, shapes, strict=True)]
        return self._joined("left", names, len(rows), found.left, origin)

    def _right_of(self, match: Match) -> str:
        """The right factors of several matmuls in one matrix: side by side for what is gathered, one below the other
        for what is scattered. Where all of them lie column by column, as weights do, so does that one."""
        origin, spec, matmuls = match.op.origin, match.inputs[1], match.found.matmuls
        turned = all(one.transposed or _by_columns(self._spec(one.right)) for one in matmuls)
        names = [one.right if one.transposed is turned else self._transposed(one.right, origin) for one in matmuls]
        dim = 1 if isinstance(match.found, Gathering) else 0
        if not turned:
            return self._joined("right", names, dim, spec, origin)
        return self._transposed(
            self._joined("right", names, 1 - dim, replace(spec, shape=spec.shape[::-1]), origin), origin
        )

    def _joined(self, name: str, parts: Sequence[str], dim: int, spec: TensorSpec, origin: str) -> str:
        args = (tuple(map(Ref, parts)), dim)
        return self._add(Op(name, CAT, args, {}, (spec,), traits_of(CAT), None, origin))

    def products(self, match: Match, fused: str) -> Iterator[str]:
        """What stands for the product of each of the matmuls that a fused op does."""
        if not match.as_one:
            for number, matmul in enumerate(match.matmuls, start=1):
                yield self.part(fused, number, match.op.out[number], matmul)
            return
        (_, whole) = match.op.out
        assert isinstance(whole, TensorSpec)
        product, first = self._taken(fused, 1, whole, match.op.origin), 0
        strides = whole.strides or row_major(whole.shape)
        for matmul in match.matmuls:
            last = first + hint(self._spec(matmul).shape[-1])
            spec = TensorSpec((*whole.shape[:-1], last - first), whole.dtype, strides)
            args = (Ref(product), len(whole.shape) - 1, first, last)
            op = Op("part", _SLICE, args, {}, (spec,), traits_of(_SLICE), None, self._program[matmul].origin, (matmul,))
            yield self._add(op)
            first = last

    def part(self, fused: str, number: int, spec: Spec, source: str) -> str:
        """One of the results of a fused op, that stands for `source`."""
        return self._taken(fused, number, spec, self._program[source].origin, (source,))

    def _taken(self, fused: str, number: int, spec: Spec, origin: str, sources: tuple[str, ...] = ()) -> str:
        op = Op("part", "getitem", (Ref(fused), number), {}, (spec,), traits_of("getitem"))
        return self._add(replace(op, origin=origin, sources=sources))

    def in_its_place(self, product: str, matmul: Op) -> str:
        """A product as its users take it: as it lies, if it is a part of a wider one and they do not mind."""
        spec, wanted = self._spec(product), matmul.out[0]
        assert isinstance(wanted, TensorSpec)
        if spec.shape == wanted.shape and spec.strides is not None and wanted.strides is None:
            views = spread_views(self._program, matmul.name, hint(spec.strides[0]))
            if views is not None:
                for view, lies in views:
                    self._editor.replace(replace(view, out=(lies,)))
                return product
        return self.shaped(product, matmul)

    def shaped(self, value: str, like: Op) -> str:
        """A value as another was, for which it stands: in its shape, and row by row."""
        spec, wanted = self._spec(value), like.out[0]
        assert isinstance(wanted, TensorSpec)
        if spec == wanted:
            return value
        target = _CONTIGUOUS if spec.shape == wanted.shape else _RESHAPE if spec.strides is not None else _VIEW
        args = (Ref(value),) if target == _CONTIGUOUS else (Ref(value), wanted.shape)
        out = TensorSpec(wanted.shape, wanted.dtype)
        return self._add(Op("shaped", target, args, {}, (out,), traits_of(target), None, like.origin, (like.name,)))

    def _viewed(self, value: str, spec: TensorSpec, origin: str) -> str:
        given = self._spec(value)
        if given.shape == spec.shape:
            return value
        target = _VIEW if given.strides is None else _RESHAPE
        return self._add(Op("left", target, (Ref(value), spec.shape), {}, (spec,), traits_of(target), None, origin))

    def _transposed(self, value: str, origin: str) -> str:
        spec = self._spec(value)
        rows, columns = spec.shape
        strides = (1, columns) if spec.strides is None else spec.strides[::-1]
        out = TensorSpec((columns, rows), spec.dtype, None if strides == (rows, 1) else strides)
        return self._add(Op("right", _T, (Ref(value),), {}, (out,), traits_of(_T), None, origin))

    def _add(self, op: Op) -> str:
        name = self._editor.insert_before(self._anchor, op).name
        self._specs[name] = op.out[0] if op.out else ScalarSpec("none")
        return name

    def _spec(self, name: str) -> TensorSpec:
        spec = self._specs.get(name) or self._program[name].out[0]
        assert isinstance(spec, TensorSpec), f"%{name} is a tensor"
        return spec


def _by_columns(spec: TensorSpec) -> bool:
    return spec.strides == (1, spec.shape[0])


def _with(arg: Arg, names: Mapping[str, str]) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_with(item, names) for item in arg)
    return Ref(names.get(arg.name, arg.name)) if isinstance(arg, Ref) else arg
