"""The goldens under tests/golden/verify show what `weft verify` prints; here is the rest."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Weft

BEFORE = """weft 1

%x: f32[2] = input()
%y: f32[2] = aten.neg.default(%x)
return %x, %y
"""
AFTER = BEFORE.replace("neg", "relu").replace("return %x, %y", "return %y, %y")


def test_safe_programs_exit_with_zero(weft: Weft) -> None:
    Path("before.weft").write_text(BEFORE)
    for words in (["before.weft"], ["before.weft", "before.weft"]):
        outcome = weft("verify", *words)
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "safe\n", "")
        as_json = weft("verify", "--json", *words)
        assert (as_json.exit_code, as_json.stderr) == (0, "")
        assert json.loads(as_json.stdout) == {"safe": True, "violations": []}


def test_unsafe_programs_exit_with_one_and_list_every_violation(weft: Weft) -> None:
    Path("before.weft").write_text(BEFORE)
    Path("after.weft").write_text(AFTER)
    outcome = weft("verify", "before.weft", "after.weft")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr == (
        "weft: 2 violations\n"
        "\n"
        "outputs_kept: output 0 was %x and is %y\n"
        "        0 | %x: f32[2] = input()\n"
        "  >     1 | %y: f32[2] = aten.relu.default(%x)\n"
        "\n"
        "arguments_kept: %y was another op before: %y: f32[2] = aten.neg.default(%x)\n"
        "        0 | %x: f32[2] = input()\n"
        "  >     1 | %y: f32[2] = aten.relu.default(%x)\n"
    )
    as_json = weft("verify", "--json", "before.weft", "after.weft")
    assert (as_json.exit_code, as_json.stderr) == (1, "")
    assert json.loads(as_json.stdout) == {
        "safe": False,
        "violations": [
            {"rule": "outputs_kept", "op": "y", "message": "output 0 was %x and is %y"},
            {
                "rule": "arguments_kept",
                "op": "y",
                "message": "%y was another op before: %y: f32[2] = aten.neg.default(%x)",
            },
        ],
    }


def test_one_program_may_come_from_standard_input_and_two_may_not(weft: Weft) -> None:
    Path("before.weft").write_text(BEFORE)
    assert weft("verify", "-", stdin=BEFORE).stdout == "safe\n"
    assert weft("verify", "before.weft", "-", stdin=BEFORE).stdout == "safe\n"
    assert weft("verify", "-", "before.weft", stdin=BEFORE).stdout == "safe\n"
    outcome = weft("verify", "-", "-", stdin=BEFORE)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: only one of the two programs can come from standard input\n"
