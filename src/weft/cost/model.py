"""What a cost model is: it says how long an op and a collective take. A Machine is one; a user's object may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from weft.ir.program import Collective, Group, Op
from weft.ir.specs import TensorSpec


@runtime_checkable
class CostModel(Protocol):
    """Microseconds for ops and collectives, each alone on an idle machine. Never negative."""

    def op_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        """How long a compute op takes; `inputs` are the specs of its tensor arguments, in order."""

    def collective_us(self, collective: Collective, total_bytes: int) -> float:
        """How long a collective takes; `total_bytes` is the whole tensor, as `analysis.total_bytes` counts it."""


@runtime_checkable
class HardwareModel(CostModel, Protocol):
    """A cost model that also knows what ops share: kernels that fuse, links that groups compete for.

    With a plain CostModel every op is a kernel of its own, every group has a link of its own, and compute does not
    notice communication.
    """

    @property
    def compute_slowdown(self) -> float:
        """The factor, at least 1, by which compute takes longer while anything is communicated."""

    def said_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        """The time of an op that would be fused, if somebody measured or set it; None if its bytes tell."""

    def moved_us(self, nbytes: int) -> float:
        """How long a kernel takes that does nothing but read and write so many bytes; without the launch."""

    @property
    def launch_us(self) -> float:
        """What a kernel takes even if it does nothing."""

    def link_us(self, collective: Collective, total_bytes: int) -> Mapping[str, float]:
        """For each link that a collective crosses, how long it would keep it busy at full bandwidth.

        No more than `collective_us`. Collectives that are in flight together share each link that they both cross.
        """


@runtime_checkable
class SymmetricModel(CostModel, Protocol):
    """A cost model that can price matmuls with a collective inside them."""

    def is_symmetric(self, group: Group) -> bool:
        """Whether the ranks of a group have symmetric memory, which such ops need."""

    def inside_us(self, collective: Collective, total_bytes: int) -> tuple[float, float]:
        """What such an op takes at least: besides multiplying, in any case; and in all but the first of as many steps
        as the group has ranks, in each of which a part is multiplied while another one travels."""

    def multiplied_us(self, matmuls: Sequence[tuple[Op, tuple[TensorSpec, ...]]], parts: int) -> tuple[float, float]:
        """How long some matmuls take at least in so many equal parts: each by itself, and all of them as one; infinite
        if they cannot be one."""


@runtime_checkable
class DivisibleModel(CostModel, Protocol):
    """A cost model that knows what cutting an op can save."""

    def pieces_us(self, op: Op, inputs: tuple[TensorSpec, ...]) -> float:
        """How long the pieces of a compute op take at least, all together, however it is cut."""

    def parts_us(self, op: Op, inputs: tuple[TensorSpec, ...], count: int, more: bool = False) -> float:
        """How long so many equal pieces of a matmul take at least, all together; or so many or more."""
