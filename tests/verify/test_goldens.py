"""Every rule ships the smallest programs that it must reject: tests/golden/verify/<rule>__<case>.weft.

`safe__<case>` are those that no rule may reject, and `several__<case>` break many rules at once.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.verify import CHANGES, RULES

FOLDER = Path(__file__).parents[1] / "golden" / "verify"
GOLDENS = sorted(FOLDER.glob("*.weft"))


def shown(path: Path) -> str:
    """What the golden's name says that it shows: a rule, `safe` or `several`."""
    return path.stem.split("__")[0]


def violated(path: Path) -> set[str]:
    """The rules that the expected output names."""
    expected = path.read_text().split("# ---- stderr\n", 1)[1]
    return set(re.findall(r"^(\w+): ", expected, re.MULTILINE)) - {"weft"}


@pytest.mark.parametrize("rule", [*RULES, *CHANGES])
def test_every_rule_ships_a_program_that_it_must_reject(rule: str) -> None:
    assert [path.stem for path in GOLDENS if shown(path) == rule]


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_a_golden_shows_what_its_name_says(path: Path) -> None:
    match shown(path):
        case "safe":
            assert path.read_text().endswith("# ---- stdout\nsafe\n# ---- stderr\n# ---- exit 0\n")
        case "several":
            assert len(violated(path)) > 2
        case rule:
            assert violated(path) == {rule}
            assert path.read_text().endswith("# ---- exit 1\n")
