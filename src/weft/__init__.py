"""Weft: a communication compiler for distributed PyTorch.

Importing it is cheap and does not import torch: the passes, the simulator and what needs torch are loaded when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.cost import Estimates, Machine, Profile
from weft.errors import (
    AgreementError,
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
from weft.verify import verify

if TYPE_CHECKING:
    from weft.fx import Compiled, capture, capture_compiled, from_fx, planning, to_fx
    from weft.optimizer import PRESETS, Optimized, optimize, replay
    from weft.passes import PASSES, Plan, Remark, parse_pipeline
    from weft.run import Comparison, Report, compile, enabled, install, last_report, profile  # noqa: A004
    from weft.sim import Timeline, simulate

__version__ = "0.1.0"

__all__ = [
    "PASSES",
    "PRESETS",
    "AgreementError",
    "Collective",
    "Comparison",
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
    "Report",
    "TensorSpec",
    "Timeline",
    "Traits",
    "VerifyError",
    "WeftError",
    "WeftWarning",
    "capture",
    "capture_compiled",
    "compile",
    "enabled",
    "from_fx",
    "install",
    "last_report",
    "optimize",
    "parse",
    "parse_pipeline",
    "planning",
    "print_op",
    "print_program",
    "profile",
    "replay",
    "simulate",
    "to_fx",
    "verify",
]

_LATER = {
    "weft.fx": ("Compiled", "capture", "capture_compiled", "from_fx", "planning", "to_fx"),
    "weft.optimizer": ("PRESETS", "Optimized", "optimize", "replay"),
    "weft.passes": ("PASSES", "Plan", "Remark", "parse_pipeline"),
    "weft.run": ("Comparison", "Report", "compile", "enabled", "install", "last_report", "profile"),
    "weft.sim": ("Timeline", "simulate"),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
