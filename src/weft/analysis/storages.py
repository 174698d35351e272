"""Which values share memory: views share their base's storage, in-place results that of their input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.analysis.reordering import Reordering, reordering
from weft.ir.args import Arg, Ref, parts, refs
from weft.ir.program import Op, Program
from weft.ir.specs import Spec, TensorSpec


@dataclass(frozen=True)
class Storages:
    """Storages are numbered in the order in which they are made; in a reordered Program they keep their numbers.

    - `of`: for each op, the storages of each of its results; more than one where it may be any of several
    - `all_of`: for each op, the storages of all its results
    - `maker`: for each storage, the position of the op that allocates it
    - `nbytes`: for each storage, its size; zero for what does not lie on the device
    """

    of: Mapping[str, tuple[tuple[int, ...], ...]]
    all_of: Mapping[str, tuple[int, ...]]
    maker: tuple[int, ...]
    nbytes: tuple[int, ...]

    def of_value(self, name: str) -> frozenset[int]:
        """All storages that a value touches; none for a value that is not defined."""
        return frozenset(self.all_of.get(name, ()))

    def of_args(self, args: Iterable[Arg]) -> frozenset[int]:
        """All storages that these arguments touch."""
        return self.of_values(ref.name for arg in args for ref in refs(arg))

    def of_values(self, names: Iterable[str]) -> frozenset[int]:
        """All storages that these values touch."""
        all_of = self.all_of
        return frozenset([storage for name in names for storage in all_of.get(name, ())])

    def reordered(self, how: Reordering) -> Storages:
        """The storages of the reordered Program: the same ones, made elsewhere."""
        return replace(self, maker=tuple([how.place[position] for position in self.maker]))


def storages(program: Program) -> Storages:
    """The storages of a Program. Inputs are taken to be distinct."""
    return program.fact(_storages)


def uses(program: Program) -> Sequence[Sequence[int]]:
    """For each storage, the positions of the ops that are given a value in it."""
    return program.fact(_uses)


def _uses(program: Program) -> Sequence[Sequence[int]]:
    if (how := reordering(program)) is not None:
        place = how.place
        return [[place[position] for position in found] for found in uses(how.original)]
    all_of = storages(program).all_of
    found: list[list[int]] = [[] for _ in storages(program).maker]
    for position, op in enumerate(program.ops):
        for name in op.given:
            for storage in all_of.get(name, ()):
                found[storage].append(position)
    return found


def _storages(program: Program) -> Storages:
    if (how := reordering(program)) is not None:
        return storages(how.original).reordered(how)
    of: dict[str, tuple[tuple[int, ...], ...]] = {}
    all_of: dict[str, tuple[int, ...]] = {}
    attributes: dict[Arg, tuple[tuple[int, ...], ...]] = {}
    maker: list[int] = []
    made: list[Spec] = []
    for position, op in enumerate(program.ops):
        if op.target == "get_attr":  # it may be fetched several times, and is one tensor all the same
            shared = attributes.get(op.argument(0))
        else:
            shared = _shared(op, of) if op.traits.views else None
        if shared is None:
            first, count = len(made), len(op.out)
            shared = ((first,),) if count == 1 else tuple([(number,) for number in range(first, first + count)])
            made += op.out
            maker += [position] * count
            if op.target == "get_attr":
                attributes[op.argument(0)] = shared
        of[op.name] = shared
        all_of[op.name] = shared[0] if len(shared) == 1 else tuple([one for result in shared for one in result])
    sizes = {key: _device_bytes(spec) for key, spec in {id(spec): spec for spec in made}.items()}  # many share a spec
    return Storages(of, all_of, tuple(maker), tuple([sizes[id(spec)] for spec in made]))


def _shared(op: Op, of: Mapping[str, tuple[tuple[int, ...], ...]]) -> tuple[tuple[int, ...], ...] | None:
    """The storages of a view's or an in-place op's results; None if it makes its own."""
    if op.target == "getitem":
        return (_element(op, of),)
    bases = [op.argument(key) for key in op.traits.views]
    first = bases[0]
    if type(first) is Ref and len(bases) == 1:
        results = of.get(first.name, ())
        if len(results) == 1 and len(op.out) == 1:
            return results  # nearly all: one tensor, seen otherwise
    if len(bases) == 1 and isinstance(bases[0], tuple) and len(bases[0]) == len(op.out):
        return tuple(_touched(item, of) for item in bases[0])  # a list in, a list out, item by item
    together = tuple(sorted({storage for base in bases for storage in _touched(base, of)}))
    # An optional argument that was left out (`out=None`): the result is its own.
    return (together,) * len(op.out) if together else None


def _element(op: Op, of: Mapping[str, tuple[tuple[int, ...], ...]]) -> tuple[int, ...]:
    base, index = op.argument(0), op.argument(1)
    results = of.get(base.name, ()) if isinstance(base, Ref) else ()
    if isinstance(index, int) and -len(results) <= index < len(results):
        return results[index]
    return _touched(base, of)


def _touched(arg: Arg, of: Mapping[str, tuple[tuple[int, ...], ...]]) -> tuple[int, ...]:
    if isinstance(arg, Ref):
        results = of.get(arg.name, ())
        return results[0] if len(results) == 1 else tuple(sorted({s for result in results for s in result}))
    return tuple(sorted({storage for part in parts(arg) for storage in _touched(part, of)}))


def _device_bytes(spec: Spec) -> int:
    return spec.nbytes if isinstance(spec, TensorSpec) and not spec.device else 0
