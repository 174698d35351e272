"""Views of a matrix whose rows come to lie apart, and users that would not take it so."""

from __future__ import annotations

import pytest

from tests.analysis.texts import program
from weft.ir.printer import print_spec
from weft.passes.layouts import spread_views

TEXT = """
    %x: f32[6,3] = input()
    %w: f32[3,8] = input()
    %y: f32[6,8] = aten.mm.default(%x, %w)
    %same: f32[6,8] = aten.detach.default(%y)
    %heads: f32[1,6,2,4] = aten.view.default(%y, [1, 6, 2, 4])
    %halves: f32[1,2,3,8] = aten.view.default(%heads, [1, 2, 3, 8])
    %silu: f32[1,2,3,8] = aten.silu.default(%halves)
    return %silu
"""


def spread(text: str) -> dict[str, str] | None:
    found = spread_views(program(text), "y", 20)
    return None if found is None else {op.name: print_spec(spec) for op, spec in found}


def test_views_keep_their_shapes_and_skip_what_lies_between_the_rows() -> None:
    assert spread(TEXT) == {
        "same": "f32[6,8;20,1]",
        "heads": "f32[1,6,2,4;120,20,4,1]",
        "halves": "f32[1,2,3,8;120,60,20,1]",
    }


def test_views_stay_on_their_device() -> None:
    text = TEXT.replace("%same: f32[6,8]", "%same: f32[6,8]@meta")
    found = spread_views(program(text), "y", 20)
    assert found is not None
    assert {op.name: spec.device for op, spec in found} == {"same": "meta", "heads": "", "halves": ""}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return %silu", "return %silu, %same"),
        ("return %silu", "%t: f32[8,6;1,8] = aten.t.default(%same)\n    return %silu"),
        ("aten.silu.default", "aten.relu_.default"),
        ("f32[1,2,3,8] = aten.silu.default(%halves)", "f32[1,2,3,3] = aten.matmul.default(%halves, %v)"),
        ("[1,6,2,4] = aten.view.default(%y, [1, 6, 2, 4])", "[3,16] = aten.view.default(%y, [3, 16])"),
    ],
    ids=["returned", "turned", "written to", "multiplied", "over the end of a row"],
)
def test_users_that_would_not_take_it(old: str, new: str) -> None:
    assert old in TEXT
    given = TEXT.replace("    %y:", "    %v: f32[8,3] = input()\n    %y:")
    assert spread(given) is not None
    assert spread(given.replace(old, new)) is None
