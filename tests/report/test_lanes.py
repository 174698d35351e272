"""Lanes of text; the goldens under tests/golden/sim show how they look."""

from __future__ import annotations

from pathlib import Path

from weft.cost import Machine
from weft.ir import parse
from weft.report.lanes import lanes
from weft.sim import simulate

TOY = Machine.load(Path(__file__).parents[1] / "golden" / "toy.toml")
STEP = """weft 1
group GROUP = 0, 1

%x: f32[500] = input()
%NAME: f32[1000] = all_gather.start(%x) over GROUP
%w: f32[1000] = wait(%NAME)
%y: f32[1000] = aten.relu.default(%w)
return %y
"""


def drawn(group: str, name: str) -> list[str]:
    return lanes(simulate(parse(STEP.replace("GROUP", group).replace("NAME", name)), TOY)).splitlines()


def test_a_group_may_be_called_as_the_compute_stream_is() -> None:
    assert drawn("compute", "g") == [line.replace("dp     ", "compute") for line in drawn("dp", "g")]


def test_names_cannot_steer_the_terminal_or_break_a_lane() -> None:
    plain, hostile = drawn("gxh", "axb"), drawn('"g\\nh"', '"a\\u001bb"')
    assert hostile == [line.replace("gxh", "g·h").replace("axb", "a·b") for line in plain]
    assert drawn("dp", '"\\ud800"')[2] == drawn("dp", "q")[2].replace("q", "·")
