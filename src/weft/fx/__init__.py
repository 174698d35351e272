"""The only room that knows torch.fx and c10d: how each op is spelled there, and the way in and out.

A rank that only runs a program needs no more than the way out. To capture takes Dynamo and DTensor, which take two
seconds to import: each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.fx.capturing import capture
    from weft.fx.compiled import Compiled, capture_compiled
    from weft.fx.exporter import relink, to_fx
    from weft.fx.importer import from_fx
    from weft.fx.world import planning

__all__ = ["Compiled", "capture", "capture_compiled", "from_fx", "planning", "relink", "to_fx"]

_HOME = {
    "Compiled": "compiled",
    "capture": "capturing",
    "capture_compiled": "compiled",
    "from_fx": "importer",
    "planning": "world",
    "relink": "exporter",
    "to_fx": "exporter",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'weft.fx' has no attribute {name!r}")
    return getattr(import_module(f"weft.fx.{_HOME[name]}"), name)
