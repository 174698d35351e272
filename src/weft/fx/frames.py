"""Whose code a stack frame is: whoever reads an origin wants the line in their own code, not the one it led to."""

from __future__ import annotations

import os

import torch

_LIBRARY = os.path.dirname(os.__file__)
_WEFT = os.path.dirname(os.path.dirname(__file__))
_NOT_THEIRS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.join(_WEFT, "fx") + os.sep,
    os.path.join(_WEFT, "parallel") + os.sep,
    "<eval_with_key>",  # code that torch generated
)


def is_theirs(file: str) -> bool:
    """Whether a file is the user's, and neither torch's nor ours nor a module of Python itself, such as contextlib."""
    return not file.startswith(_NOT_THEIRS) and os.path.dirname(file) != _LIBRARY
