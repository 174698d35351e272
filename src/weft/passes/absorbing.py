"""Which ops in front of a collective `weft.pack` makes needless: it converts, and reads any layout."""

from __future__ import annotations

from weft.analysis.terms import CASTS
from weft.analysis.windows import Window
from weft.ir.args import Ref
from weft.ir.program import Program
from weft.ir.specs import TensorSpec
from weft.passes.results import returned

# They give the same elements in the same order, row by row.
_LAYOUTS = frozenset(
    """
    aten._unsafe_view.default aten.alias.default aten.clone.default aten.contiguous.default aten.detach.default
    aten.flatten.using_ints aten.reshape.default aten.squeeze.default aten.squeeze.dim aten.squeeze.dims
    aten.unsqueeze.default aten.view.default
    """.split()
)


def absorbed(program: Program, member: Window) -> tuple[int, ...]:
    """The end of a member's prelude that a pack can do without, as positions in order.

    Of several conversions only the last one can go: what was rounded twice is not what is rounded once. Nobody writes
    to what these ops read, up to the place where the collective is launched: it would come behind them, and nothing
    but the collective comes behind a prelude.
    """
    found: list[int] = []
    converted = False
    for position in reversed(member.prelude):
        op = program.ops[position]
        converts = _converts(program, position)
        able = op.target in CASTS or (op.target in _LAYOUTS and not converts)
        if not able or (converts and converted) or _moves_elsewhere(program, position) or op.name in returned(program):
            break
        converted = converted or converts
        found.append(position)
    return tuple(reversed(found))


def before_absorbed(program: Program, member: Window) -> Ref:
    """What a pack is given for a member: what it sends, as it was before the ops that are absorbed."""
    chain = absorbed(program, member)
    return program.ops[chain[0]].refs()[0] if chain else member.start.refs()[0]


def conversions(program: Program, member: Window) -> int:
    """How many of these convert: one or none."""
    return sum(_converts(program, position) for position in absorbed(program, member))


def _converts(program: Program, position: int) -> bool:
    op = program.ops[position]
    return op.out[0].dtype != program[op.given[0]].out[0].dtype


def _moves_elsewhere(program: Program, position: int) -> bool:
    """Whether it gives a tensor to another device, or is not about one tensor."""
    op = program.ops[position]
    specs = [*program[op.given[0]].out, *op.out]
    devices = {spec.device if isinstance(spec, TensorSpec) else None for spec in specs}
    return len(op.given) != 1 or len(specs) != 2 or len(devices) != 1 or None in devices
