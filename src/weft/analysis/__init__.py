"""Pure functions from a Program to facts about it. Nothing here decides, and nothing here imports torch."""

from weft.analysis.ancestors import Ancestors, ancestors
from weft.analysis.dependencies import Dependencies, Kind, dependencies
from weft.analysis.memory import Memory, memory
from weft.analysis.pairs import Pairs, pairs
from weft.analysis.storages import Storages, storages

__all__ = [
    "Ancestors",
    "Dependencies",
    "Kind",
    "Memory",
    "Pairs",
    "Storages",
    "ancestors",
    "dependencies",
    "memory",
    "pairs",
    "storages",
]
