"""The measured parts of a machine as TOML, as `Machine.load` reads them."""

from __future__ import annotations

from collections.abc import Iterable

from weft.cost.curves import Curve
from weft.cost.matmul import Surface


def curve_text(curve: Curve) -> str:
    """A curve, as a [[curve]]."""
    nodes = f"nodes = {curve.nodes}\n" if curve.nodes > 1 else ""
    return (
        f'[[curve]]\nkind = "{curve.kind}"\nranks = {curve.ranks}\n{nodes}'
        f"bytes = [{_whole(curve.bytes)}]\nus = [{listed(curve.us)}]"
    )


def surface_text(surface: Surface) -> str:
    """A surface, as a [[matmul]]."""
    batched = "" if surface.batched is None else f"batched = {str(surface.batched).lower()}\n"
    rows = "\n".join(f"  [{listed(row)}]," for row in surface.tflops)
    return (
        f'[[matmul]]\ndtype = "{surface.dtype}"\n{batched}'
        f"area = [{_whole(surface.areas)}]\nk = [{_whole(surface.depths)}]\ntflops = [\n{rows}\n]"
    )


def listed(values: Iterable[float]) -> str:
    """Numbers to four digits: nothing is measured better than that."""
    return ", ".join(f"{float(f'{value:.4g}'):g}" for value in values)


def _whole(values: Iterable[float]) -> str:
    return ", ".join(str(round(value)) for value in values)
