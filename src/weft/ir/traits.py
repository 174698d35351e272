"""`Traits`: what an op is, as far as moving it is concerned."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    views: tuple[int | str, ...] = ()
    mutates: tuple[int | str, ...] = ()
    copies: bool = False
    random: bool = False
    matmul: bool = False
    communicates: bool = False
    barrier: bool = False

    @property
    def is_view(self) -> bool:
        """Whether it only looks at its argument in another way: it reads no element and takes no time."""
        reads = self.copies or self.mutates or self.barrier or self.communicates
        return bool(self.views) and not reads


PURE = Traits()
BARRIER = Traits(barrier=True)
