"""Which matmul makes what a reduce-scatter scatters, or which matmuls whose products are added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.analysis.pairs import pairs
from weft.ir.args import Ref
from weft.ir.dims import Dim
from weft.ir.program import Op, Program
from weft.ir.specs import TensorSpec
from weft.passes.factors import Matmul, matmul_of, rows_and_depth, scaled_like, tensor
from weft.passes.holders import CAT, Cut, cut_of, maker, uses, writers


@dataclass(frozen=True)
class Scattering:
    """A matmul and the reduce-scatter of its result; or several matmuls and that of the sum of their results, which is
    the result of one: of their left factors side by side by their right ones one below the other.

    - `left`: how the fused op sees the left factor
    - `whole`: the shape in which the product is scattered along `dim`
    - `dropped`: what nobody needs any more, the matmuls included
    """

    start: str
    wait: str
    left: TensorSpec
    dim: int
    matmuls: tuple[Matmul, ...]
    whole: tuple[Dim, ...]
    dropped: tuple[str, ...]


def scattering(program: Program, start: str) -> Scattering | str:
    """The reduce-scatter that `start` begins, with the matmuls that make what it scatters; or why there are none."""
    op = program[start]
    sent = op.args[0]
    assert isinstance(sent, Ref)
    way: list[str] = []
    made, cut = maker(program, sent.name, way), None
    if made.target == CAT and made.argument(1, "dim") in (None, 0) and (cut := cut_of(program, made)) is not None:
        way += _parts(program, made, cut)
        made = maker(program, cut.base, way)
    matmuls: list[Matmul] = []
    for term in _terms(program, made, way):
        matmul = matmul_of(term)
        if not isinstance(matmul, Matmul):
            return matmul if isinstance(matmul, str) else _not_a_matmul(program, made)
        matmuls.append(matmul)
    way += [one.name for one in matmuls]
    why = _unlike(program, made, matmuls) or _used_elsewhere(program, start, way) or _written(program, matmuls, start)
    return why or _shaped(program, op, matmuls, cut, way)


def _terms(program: Program, made: Op, way: list[str]) -> list[Op]:
    """What is added up to make a value, through any number of sums, which are added to `way`; itself if it is none."""
    match made.target, made.args:
        case "aten.add.Tensor", (Ref(one), Ref(other)) if not made.kwargs:
            if tensor(program, one) == tensor(program, other) == tensor(program, made.name):
                way.append(made.name)
                return [term for name in (one, other) for term in _terms(program, maker(program, name, way), way)]
    return [made]


def _parts(program: Program, cat: Op, cut: Cut) -> list[str]:
    """A concatenation, the parts that it joins, and what cuts them off."""
    parts = [ref.name for ref in cat.refs()]
    cutting = dict.fromkeys(ref.name for part in parts for ref in program[part].refs() if ref.name != cut.base)
    return [cat.name, *parts, *cutting]


def _shaped(
    program: Program, start: Op, matmuls: Sequence[Matmul], cut: Cut | None, way: Sequence[str]
) -> Scattering | str:
    """The shapes of the fused op. Where nothing comes before the dimension that is cut, its rows are the product's."""
    assert start.comm is not None, "a start communicates"
    sizes, ranks, matmul = [rows_and_depth(program, one) for one in matmuls], start.comm.group.size, matmuls[0]
    known = [size for size in sizes if size is not None]
    columns = tensor(program, matmul.name).shape[-1]
    if len(known) < len(sizes):
        return "its sizes are symbols"
    if cut is not None and cut.parts != ranks:
        return f"its input is joined from {cut.parts} parts, and its group has {ranks} ranks"
    whole: tuple[Dim, ...] = (known[0][0], columns)
    dim = 0
    if cut is not None and any(one != 1 for one in tensor(program, cut.base).shape[: cut.dim]):
        whole, dim = tensor(program, cut.base).shape, cut.dim
    if whole[-1] != columns:
        return f"the columns of %{matmul.name} are cut up before they are scattered"
    if matmul.scale is not None and dim > min(1, len(whole) - 2):
        return f"a fused op with scales cannot scatter dimension {dim}"
    if not isinstance(rows := whole[dim], int) or rows % ranks:
        return f"the {rows} rows of %{matmul.name} do not go to {ranks} ranks, so many to each"
    left = TensorSpec((*whole[:-1], sum(depth for _, depth in known)), tensor(program, matmul.left).dtype)
    seen = scaled_like(program, matmul, left.shape)
    if isinstance(seen, str):
        return seen
    (wait,) = pairs(program).waits[start.name]
    return Scattering(start.name, wait, left, dim, (seen, *matmuls[1:]), whole, (start.name, *way))


def _unlike(program: Program, made: Op, matmuls: Sequence[Matmul]) -> str | None:
    """Why one matmul could not make what several do together."""
    if len(matmuls) > 1 and any(one.scale is not None for one in matmuls):
        return f"%{made.name} is a sum of scaled products"
    if len({one.name for one in matmuls}) < len(matmuls):
        return f"%{made.name} adds up a product several times"
    if len({(rows_and_depth(program, one) or (0,))[0] for one in matmuls}) > 1:
        return f"%{made.name} adds up products that have different numbers of rows"
    return None


def _not_a_matmul(program: Program, made: Op) -> str:
    terms = [maker(program, ref.name, []) for ref in made.refs()]
    summed = next((op for op in terms if matmul_of(op) is not None), None)
    if made.target == "aten.add.Tensor" and summed is not None:
        return f"%{made.name} is a sum, of %{summed.name} among others, and not one matmul"
    return f"%{made.name} ({made.target}) is no matmul"


def _used_elsewhere(program: Program, start: str, way: Sequence[str]) -> str | None:
    known, own = uses(program), {start, *way}
    for name in way:
        other = next((user.name for user in known.users[name] if user.name not in own), None)
        if other is not None:
            return f"%{other} uses the product %{name} unscattered"
        if name in known.returned:
            return f"the product %{name} is returned unscattered"
    return None


def _written(program: Program, matmuls: Sequence[Matmul], start: str) -> str | None:
    """Who writes to a factor between a matmul and the collective, where the fused op would read it."""
    for matmul in matmuls:
        factors = program[matmul.name].given
        writer = next(writers(program, factors, program.index[matmul.name], program.index[start]), None)
        if writer is not None:
            return f"%{writer.name} writes to a factor of %{matmul.name}"
    return None
