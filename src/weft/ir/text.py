"""The text form of a Program. `parse(print_program(p)) == p` for every p.

    weft 1
    group dp = 0..7
    symbol s0 = 4096

    %x: bf16[s0,512] = input()
    %w: bf16[64,512] = input()
    %ag: bf16[512,512] = all_gather.start(%w) over dp  # layers.0.up model.py:12
    %full: bf16[512,512] = wait(%ag)
    %y: bf16[s0,512] = aten.mm.default(%x, %full)
    return %y

docs/text_form.md has the grammar.
"""

from weft.ir.parser import parse
from weft.ir.printer import VERSION, counted, print_op, print_program, print_spec, print_value

__all__ = ["VERSION", "counted", "parse", "print_op", "print_program", "print_spec", "print_value"]
