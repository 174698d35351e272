"""What micro-pipelining finds and what it brings: collectives of tensor parallelism in chunks, or inside matmuls.

    python -m bench.pipeline                                          # both workloads, two layers deep
    python -m bench.pipeline --layers full --workloads llama3_8b_tp8_sp
    python -m bench.pipeline --samples 2 --machines h100-ib400,gb200-nvl72 --json pipeline.json

First come the collectives of the tensor-parallel group: where they stand, and how many of them Weft can cut, Weft can
do inside matmuls, and torch's `micro_pipeline_tp_pass` fuses. bench/pipeline_torch.py says how that pass is run.
DTensor spells a gather in two ways, by the number of samples, and torch's pass knows one of them: `--samples 2`.

Then the step, simulated on each machine. "exposed" is the time in which compute waits for communication between ops. A
matmul with a collective inside it waits, too: "inside" is for how long such ops do nothing else, and "longer" how much
longer they take, that included, than the matmuls that they stand for did in the original: they multiply in smaller
parts, and copy; less than nothing where one matmul does what several did. "÷ bound" says how many times as long
as the bound of the original a step takes. That bound is for whatever can be made of the original by moving, merging and
cutting; a step that has collectives inside of matmuls is another program with a bound of its own, which "÷ own" is
about. "pass s" are CPU seconds with verification. Every row is verified against the original. A pass that was left
out is noted: micro-pipelining is kept only if the whole step becomes shorter.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time

import weft
from bench.capture import captured_on
from bench.options import known_workloads, listed
from bench.pipeline_patterns import Patterns, patterns, patterns_table
from bench.pipeline_torch import forward_on
from bench.rows import aligned
from bench.workloads import WORKLOADS, Workload
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.errors import WeftWarning
from weft.ir import Op
from weft.ir.text import counted
from weft.passes.fusing import Match, find_fused
from weft.sim import Timeline, simulate
from weft.sim.inside import inside

_ROUNDING = 1e-9  # a step may be so much below the bound by arithmetic alone

# What Weft is measured with, by the name of its row. The first is what all others are held against.
PIPELINES: Mapping[str, str] = {
    "scheduled": "dedupe,bucket_auto,schedule",
    "in chunks": weft.PRESETS["default"].replace("micro_pipeline", "micro_pipeline{lowering=portable}"),
    "fused": weft.PRESETS["default"].replace("micro_pipeline", "micro_pipeline{lowering=fused}"),
    "default": weft.PRESETS["default"],
}


@dataclass(frozen=True)
class Figures:
    """A step. `fused` is how many matmuls have a collective inside them, `inside_us` for how long these do nothing but
    wait, and `longer_us` what they take longer than without. `bound_us` is the bound of the step as it is here."""

    step_us: float
    bound_us: float
    exposed_us: float
    inside_us: float
    longer_us: float
    collectives: int
    fused: int
    peak_bytes: int
    pass_s: float

    @property
    def waiting_us(self) -> float:
        """All time in which nothing is done but to wait for communication."""
        return self.exposed_us + self.inside_us

    @staticmethod
    def of(timeline: Timeline, original: Timeline, pass_s: float) -> Figures:
        return Figures(
            step_us=timeline.step_us,
            bound_us=timeline.bound_us,
            exposed_us=timeline.exposed_us,
            inside_us=sum(one.us for one in inside(timeline)),
            longer_us=longer_us(timeline, original),
            collectives=len(timeline.program.starts),
            fused=sum(op.inside is not None for op in timeline.program.ops),
            peak_bytes=timeline.peak_bytes,
            pass_s=pass_s,
        )


@dataclass(frozen=True)
class Gain:
    """A workload on a machine: the rows begin with the original. `notes` say which passes of a row were left out."""

    machine: str
    bound_us: float
    bound_by: str
    rows: Mapping[str, Figures]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """A workload: what there is to pipeline, and what that brings on each machine."""

    workload: str
    layers: int
    samples: int
    patterns: Patterns
    gains: tuple[Gain, ...]


def longer_us(timeline: Timeline, original: Timeline) -> float:
    """How much longer all ops with a collective inside them take than the matmuls of the original that they do."""
    prices = zip(timeline.program.ops, timeline.prices.us, strict=True)
    return sum(us - _matmuls_us(op, original) for op, us in prices if op.inside is not None)


def _matmuls_us(op: Op, original: Timeline) -> float:
    """What the matmuls that an op does took before. One whose product is scattered is not among its sources: there the
    collective tells which it is."""
    program = original.program
    names = [name for name in op.sources if name in program and program[name].traits.matmul]
    if not names:
        found = find_fused(program, op.sources[0])
        assert isinstance(found, Match), f"%{op.name} stands for a matmul: {found}"
        names = list(found.matmuls)
    return sum(original.prices.us[program.index[name]] for name in names)


def gain(original: Timeline, machine: Machine, say: Callable[[str], None]) -> Gain:
    """A step on a machine, before and behind each of PIPELINES."""
    rows, notes = {"original": Figures.of(original, original, 0.0)}, []
    for name, passes in PIPELINES.items():
        say(f"{machine.name}: {name}")
        begin = process_time()
        found = weft.optimize(original.program, machine, passes=passes)
        weft.verify(original.program, found.program, reorders=True)
        rows[name] = Figures.of(found.after, original, process_time() - begin)
        left_out = [remark for remark in found.remarks if not remark.op and remark.verdict == "refused"]
        notes += [f"{name}: {remark.pass_name} is {remark.message}" for remark in left_out]
    return Gain(machine.name, original.bound_us, original.bound.name, rows, tuple(notes))


def outcome(workload: Workload, machines: Sequence[str], say: Callable[[str], None] = lambda line: None) -> Outcome:
    """A tensor-parallel workload, captured once. `say` is told what comes next."""
    loaded = [Machine.load(name) for name in machines]
    with weft.planning(dict(workload.mesh)) as mesh:
        with capture_progress(workload.name) as progress:
            program = captured_on(mesh, workload, progress)
        group = mesh["tensor"].get_group().group_name
        say(f"{workload.name}: patterns")
        found = patterns(program, forward_on(mesh, workload), group, loaded[0])
    gains = tuple(gain(simulate(program, one), one, lambda line: say(f"{workload.name} on {line}")) for one in loaded)
    return Outcome(workload.name, workload.config.layers, workload.micro_batch, found, gains)


_WAITING = ("exposed ms", "inside ms", "longer ms")
_HEADINGS = ("", "step ms", *_WAITING, "÷ bound", "÷ own", "collectives", "fused", "peak GB", "pass s")


def table(found: Outcome) -> str:
    """An outcome as headings and tables, which read as text and as Markdown."""
    size = f"{counted(found.layers, 'layer')}, {counted(found.samples, 'sample')} a rank"
    lines = [f"**{found.workload}** ({size})", "", *patterns_table(found.patterns)]
    for one in found.gains:
        cells = [_HEADINGS, *(_cells(name, row, one) for name, row in one.rows.items())]
        bound = f"bound {one.bound_us / 1e3:,.2f} ms by {one.bound_by}"
        heading = f"**{found.workload}** on {one.machine}; {bound}"
        lines += ["", heading, "", *aligned(cells), "", *_summary(one), *one.notes]
    return "\n".join(lines)


def _cells(name: str, row: Figures, one: Gain) -> tuple[str, ...]:
    return (
        name,
        f"{row.step_us / 1e3:,.2f}",
        f"{row.exposed_us / 1e3:,.2f}",
        f"{row.inside_us / 1e3:,.2f}",
        f"{row.longer_us / 1e3:,.2f}",
        f"{row.step_us / one.bound_us:.3f}" + (" BELOW" if _below(row, one) else ""),
        f"{row.step_us / row.bound_us:.3f}",
        f"{row.collectives:,}",
        f"{row.fused:,}",
        f"{row.peak_bytes / 1e9:,.2f}",
        f"{row.pass_s:,.2f}",
    )


def _summary(one: Gain) -> Iterator[str]:
    """What each row brings against the schedule without micro-pipelining."""
    first, *others = PIPELINES
    plain = one.rows[first]
    for name in others:
        row = one.rows[name]
        yield (
            f"{name}: against {first}, the step changes by {_change(plain.step_us, row.step_us)}, exposed by "
            f"{_change(plain.exposed_us, row.exposed_us)}, exposed and inside by "
            f"{_change(plain.waiting_us, row.waiting_us)}"
        )


def _change(was: float, now: float) -> str:
    return f"{(now - was) / was:+.1%}" if was else "nothing"


def _below(row: Figures, one: Gain) -> bool:
    """Whether the bound does not hold, which is an error in the bound or in the row."""
    return row.step_us < one.bound_us * (1 - _ROUNDING)


def sound(found: Outcome) -> bool:
    """Whether no step is below its bound, and none longer than without micro-pipelining."""
    for one in found.gains:
        plain = one.rows["scheduled"].step_us
        if any(_below(row, one) or (name == "default" and row.step_us > plain) for name, row in one.rows.items()):
            return False
    return True


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore", WeftWarning)  # buckets beyond the last knot of a curve are extrapolated
    found: list[Outcome] = []
    for name in options.workloads:
        workload = WORKLOADS[name] if options.layers is None else WORKLOADS[name].with_layers(options.layers)
        workload = replace(workload, micro_batch=options.samples or workload.micro_batch)
        found.append(outcome(workload, options.machines, partial(print, file=sys.stderr)))
        print(table(found[-1]), end="\n\n", flush=True)
        if options.json:  # after each: a run takes long, and one that is ended keeps what it found
            options.json.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    sys.exit(0 if all(map(sound, found)) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=_tensor_parallel, default=_TENSOR_PARALLEL, help="names between commas")
    parser.add_argument("--machines", type=listed, default=["h100-ib400"], help="presets or files between commas")
    parser.add_argument("--layers", type=_layers, default=2, help='how deep, or "full": as each was published')
    parser.add_argument("--samples", type=int, help="the samples of one rank in one step, if not the workload's own")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


_TENSOR_PARALLEL = [name for name, workload in WORKLOADS.items() if "tensor" in dict(workload.mesh)]


def _tensor_parallel(text: str) -> list[str]:
    names = known_workloads(text)
    for name in names:
        if name not in _TENSOR_PARALLEL:
            raise argparse.ArgumentTypeError(f"{name} is not tensor parallel; there are {', '.join(_TENSOR_PARALLEL)}")
    return names


def _layers(text: str) -> int | None:
    if text != "full" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f'layers are a number or "full", not {text!r}')
    return None if text == "full" else int(text)


if __name__ == "__main__":
    main()
