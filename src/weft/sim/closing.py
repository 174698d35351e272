"""What an op that is not cut has to wait for if what it reads is made in pieces. docs/bounds.md has the use of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.analysis.dependencies import arguments
from weft.analysis.fusion import fusion
from weft.analysis.kernels import Kernel
from weft.cost.model import CostModel, HardwareModel
from weft.ir.program import Program
from weft.ir.specs import TensorSpec

_FROM_MEMORY = (Kernel.ALONE, Kernel.GATHER)  # what these read is in memory: they share no kernel with what makes it


def closing(
    program: Program, cost: CostModel, us: Sequence[float], whole: Sequence[bool]
) -> Mapping[int, Sequence[tuple[int, float]]]:
    """For ops that are `whole` and read from memory, by position: each op that makes what one reads, and how long it
    takes from the last piece of what leads to that one, at the least. If it is not cut, it comes as a whole behind that
    piece; if it is, its own pieces are put together, which writes all of it. `us` is what ops take."""
    if not isinstance(cost, HardwareModel):
        return {}
    kinds, given = fusion(program).kinds, arguments(program)
    found: dict[int, list[tuple[int, float]]] = {}
    for place in (place for place, one in enumerate(whole) if one and kinds[place] in _FROM_MEMORY):
        for other in given[place]:
            while program.ops[other].traits.is_view and not program.ops[other].is_wait and given[other]:
                other = given[other][0]
            nbytes = sum(spec.nbytes for spec in program.ops[other].out if isinstance(spec, TensorSpec))
            found.setdefault(place, []).append((other, min(us[other], cost.moved_us(nbytes))))
    return found
