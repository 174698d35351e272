"""How long things take: machines, prices of ops and collectives. Nothing here imports torch."""

from weft.cost.machine import Machine, presets
from weft.cost.model import CostModel, HardwareModel
from weft.cost.prices import Prices, prices

__all__ = ["CostModel", "HardwareModel", "Machine", "Prices", "presets", "prices"]
