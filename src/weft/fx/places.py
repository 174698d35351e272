"""Places in the user's own code, for errors and origins: file:line, and the paths of modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from traceback import walk_stack

from weft.fx.frames import is_theirs

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Dynamo spells paths as expressions: L['self'].layers[0].up, or with _modules in between. This is how one begins,
# before it comes to a part of the model: a variable, an argument of `capture_compiled`, what a function closes over.
_ROOT = re.compile(
    r"^(?:L\['weft_args'\]\[\d+\]|L\['weft_kwargs'\]\['\w+'\]|[LG]\['\w+'\])"
    r"(?:\.__self__|\.__closure__\[\d+\]\.cell_contents)*"
)


def place_among(frames: Iterable[tuple[str, int]]) -> str:
    """The last of these frames, outermost first, that is the user's; "" if none is."""
    place = ""
    for file, line in frames:
        if is_theirs(file):
            place = f"{file}:{line}"
    return place


def place_in(trace: str) -> str:
    """The user's innermost line in a stack trace as torch writes it into a node's metadata."""
    return place_among((file, int(line)) for file, line in _FRAME.findall(trace))


def called_at() -> str:
    """The user's line that is now inside a call of ours."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe())]
    return place_among(reversed(frames))


def module_path(path: str) -> str:
    """The path of a module as `named_modules` has it, from how torch's tracers spell it."""
    path = _ROOT.sub("", path)
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path)
    return path.strip(".")
