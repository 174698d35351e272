"""What combining collectives comes to: every pass and mode of Weft beside torch's own, on the same graphs.

    python -m bench.combine                                              # all workloads as deep as they are, then speed
    python -m bench.combine --layers 2 --workloads gpt2_xl_ddp,llama3_8b_fsdp --no-speed
    python -m bench.combine --machine h100-eth100 --json combine.json

Every row is simulated by Weft on the same machine, and every row of Weft is verified against the original. "copies" is
what a row computes more than the original, without contention: buffers that are packed and taken apart. It is negative
where conversions are left out or done to a whole buffer at once. "exposed" is the time in which compute waits for
communication, "pass s" are CPU seconds of planning and applying. Buckets have the same cap in Weft and in torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import process_time

import weft
from bench.capture import captured_on
from bench.combine_speed import speed_rows
from bench.combine_torch import FUSIONS, MODES, Combined, as_ddp, torch_bucket, torch_ddp
from bench.options import known_workloads
from bench.rows import aligned
from bench.workloads import WORKLOADS, Workload
from weft import pipeline
from weft.cli.progress import capture_progress
from weft.cost import Machine
from weft.errors import WeftWarning
from weft.ir import Program
from weft.ir.pause import no_collection
from weft.sim import Timeline, simulate


@dataclass(frozen=True)
class Figures:
    """A step after a pass. `kernels_us` is the time of all ops but collectives, without contention."""

    collectives: int
    step_us: float
    exposed_us: float
    kernels_us: float
    peak_bytes: int
    pass_s: float

    @staticmethod
    def of(timeline: Timeline, pass_s: float) -> Figures:
        return Figures(
            collectives=len(timeline.program.starts),
            step_us=timeline.step_us,
            exposed_us=timeline.exposed_us,
            kernels_us=sum(timeline.prices.us),
            peak_bytes=timeline.peak_bytes,
            pass_s=pass_s,
        )


@dataclass(frozen=True)
class Line:
    """One way to combine: its figures, or None where it failed; `note` says why, or what torch's passes found."""

    name: str
    figures: Figures | None
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """A workload on a machine: the original and what every way makes of it."""

    workload: str
    layers: int
    machine: str
    original: Figures
    lines: tuple[Line, ...]


Way = Callable[[Program, Machine], Combined]


def by_weft(passes: str) -> Way:
    def way(program: Program, machine: Machine) -> Combined:
        chosen = weft.parse_pipeline(passes, weft.PASSES)
        with no_collection():
            begin = process_time()
            made = pipeline.run(program, chosen, cost=machine, verify_each=False).program
            seconds = process_time() - begin
        weft.verify(program, made, reorders=True)
        return Combined(made, seconds, "")

    return way


def by_torch(work: Callable[[Program], Combined]) -> Way:
    def way(program: Program, machine: Machine) -> Combined:
        combined = work(program)
        weft.verify(combined.program)
        return combined

    return way


PASSES = (
    *(f"bucket{{mode={mode}}}" for mode in MODES),
    "bucket_auto",
    *(f"ddp_fuse{{mode={mode}}}" for mode in FUSIONS),
    "dedupe",
)

WAYS: Mapping[str, Way] = {
    **{passes: by_weft(passes) for passes in PASSES},
    **{f"torch bucket {mode}": by_torch(partial(torch_bucket, mode=mode)) for mode in MODES},
    **{f"torch ddp {mode}": by_torch(partial(torch_ddp, mode=mode)) for mode in FUSIONS},
}


def combined_line(name: str, way: Way, program: Program, machine: Machine) -> Line:
    """The figures of one way. One that fails has an error instead: the others are still worth having."""
    try:
        combined = way(program, machine)
        return Line(name, Figures.of(simulate(combined.program, machine), combined.seconds), combined.found)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return Line(name, None, f"{type(error).__name__}: {first}")


def outcomes(workload: Workload, machine: Machine, say: Callable[[str], None] = lambda line: None) -> Iterator[Outcome]:
    """Capture a workload and combine it in every way, and, if it is replicated, as DDP would write it, in DDP's ways.

    `say` is told what comes next.
    """
    with weft.planning(dict(workload.mesh)) as mesh:
        with capture_progress(workload.name) as progress:
            program = captured_on(mesh, workload, progress)
        yield _outcome(workload, workload.name, machine, program, WAYS, say)
        if workload.data_parallel == "replicate":
            ways = {name: way for name, way in WAYS.items() if "ddp" in name}
            yield _outcome(workload, f"{workload.name} as DDP writes it", machine, as_ddp(program), ways, say)


def _outcome(
    workload: Workload,
    title: str,
    machine: Machine,
    program: Program,
    ways: Mapping[str, Way],
    say: Callable[[str], None],
) -> Outcome:
    original = Figures.of(simulate(program, machine), 0.0)
    lines = []
    for name, way in ways.items():
        say(f"{title} on {machine.name}: {name}")
        lines.append(combined_line(name, way, program, machine))
    return Outcome(title, workload.config.layers, machine.name, original, tuple(lines))


_HEADINGS = ("", "collectives", "step ms", "exposed ms", "copies ms", "peak GB", "pass s")


def table(found: Outcome) -> str:
    """An outcome as a heading, a table, which reads as text and as Markdown, and the notes."""
    rows = [Line("original", found.original), *found.lines]
    cells = [_HEADINGS, *(_cells(row, found.original) for row in rows)]
    notes = [f"{', '.join(names)}: {note}" for note, names in _notes(found.lines).items()]
    heading = f"**{found.workload}** ({found.layers} layers) on {found.machine}"
    return "\n".join([heading, "", *aligned(cells), *([""] if notes else []), *notes])


def _notes(lines: Sequence[Line]) -> Mapping[str, Sequence[str]]:
    """What there is to say, and of which lines."""
    notes: dict[str, list[str]] = {}
    for line in lines:
        if line.note:
            notes.setdefault(line.note, []).append(line.name)
    return notes


def _cells(line: Line, original: Figures) -> tuple[str, ...]:
    figures = line.figures
    if figures is None:
        return (line.name, "failed", *[""] * (len(_HEADINGS) - 2))
    copies_ms = round((figures.kernels_us - original.kernels_us) / 1e3, 2) + 0.0  # no -0.00, which would be printed
    return (
        line.name,
        f"{figures.collectives:,}",
        f"{figures.step_us / 1e3:,.2f}",
        f"{figures.exposed_us / 1e3:,.2f}",
        f"{copies_ms:,.2f}",
        f"{figures.peak_bytes / 1e9:,.2f}",
        f"{figures.pass_s:,.2f}",
    )


def to_json(found: Sequence[Outcome]) -> str:
    return json.dumps([asdict(one) for one in found], indent=1)


def sound(found: Outcome) -> bool:
    """Whether every way of Weft gave a program, and one that holds."""
    return all(line.figures is not None for line in found.lines if line.name in PASSES)


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore", WeftWarning)  # buckets beyond the last knot of a curve are extrapolated
    machine = Machine.load(options.machine)
    found: list[Outcome] = []
    for name in options.workloads:
        workload = WORKLOADS[name] if options.layers is None else WORKLOADS[name].with_layers(options.layers)
        for one in outcomes(workload, machine, lambda line: print(line, file=sys.stderr)):
            found.append(one)
            print(table(one), end="\n\n", flush=True)
            if options.json:  # after each: a run takes long, and one that is ended keeps what it found
                options.json.write_text(to_json(found), encoding="utf-8")
    holds = all(map(sound, found))
    for row in speed_rows() if options.speed else ():
        print(row, flush=True)
        holds &= row.holds
    sys.exit(0 if holds else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=known_workloads, default=list(WORKLOADS), help="names between commas")
    parser.add_argument("--machine", default="h100-ib400", help="a preset or a file")
    parser.add_argument("--layers", type=int, help="make every model so deep; by default each is as it was published")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--no-speed", dest="speed", action="store_false", help="leave out the time that passes take")
    return parser.parse_args()


if __name__ == "__main__":
    main()
