"""The picture of a step before and after: what is drawn where, and that a real step can be drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import weft
from bench import timelines
from bench.timelines import picture

ROOT = Path(__file__).parents[2]
# 10 us of matmul, 10 us of all-reduce that is waited for at once, 10 us of matmul again.
STEP = """weft 1
group "a<b" = 0, 1

%x: f32[2500] = input()
%y: f32[10,10] = input()
%h: f32[10,10] = aten.mm.default(%y, %y)
%s: f32[2500] = all_reduce.start(%x) sum over "a<b"
%w: f32[2500] = wait(%s)
%k: f32[10,10] = aten.mm.default(%h, %y)
return %k, %w
"""


def rectangles(drawn: str) -> list[tuple[str, float, float]]:
    """What each lane holds: class, left and width, in the order in which it is drawn."""
    found = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    lanes = [one for one in found if one.get("height") == "22"]
    return [(one.attrib["class"], float(one.attrib["x"]), float(one.attrib["width"])) for one in lanes]


def test_both_timelines_have_one_scale() -> None:
    before = weft.parse(STEP)
    after = weft.pipeline.run(before, weft.parse_pipeline("sink_waits,hoist_starts", weft.PASSES)).program
    machine = weft.Machine.load(ROOT / "tests" / "golden" / "toy.toml")
    steps = [(name, weft.simulate(one, machine)) for name, one in (("Before", before), ("After", after))]
    assert [(one.step_us, one.exposed_us) for _, one in steps] == [(30.0, 10.0), (20.0, 0.0)]
    drawn = picture("A <step>", steps)
    # 864 pixels are 30 us.
    assert rectangles(drawn) == [
        ("lane", 84.0, 864.0),
        ("compute", 84.0, 288.0),
        ("compute", 660.0, 288.0),
        ("wait", 372.0, 288.0),
        ("lane", 84.0, 864.0),
        ("flight", 372.0, 288.0),
        ("lane", 84.0, 576.0),
        ("compute", 84.0, 576.0),
        ("lane", 84.0, 576.0),
        ("flight", 84.0, 288.0),
    ]
    texts = [one.text for one in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:4] == ["A <step>", "Before: step 30.0 us, of which 10.0 us exposed", "compute", "network"]


def test_a_captured_step_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.svg"
    timelines.main(["--workload", "tiny_parameters_ddp", "--layers", "1", str(path)])
    assert capsys.readouterr().out.startswith("6 → ")
    assert {kind for kind, *_ in rectangles(path.read_text())} == {"lane", "compute", "wait", "flight"}
