"""Which ops the compiler would run as one kernel.

Two ops may share a kernel if one uses the other's result, directly or through views, both are of a kind that fuses
(`kernels.FUSIBLE`) and they run over the same elements: results of one size, a pointwise op before the reduction of
its result, and what follows a reduction along rows, as in a norm or a softmax. Every other dependency is a *break*:
through a matmul, a collective and its wait, memory that is written, the random generator, a barrier, another size.

Each op gets a *level*, such that dependencies never lead down and breaks lead up. A region is what hangs together
by fusible dependencies on one level. So whatever path leaves a region has gone up and cannot come back: regions are
convex, and no two wait for each other. Levels follow from the dependencies, as do regions: the order of the ops
does not matter.

Ops begin on the lowest level that they can have. Then, from the end, an op goes up to the lowest of its users if it
fuses with that one: a cast at the beginning joins the op that reads it at the end. A reduction stays with the op that
it fuses with, whose result is larger than its own.

What this does not see:

- ops that read the same tensor, and do not use each other, are different kernels
- nothing fuses into a matmul, an attention or a convolution, before or after
- a kernel may grow without limit, and reduce the same elements along rows and along columns
- a loop that reads transposed is as good as one that does not
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.analysis.dependencies import arguments, dependencies
from weft.analysis.kernels import FUSIBLE, Kernel, input_specs, kernel, read_names, reduced_along_rows
from weft.ir.args import Ref, refs
from weft.ir.program import Op, Program
from weft.ir.specs import Spec, TensorSpec


@dataclass(frozen=True)
class Fusion:
    """- `kinds`: for each position, the kind of its kernel
    - `region`: for each position, the number of its region; -1 if it takes no kernel, or one that never fuses
    - `members`: for each region its positions, users behind what they use, in an order that no reordering changes
    """

    kinds: tuple[Kernel, ...]
    region: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]


def fusion(program: Program) -> Fusion:
    """The regions of a Program. Takes time in proportion to its dependencies."""
    return program.fact(_fusion)


def _fusion(program: Program) -> Fusion:
    shapes = [_VIEW if op.traits.is_view and not op.is_wait else _Shape.of(program, op) for op in program.ops]
    bases = _bases(program, shapes)
    graph = _graph(program, shapes, bases)
    _sink(graph, shapes)
    levels, roots = graph.levels, list(range(len(program)))
    fusible = [position for position, shape in enumerate(shapes) if shape.fusible]
    for position in fusible:
        root = _root(roots, position)
        for other in graph.joins[position]:
            if levels[bases[other]] == levels[position]:
                roots[_root(roots, bases[other])] = root
    together: dict[int, list[int]] = {}
    for position in sorted({*fusible, *_written(program, shapes, bases)}):
        together.setdefault(_root(roots, position), []).append(position)
    region = [-1] * len(program)
    members = []
    for number, positions in enumerate(together.values()):
        if len(positions) > 1:
            positions.sort(key=lambda place: (graph.depths[place], program.ops[place].name))
        members.append(tuple(positions))
        for position in positions:
            region[position] = number
    return Fusion(tuple([shape.kind for shape in shapes]), tuple(region), tuple(members))


@dataclass(slots=True)
class _Shape:
    """What fusion asks of an op: its kind, how many elements it gives, and over how many it runs.

    `enters` is how many elements its kernel runs over, `leaves` how many one may run over that goes on with its
    result. They differ from `gives` for reductions and for what is done with a row's result afterwards.
    """

    kind: Kernel
    fusible: bool
    is_view: bool
    gives: int
    enters: int
    leaves: int

    @staticmethod
    def of(program: Program, op: Op) -> _Shape:
        kind = kernel(op, input_specs(program, op) if op.traits.copies else ())
        if kind not in FUSIBLE:
            if kind is not Kernel.FREE:
                return _GENERATED if kind is Kernel.GENERATED else _ALONE
            return _VIEW if op.traits.views and op.comm is None and not op.is_wait else _FREE
        gives = enters = leaves = _elements(op.out)
        if (kind is Kernel.REDUCTION or kind is Kernel.ROWS) and (inputs := input_specs(program, op)):
            enters = inputs[0].count
            leaves = enters if kind is Kernel.ROWS or reduced_along_rows(op, inputs[0]) else gives
        return _Shape(kind, True, False, gives, enters, leaves)


# Most ops: they have nothing of their own to tell.
_VIEW = _Shape(Kernel.FREE, False, True, 0, 0, 0)
_FREE, _GENERATED, _ALONE = [
    _Shape(kind, False, False, 0, 0, 0) for kind in (Kernel.FREE, Kernel.GENERATED, Kernel.ALONE)
]


def _elements(results: Sequence[Spec]) -> int:
    """How many elements the first tensor among some results has."""
    for spec in results:
        if isinstance(spec, TensorSpec):
            return spec.count
    return 0


@dataclass(frozen=True)
class _Graph:
    """- `needs`: for each op, those that it depends on
    - `joins`: those among them where that is no break
    - `levels`: its level, at first the lowest possible
    - `depths`: how many ops come one after the other before it
    """

    needs: list[Sequence[int]]
    joins: list[Sequence[int]]
    levels: list[int]
    depths: list[int]


def _graph(program: Program, shapes: Sequence[_Shape], bases: Sequence[int]) -> _Graph:
    used = arguments(program)
    needs: list[Sequence[int]] = list(dependencies(program).before)
    joins: list[Sequence[int]] = [()] * len(needs)
    levels, depths = [0] * len(needs), [0] * len(needs)
    for position, shape in enumerate(shapes):
        if shape.fusible or shape.is_view:
            joins[position] = _joins(position, used[position], shapes, bases)
        elif shape is _GENERATED:
            needs[position] = _numbers(program, needs[position])
        level = depth = 0
        same = joins[position]
        for other in needs[position]:
            # Written out, since this is the innermost loop and calls of max() are a fifth of all the time.
            above = levels[other] if other in same else levels[other] + 1
            if above > level:
                level = above
            if depths[other] >= depth:
                depth = depths[other] + 1
        levels[position], depths[position] = level, depth
    return _Graph(needs, joins, levels, depths)


def _numbers(program: Program, before: Iterable[int]) -> Sequence[int]:
    """What generated values have to wait for: of the tensor that they are to look like, they need only the shape."""
    return [other for other in before if not any(isinstance(spec, TensorSpec) for spec in program.ops[other].out)]


def _joins(position: int, used: Sequence[int], shapes: Sequence[_Shape], bases: Sequence[int]) -> Sequence[int]:
    """The arguments that a view looks at, or that an op may share its kernel with.

    This settles over how many elements the op runs, so those before it must have been settled.
    """
    shape = shapes[position]
    if shape.is_view:
        base = bases[position]
        return [place for place in used if bases[place] == base]
    if shape.kind is Kernel.GATHER:
        return ()
    # Written out, without a call for each argument: this is a large part of all that fusion does.
    found = [(place, producer) for place in used if (producer := shapes[bases[place]]).fusible]
    if shape.kind is Kernel.POINTWISE:  # it runs over as many elements as what it uses, if that is the result of rows
        for _, producer in found:
            if producer.gives == shape.gives and producer.leaves > shape.leaves:
                shape.enters = shape.leaves = producer.leaves
    return [
        place
        for place, producer in found
        if producer.leaves == shape.enters or producer.leaves == producer.gives == shape.gives
    ]


def _bases(program: Program, shapes: Sequence[_Shape]) -> list[int]:
    """For each op, the position of what it is a view of, through any number of views; its own if it is none."""
    index = program.index
    bases = list(range(len(program)))
    for position in [position for position, shape in enumerate(shapes) if shape.is_view]:
        op = program.ops[position]
        arg = op.argument(op.traits.views[0])
        seen = arg if isinstance(arg, Ref) else next(iter(refs(arg)), None)
        place = index.get(seen.name, position) if seen is not None else position
        if place < position:
            bases[position] = bases[place]
    return bases


def _sink(graph: _Graph, shapes: Sequence[_Shape]) -> None:
    """Take every op that fuses with the lowest of its users to that one's level."""
    levels = graph.levels
    unused = len(levels) + 1
    ceiling = [unused] * len(levels)  # the highest level that the users allow
    joined = [False] * len(levels)  # whether one of those that allow no more is an op to fuse with
    for position in reversed(range(len(levels))):
        shape, joins, fuses = shapes[position], graph.joins[position], True
        level = allowed = levels[position]
        if shape.is_view:  # it stands for its users
            allowed, fuses = ceiling[position], joined[position]
            level = allowed if allowed < unused else level
        elif joined[position] and shape.fusible and not (joins and shape.kind is Kernel.REDUCTION):
            level = allowed = ceiling[position]
        levels[position] = level
        for other in graph.needs[position]:
            limit, fuse = (allowed, fuses) if other in joins else (level - 1, False)
            if limit < ceiling[other]:
                ceiling[other], joined[other] = limit, fuse
            elif fuse and limit == ceiling[other]:
                joined[other] = True


def _written(program: Program, shapes: Sequence[_Shape], bases: Sequence[int]) -> set[int]:
    """The generated values that have to be in memory, since somebody reads them who does not fuse."""
    index = program.index
    names = [ref.name for output in program.outputs for ref in refs(output)]
    for op in (*program.starts, *[op for op, shape in zip(program.ops, shapes, strict=True) if shape is _ALONE]):
        names += read_names(op)
    found = {bases[index[name]] for name in names if name in index}
    return {place for place in found if shapes[place] is _GENERATED}


def _root(roots: list[int], position: int) -> int:
    """The op that stands for the region of this one; the way there gets shorter each time."""
    while roots[position] != position:
        roots[position] = roots[roots[position]]
        position = roots[position]
    return position
