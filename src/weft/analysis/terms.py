"""What values are, as terms: where two terms are the same, so are all elements, bit for bit and in the same order.

A term stands for the elements of a value row by row, without its shape. Views that keep that order, copies and waits
are looked through; casts, slices and collectives are terms of their own; every other op is a leaf. The table of terms
(`term_table.py`) knows which are equal.

Memory that is written is taken into account: a value that is read there is what the last writer left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from weft.analysis.kernels import slice_args
from weft.analysis.storages import storages
from weft.analysis.term_table import Table
from weft.ir.args import Ref
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec

_KEEP_ORDER = frozenset(
    """
    wait aten.view.default aten.reshape.default aten._unsafe_view.default aten.flatten.using_ints aten.detach.default
    aten.alias.default aten.clone.default aten.contiguous.default aten.squeeze.default aten.squeeze.dim
    aten.squeeze.dims aten.unsqueeze.default aten.reshape_as.default
    """.split()
)
CASTS = frozenset("aten._to_copy.default prims.convert_element_type.default aten.to.dtype".split())
_SPLITS = frozenset("aten.split.Tensor aten.split_with_sizes.default aten.chunk.default".split())
# What they give depends on more than the elements of what they are given.
_OF_LAYOUT = frozenset("aten.as_strided.default aten._reshape_alias.default".split())


@dataclass(frozen=True)
class Terms:
    """Of each op with one tensor as its result: the term of it. Of each start: the term of what it is given."""

    of: Mapping[str, int]
    sent: Mapping[str, int]


def terms(program: Program, table: Table | None = None, known: Callable[[Op], bool] = lambda op: True) -> Terms:
    """The terms of a Program. Ops that are not `known` are like no op of another Program with the same table."""
    return _Walk(program, table or Table(program.rank), known).run()


class _Walk:
    def __init__(self, program: Program, table: Table, known: Callable[[Op], bool]) -> None:
        self._program, self._table, self._known = program, table, known
        self._storages = storages(program)
        self._all_of = self._storages.all_of
        self._specs: dict[str, TensorSpec] = {}  # of each op so far whose result is one tensor
        self._written = {place for op in program.ops if op.traits.mutates for place in self._places(op)}
        self._writer: dict[int, str] = {}
        self._of: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    def run(self) -> Terms:
        for op in self._program.ops:
            if len(op.out) == 1:
                if isinstance(op.out[0], TensorSpec):
                    self._specs[op.name] = op.out[0]
                self._of[op.name] = self._term(op)
            if op.traits.mutates:
                self._writer.update(dict.fromkeys(self._places(op), self._name(op)))
        return Terms(self._of, self._sent)

    def _places(self, op: Op) -> frozenset[int]:
        return self._storages.of_args(op.argument(key) for key in op.traits.mutates) if op.traits.mutates else _NONE

    def _name(self, op: Op) -> str:
        return op.name if self._known(op) else f"new {op.name}"

    def _term(self, op: Op) -> int:
        found = None
        if op.comm is not None:
            found = self._collective(op)
        elif op.target == "getitem":
            found = self._taken(op)
        elif op.target == "aten.add.Tensor":
            found = self._added(op)
        elif op.traits.is_view or op.target in _KEEP_ORDER or op.target in CASTS:
            found = self._moved(op)
        return found if found is not None else self._table.term("leaf", self._key(op))

    def _key(self, op: Op) -> Hashable:
        return ("get_attr", repr(op.args)) if op.target == "get_attr" else self._name(op)

    def _read(self, name: str) -> int | None:
        """What is found in a value now."""
        term, places = self._of.get(name), self._all_of.get(name, ())
        if term is None or self._written.isdisjoint(places):
            return term
        makers = [(self._name(self._program.ops[self._storages.maker[place]]), place) for place in {*places}]
        state = tuple(sorted((maker, self._writer.get(place, "")) for maker, place in makers))
        return self._table.term("state", term, state)

    def _collective(self, op: Op) -> int | None:
        comm, value = op.comm, op.args[0] if op.args else None
        if comm is None or op.target != f"{comm.kind}.start" or not isinstance(value, Ref) or op.kwargs.keys() - _GROUP:
            return None
        sent = self._read(value.name)
        if sent is None:
            return None
        self._sent[op.name] = sent
        match comm.kind:
            case "all_gather":
                return self._table.gather(comm.group, sent)
            case "all_reduce":
                return self._table.term("reduce", comm.group, comm.reduce_op, sent)
            case "reduce_scatter":
                return self._table.term("scatter", comm.group, comm.reduce_op, sent)
            case "broadcast":
                return self._table.term("broadcast", comm.group, repr(op.args[1:]), sent)
            case "all_to_all":
                rows = self._specs.get(value.name)
                return self._table.term("exchange", comm.group, repr(op.args[1:]), rows and rows.shape[1:], sent)
        return None

    def _moved(self, op: Op) -> int | None:
        """Of an op that only moves the elements of one tensor, or casts them."""
        value = op.args[0] if op.args else None
        if not isinstance(value, Ref) or len({*op.given}) != 1 or op.target in _OF_LAYOUT:
            return None
        given, made = self._specs.get(value.name), self._specs.get(op.name)
        # A view looks at its base when it is read itself.
        term = self._of.get(value.name) if op.traits.is_view else self._read(value.name)
        if given is None or made is None or term is None or given.device != made.device:
            return None
        if op.target in CASTS:
            return term if given.dtype == made.dtype else self._table.cast(made.dtype, term)
        if op.target in _KEEP_ORDER:
            return term
        if op.target == "aten.slice.Tensor":
            return self._sliced(op, term, given)
        literals = (op.args[1:], tuple(op.kwargs.items()))
        return self._table.term(op.target, literals, made.dtype, term, given.shape, made.shape)

    def _added(self, op: Op) -> int | None:
        """Of the sum of two tensors of one type."""
        match op.args:
            case (Ref(one), Ref(other)) if not op.kwargs:
                specs = [self._specs.get(name) for name in (op.name, one, other)]
                if len({spec and (spec.shape, spec.dtype) for spec in specs} - {None}) == 1 and None not in specs:
                    left, right = self._read(one), self._read(other)
                    return None if left is None or right is None else self._table.add(left, right, self._known(op))
        return None

    def _sliced(self, op: Op, term: int, given: TensorSpec) -> int | None:
        dim, first, last, step = slice_args(op)
        made = self._specs.get(op.name)
        if (
            made is None
            or not all(isinstance(one, int | None) for one in (dim, first, last, step))
            or step not in (1, None)
        ):
            return None
        dim = dim % len(given.shape) if isinstance(dim, int) else 0
        size = given.shape[dim]
        if not isinstance(size, int):
            return None
        begin = first if isinstance(first, int) else 0
        return self._cut(term, given, made, dim, max(0, begin + size if begin < 0 else begin))

    def _taken(self, op: Op) -> int | None:
        """Of an element of several results."""
        value, number = (*op.args, None, None)[:2]
        if not isinstance(value, Ref) or not isinstance(number, int):
            return None
        whole = self._program[value.name]
        base, dim = whole.argument(0), whole.argument(2) or whole.argument("dim") or 0
        if whole.target not in _SPLITS or not isinstance(base, Ref) or not isinstance(dim, int):
            return self._table.term("result", self._name(whole), number) if len(whole.out) > 1 else None
        given, made, term = self._specs.get(base.name), self._specs.get(op.name), self._of.get(base.name)
        if given is None or made is None or term is None:
            return None
        dim %= len(given.shape)
        sizes = [spec.shape[dim] for spec in whole.out if isinstance(spec, TensorSpec)]
        before = [size for size in sizes[: number % len(sizes)] if isinstance(size, int)]
        return self._cut(term, given, made, dim, sum(before)) if len(before) == number % len(sizes) else None

    def _cut(self, term: int, given: TensorSpec, made: TensorSpec, dim: int, begin: int) -> int | None:
        """Of `made`, which begins there in `given`."""
        whole, size = given.shape[dim], made.shape[dim]
        if not isinstance(whole, int) or not isinstance(size, int):
            return None
        if size == whole:
            return term
        in_a_row = all(one == 1 for one in given.shape[:dim])
        if in_a_row and size and whole % size == 0 and begin % size == 0:
            return self._table.part(whole // size, begin // size, term)
        return self._table.term("slice", dim, begin, size, term, given.shape)


_NONE: frozenset[int] = frozenset()
_GROUP = frozenset(["group"])  # an object that says what `comm` says
