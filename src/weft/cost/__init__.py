"""How long things take: machines, other sources of times, prices of whole programs. Nothing here imports torch."""

from weft.cost.coverage import Coverage, coverage, warn_if_partial
from weft.cost.estimates import Estimates
from weft.cost.machine import Machine, presets
from weft.cost.model import CostModel, HardwareModel
from weft.cost.prices import Prices, prices
from weft.cost.profile import Profile
from weft.cost.times import Times

__all__ = [
    "CostModel",
    "Coverage",
    "Estimates",
    "HardwareModel",
    "Machine",
    "Prices",
    "Profile",
    "Times",
    "coverage",
    "presets",
    "prices",
    "warn_if_partial",
]
