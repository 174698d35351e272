"""What must hold of `bucket` on any program. The goldens show each behaviour and refusal."""

from __future__ import annotations

import pytest
from hypothesis import event, given

from tests.programs import programs
from tests.test_properties import inputs
from tests.verify.test_soundness import bits
from weft import pipeline
from weft.ir import Program
from weft.passes import PASSES, make_pass
from weft.run import virtual

MODES = pytest.mark.parametrize("mode", ["default", "coalesced", "multidtype"])


@MODES
@given(subject=programs(steps=(10, 40), mutate_inputs=True))
def test_the_merged_program_computes_the_same(mode: str, subject: Program) -> None:
    result = pipeline.run(subject, [make_pass(PASSES["bucket"], {"mode": mode})])
    event(f"{mode}: {len(subject.starts) - len(result.program.starts)} fewer")
    given_before, given_after = inputs(subject), inputs(subject)
    expected = bits(virtual(subject, given_before))
    for reads in ("early", "late"):
        given_after = inputs(subject)
        assert bits(virtual(result.program, given_after, reads=reads)) == expected
        assert bits(given_after) == bits(given_before)
