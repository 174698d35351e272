"""Steps to look at: layers that gather their weights and sum over another group, before and after passes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from weft import Machine, Optimized, Program, parse, pipeline, simulate
from weft.passes import PASSES, Remark, parse_pipeline
from weft.report.html import html_report

TOY = Machine.load(str(Path(__file__).parents[1] / "golden" / "toy.toml"))

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>\"'&\x00\x1b[31m\u2028\u2029"


def step(layers: int, name: str = "layers") -> Program:
    """Each layer gathers two weights just before it uses them, and adds up its result at once."""
    lines = ["weft 1", "group dp = 0, 1", "group four = 0..3", "", "%x0: f32[10,10] = input()"]
    for layer in range(layers):
        lines += [f"%w{layer}: f32[5,10] = input()", f"%v{layer}: f32[5,10] = input()"]
    for layer in range(layers):
        at = f"{name}.{layer}"
        lines += [
            f"%g{layer}: f32[10,10] = all_gather.start(%w{layer}) over dp  # {at}.up.weight model.py:7",
            f"%f{layer}: f32[10,10] = wait(%g{layer})",
            f"%y{layer}: f32[10,10] = aten.mm.default(%x{layer}, %f{layer})  # {at}.up model.py:7",
            f"%h{layer}: f32[10,10] = all_gather.start(%v{layer}) over dp  # {at}.down.weight model.py:8",
            f"%e{layer}: f32[10,10] = wait(%h{layer})",
            f"%z{layer}: f32[10,10] = aten.mm.default(%y{layer}, %e{layer})  # {at}.down model.py:8",
            f"%r{layer}: f32[10,10] = all_reduce.start(%z{layer}) sum over four  # {at} model.py:9",
            f"%s{layer}: f32[10,10] = wait(%r{layer})",
            f"%x{layer + 1}: f32[10,10] = aten.relu.default(%s{layer})  # {at} model.py:9",
        ]
    return parse("\n".join([*lines, f"return %x{layers}", ""]))


@cache
def optimized(layers: int = 3) -> Optimized:
    """What `bucket` and `schedule` make of it, whether that is shorter or not."""
    made = pipeline.run(step(layers), parse_pipeline("bucket,schedule", PASSES), cost=TOY)
    plans = tuple(stage.plan for stage in made.stages)
    return Optimized(simulate(step(layers), TOY), simulate(made.program, TOY), plans, made.remarks)


def report(title: str = "A step") -> str:
    made = optimized()
    return html_report(title, made.before, made.after, made.remarks, memory_limit=6000, about="toy")


def named_report(name: str) -> str:
    """A report in which everything is called by this name."""
    said, group, other = json.dumps(name), json.dumps(f"$${name}$$"), json.dumps(f"{name} too")
    text = f"""weft 1
group {group} = 0, 1

%x: f32[500] = input()
%{said}: f32[1000] = all_gather.start(%x) over {group}  # {said}
%w: f32[1000] = wait(%{said})
%{other}: f32[1000] = aten.relu.default(%w)  # {said}
return %{other}
"""
    timeline = simulate(parse(text), TOY)
    remark = Remark(name, name, name, name)
    return html_report(name, timeline, timeline, [remark], about=name)
