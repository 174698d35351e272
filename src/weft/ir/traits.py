"""`Traits`: what an op is, as far as moving it is concerned."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Traits:
    """What an op is, as far as moving it is concerned. Arguments are named by position or by keyword.

    - `views`: its results may share storage with these arguments
    - `copies`: or they may not: whether it copies is seen only when it runs, so it counts as a reader
    - `mutates`: it writes to these arguments
    - `random`: it draws from the generator that all such ops share, so they keep their order
    - `matmul`: it multiplies matrices
    - `communicates`: it needs other ranks to take part
    - `barrier`: nothing is known of its effects, so nothing moves across it

    `is_view` follows from these: it only looks at its argument in another way, reads no element and takes no time.
    """

    views: tuple[int | str, ...] = ()
    mutates: tuple[int | str, ...] = ()
    copies: bool = False
    random: bool = False
    matmul: bool = False
    communicates: bool = False
    barrier: bool = False
    is_view: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reads = self.copies or self.mutates or self.barrier or self.communicates
        object.__setattr__(self, "is_view", bool(self.views) and not reads)  # every analysis asks it of every op


PURE = Traits()
BARRIER = Traits(barrier=True)
