"""Weft: a communication compiler for distributed PyTorch.

Importing it is cheap and does not import torch; what needs torch is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.cost import Estimates, Machine, Profile
from weft.errors import (
    CostError,
    GraphError,
    MachineError,
    OptionError,
    ParseError,
    PassError,
    PlanError,
    ProfileError,
    ProgramError,
    VerifyError,
    WeftError,
    WeftWarning,
)
from weft.ir import Collective, Editor, Group, Op, Program, Ref, TensorSpec, Traits, parse, print_op, print_program

# This rebinds the package's attribute from the module of that name to the function, which is what people call.
from weft.optimize import PRESETS, Optimized, optimize, replay
from weft.passes import PASSES, Plan, Remark, parse_pipeline
from weft.sim import Timeline, simulate
from weft.verify import verify  # rebound, as `optimize` is

if TYPE_CHECKING:
    from weft.fx import Compiled, capture, capture_compiled, from_fx, planning, to_fx

__version__ = "0.1.0"

__all__ = [
    "PASSES",
    "PRESETS",
    "Collective",
    "Compiled",
    "CostError",
    "Editor",
    "Estimates",
    "GraphError",
    "Group",
    "Machine",
    "MachineError",
    "Op",
    "Optimized",
    "OptionError",
    "ParseError",
    "PassError",
    "Plan",
    "PlanError",
    "Profile",
    "ProfileError",
    "Program",
    "ProgramError",
    "Ref",
    "Remark",
    "TensorSpec",
    "Timeline",
    "Traits",
    "VerifyError",
    "WeftError",
    "WeftWarning",
    "capture",
    "capture_compiled",
    "from_fx",
    "optimize",
    "parse",
    "parse_pipeline",
    "planning",
    "print_op",
    "print_program",
    "replay",
    "simulate",
    "to_fx",
    "verify",
]

_NEED_TORCH = {
    "Compiled": "weft.fx",
    "capture": "weft.fx",
    "capture_compiled": "weft.fx",
    "from_fx": "weft.fx",
    "planning": "weft.fx",
    "to_fx": "weft.fx",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)
