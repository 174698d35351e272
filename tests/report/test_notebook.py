"""In a notebook, a Program, a Timeline and what `optimize` gives back show themselves."""

from __future__ import annotations

import json

from tests.report.samples import HOSTILE, TOY, optimized, step
from weft.ir import parse
from weft.sim import simulate


def test_a_program_shows_its_text() -> None:
    program = step(1)
    assert program._repr_html_() == "<pre>" + str(program).removesuffix("\n") + "</pre>"


def test_of_a_long_program_the_beginning_is_shown() -> None:
    shown = step(100)._repr_html_().split("\n")
    assert shown[:2] == ["<pre>weft 1", "group dp = 0, 1"]
    assert shown[100:] == ["… and 1,006 more lines</pre>"]


def test_a_timeline_shows_its_figures_and_why_it_waits() -> None:
    head = "<table><thead><tr><th></th><th>timeline</th></tr></thead><tbody>"
    rows = [
        ("step", "28.2 us"), ("compute", "20.8 us"), ("communication", "7.4 us"), ("exposed", "7.4 us"),
        ("collectives", "3"), ("· all_gather", "2"), ("· all_reduce", "1"), ("peak memory", "2,000 bytes"),
        ("bound", "26.6 us"),
    ]  # fmt: skip
    table = "".join(f'<tr><th style="text-align:left">{name}</th><td>{value}</td></tr>' for name, value in rows)
    little = "needs it, and there was too little to do until then"
    why = [
        f"%r0 is exposed for 5.4 us: 5.4 us: %x1 {little}",
        f"%g0 is exposed for 1.0 us: 1.0 us: %y0 {little}",
        "%h0 is exposed for 1.0 us: 1.0 us: it could have started with the step",
    ]
    listed = "<pre>" + "\n".join(why) + "</pre>"
    assert simulate(step(1), TOY)._repr_html_() == f"{head}{table}</tbody></table>{listed}"


def test_an_optimized_step_shows_both_sides_and_the_remarks() -> None:
    shown = optimized()._repr_html_()
    step_row = '<tr><th style="text-align:left">step</th><td>84.6 us</td><td>85.0 us</td><td>+0.5%</td></tr>'
    assert shown.startswith(
        f"<table><thead><tr><th></th><th>before</th><th>after</th><th>change</th></tr></thead><tbody>{step_row}"
    )
    assert "<pre>bucket: done: %g0: launched together with %h0" in shown


def test_names_are_shown_as_text() -> None:
    name = json.dumps(HOSTILE + "x" * 100_000)
    program = parse(f"weft 1\n\n%{name}: f32[1000] = input()\nreturn\n")
    # What the text form spells out stays spelled out; the rest of a very long line is not shown.
    (line,) = [line for line in program._repr_html_().split("\n") if line.startswith("%")]
    assert line.startswith("%&quot;&lt;/script&gt;&lt;script&gt;window.hacked = 1&lt;/script&gt;&lt;img src=x")
    assert line.endswith("x…")
    assert "<script" not in program._repr_html_()
