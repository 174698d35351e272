"""Draws a step before and after Weft, one above the other on one scale, as an SVG that reads on light and dark pages.

    python -m bench.timelines docs/timeline.svg               # two layers of Llama 3 8B on 64 H100s, captured just now
    python -m bench.timelines --workload llama3_8b_hsdp --layers 1 hsdp.svg

The upper lane of each is the compute stream, with the times in which it waits for communication in orange; the lanes
below are the collectives of each group. All times are the simulator's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import weft
from bench.capture import captured
from bench.options import count
from bench.workloads import WORKLOADS
from weft.sim.timeline import Timeline
from weft.sim.units import time_text

Span = tuple[float, float]

_WIDTH, _LEFT, _RIGHT = 960, 84, 12  # of the picture, and of its margins, in pixels
_LANE, _GAP, _TITLE, _SPACE = 22, 5, 24, 14  # heights: a lane, between two, a title, between two timelines
_LEAST = 0.4  # pixels; what is nearer than this looks like one
_STYLE = """
  .page { fill: #ffffff } text { fill: #24292f; font: 13px sans-serif } .lane { fill: #eef1f4 }
  .compute { fill: #3f7fbf } .wait { fill: #f0883e } .flight { fill: #7a6bb8 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #e6edf3 } .lane { fill: #21262d }
    .compute { fill: #4d94d8 } .wait { fill: #ff9e4f } .flight { fill: #9d8fe0 }
  }
"""


def picture(title: str, timelines: Sequence[tuple[str, Timeline]]) -> str:
    """The SVG. Each timeline comes with what is said above it."""
    scale = (_WIDTH - _LEFT - _RIGHT) / max(timeline.step_us for _, timeline in timelines)
    lines, top = [_text(_GAP, _TITLE - 8, title, bold=True)], _TITLE
    for name, timeline in timelines:
        said = f"{name}: step {time_text(timeline.step_us)}, of which {time_text(timeline.exposed_us)} exposed"
        lines.append(_text(_GAP, top + _TITLE - 8, said))
        top += _TITLE
        for label, drawn in _lanes(timeline):
            lines.append(_text(_GAP, top + _LANE - 7, label))
            lines.append(_rectangle("lane", _LEFT, top, timeline.step_us * scale))
            for kind, spans in drawn:
                lines += [_rectangle(kind, _LEFT + a, top, b - a) for a, b in _joined(spans, scale)]
            top += _LANE + _GAP
        top += _SPACE
    top += _legend(lines, top)
    size = f'width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}"'
    page = f'<rect class="page" width="{_WIDTH}" height="{top}" rx="6"/>'
    body = "\n".join([f"<style>{_STYLE}</style>", page, *lines])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


def _lanes(timeline: Timeline) -> Iterator[tuple[str, list[tuple[str, list[Span]]]]]:
    """For each lane its name, and spans of time by what they are."""
    work: list[Span] = []
    waits: list[Span] = []
    for op, begin, end in zip(timeline.program.ops, timeline.begins, timeline.ends, strict=True):
        (waits if op.is_wait else work).append((begin, end))
    waits.append((timeline.ends[-1], timeline.step_us))
    yield "compute", [("compute", work), ("wait", waits)]
    ops = timeline.program.ops
    groups = timeline.program.groups
    for number, group in enumerate(groups, 1):
        flights = [
            (flight.begin, flight.end)
            for place, flight in sorted(timeline.flights.items(), key=lambda one: one[1].begin)
            if (comm := ops[place].comm) is not None and comm.group.name == group.name
        ]
        yield "network" if len(groups) == 1 else f"network {number}", [("flight", flights)]


def _joined(spans: Iterable[Span], scale: float) -> list[Span]:
    """Spans in pixels: those that touch are one, those that cannot be seen are left out."""
    found: list[Span] = []
    for begin, end in ((a * scale, b * scale) for a, b in spans if b > a):
        if found and begin - found[-1][1] < _LEAST:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return [(begin, end) for begin, end in found if end - begin >= _LEAST]


def _legend(lines: list[str], top: int) -> int:
    """What the colours mean; returns its height."""
    left = _LEFT
    for kind, said in (("compute", "compute"), ("wait", "exposed: compute waits"), ("flight", "a collective")):
        lines.append(f'<rect class="{kind}" x="{left}" y="{top}" width="14" height="14" rx="2"/>')
        lines.append(_text(left + 20, top + 12, said))
        left += 40 + 7 * len(said)
    return _TITLE


def _rectangle(kind: str, left: float, top: int, width: float) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_LANE}"/>'


def _text(left: int, base: int, said: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{left}" y="{base}"{weight}>{escape(said)}</text>'


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="llama3_8b_fsdp")
    parser.add_argument("--layers", type=count, default=2, help="of the model; 2")
    parser.add_argument("--machine", default="h100-ib400", help="a preset, or a file; h100-ib400")
    parser.add_argument("path", type=Path, help="the SVG to write")
    options = parser.parse_args(words)
    workload = WORKLOADS[options.workload].with_layers(options.layers)
    made = weft.optimize(captured(workload), options.machine)
    depth = f"{options.layers} layer{'s' if options.layers > 1 else ''} of it"
    title = f"{workload.description}: forward and backward, {depth}, {options.machine}, simulated"
    drawn = picture(title, [("As written", made.before), ("After Weft", made.after)])
    options.path.write_text(drawn, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
