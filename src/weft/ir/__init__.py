"""The nouns of Weft, and the text that they are written in. Nothing here imports torch."""

from weft.ir.args import Arg, Const, Device, Dict, Dtype, Function, Opaque, Ref, Slice, Tuple
from weft.ir.dims import Dim, Expr, hint, symbol
from weft.ir.editor import Editor
from weft.ir.program import Collective, Group, Op, Program
from weft.ir.specs import DTYPES, ScalarSpec, Spec, TensorSpec
from weft.ir.text import parse, print_op, print_program, print_spec, print_value
from weft.ir.traits import Traits

__all__ = [
    "DTYPES",
    "Arg",
    "Collective",
    "Const",
    "Device",
    "Dict",
    "Dim",
    "Dtype",
    "Editor",
    "Expr",
    "Function",
    "Group",
    "Op",
    "Opaque",
    "Program",
    "Ref",
    "ScalarSpec",
    "Slice",
    "Spec",
    "TensorSpec",
    "Traits",
    "Tuple",
    "hint",
    "parse",
    "print_op",
    "print_program",
    "print_spec",
    "print_value",
    "symbol",
]
