"""The only room that knows torch.fx and c10d: how each op is spelled there, and the way in and out."""

from weft.fx.capture import capture
from weft.fx.compiled import Compiled, capture_compiled
from weft.fx.exporter import relink, to_fx
from weft.fx.importer import from_fx
from weft.fx.world import planning

__all__ = ["Compiled", "capture", "capture_compiled", "from_fx", "planning", "relink", "to_fx"]
