"""What is tried against exposed collectives: the smallest change of each knob first, another machine last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from weft.analysis.traffic import total_bytes
from weft.cost.machine import Machine
from weft.optimizer import PRESETS, parse_bytes
from weft.passes import PASSES, Pass, parse_pipeline, pass_text
from weft.passes.bucket_auto import BucketAuto
from weft.passes.holdups import Knobs
from weft.remedies.made import Made
from weft.remedies.trials import Sketched, Trial, linked, optimized, scheduled
from weft.sim.units import amount

_MORE_MEMORY = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # shares of the limit
_SMALL = 300  # ops: up to this a schedule is made in earnest in no time
_LARGE = 1_000  # ops: beyond this it takes seconds to run all passes, which is not done for other buckets


@dataclass(frozen=True)
class Attempt:
    """A change, and how to try it (None if nothing fits).

    - `passes`, `memory_limit`: what `optimize` is given for it
    - `links`: the levels of the machine that are faster, if it is a change of the machine
    - `helps`: the starts that it may help; all if it does not say
    """

    change: str
    passes: tuple[Pass, ...]
    memory_limit: int | None
    trial: Callable[[], Trial | None]
    links: tuple[str, ...] = ()
    helps: frozenset[str] | None = None


def attempts(made: Made, exposed: Sequence[str]) -> Iterator[Attempt]:
    """All that is worth trying for these starts. What takes long comes late, and other machines in the end."""
    trial = scheduled if len(made.timeline.program) <= _SMALL else Sketched(made)
    for change, knobs in (*_again(made), *_memory(made.knobs), *_others(made.knobs)):
        yield Attempt(change, made.with_knobs(knobs), knobs.memory_limit, partial(trial, made, knobs))
    if len(made.timeline.program) <= _LARGE:
        yield from _other_buckets(made)
    if made.passes != (default := parse_pipeline(PRESETS["default"], PASSES)):
        yield _passes_tried(made, "the preset default", default)
    yield from _faster_links(made, exposed)


def _again(made: Made) -> Iterator[tuple[str, Knobs]]:
    """The schedule itself, unless the step has just come from it."""
    if made.knobs.options not in made.passes:
        yield pass_text(made.knobs.options), made.knobs


def _memory(knobs: Knobs) -> Iterator[tuple[str, Knobs]]:
    """A higher limit: of the memory limits that there are, the one that is reached first."""
    limit, options, peak = knobs.limits.memory, knobs.options, knobs.peak
    if limit is None:
        return
    for part in _MORE_MEMORY:
        more = limit * (1 + part)
        if options.max_memory_increase_gb is not None and limit == peak + round(options.max_memory_increase_gb * 1e9):
            gb = _short((more - peak) / 1e9)
            yield f"max_memory_increase_gb={gb}", _with(knobs, max_memory_increase_gb=gb)
        elif options.max_memory_increase_ratio is not None and limit != knobs.memory_limit:
            ratio = _short(more / peak - 1)
            yield f"max_memory_increase_ratio={ratio}", _with(knobs, max_memory_increase_ratio=ratio)
        else:
            text = amount(more)
            yield f"memory_limit={text}", replace(knobs, memory_limit=parse_bytes(text))
    free = _with(knobs, max_memory_increase_gb=None, max_memory_increase_ratio=None)
    yield "no memory limit", replace(free, memory_limit=None)


def _others(knobs: Knobs) -> Iterator[tuple[str, Knobs]]:
    flying, ahead = knobs.options.max_in_flight_gb, knobs.options.max_compute_pre_fetch
    if flying is not None:
        if flying > 0:
            yield f"max_in_flight_gb={_short(2 * flying)}", _with(knobs, max_in_flight_gb=_short(2 * flying))
        yield "max_in_flight_gb=none", _with(knobs, max_in_flight_gb=None)
    if ahead is not None:
        more = max(1, 2 * ahead)
        yield f"max_compute_pre_fetch={more}", _with(knobs, max_compute_pre_fetch=more)
        yield "max_compute_pre_fetch=none", _with(knobs, max_compute_pre_fetch=None)
    if knobs.options.keep_order:
        yield "keep_order=false", _with(knobs, keep_order=False)
    if knobs.options.pin:
        yield "pin=[]", _with(knobs, pin=())
    if sum((knobs.limits.memory is not None, flying is not None, ahead is not None, knobs.options.keep_order)) > 1:
        free = _with(knobs, max_memory_increase_gb=None, max_memory_increase_ratio=None, keep_order=False)
        free = _with(free, max_in_flight_gb=None, max_compute_pre_fetch=None)
        yield "no limit at all", replace(free, memory_limit=None)


def _with(knobs: Knobs, **changes: float | int | bool | tuple[str, ...] | None) -> Knobs:
    return replace(knobs, options=replace(knobs.options, **changes))  # type: ignore[arg-type]  # names of its fields


def _other_buckets(made: Made) -> Iterator[Attempt]:
    """With buckets of half the size, and without."""
    bucketing = next((one for one in made.passes if isinstance(one, BucketAuto)), None)
    buckets = [op for op in made.timeline.program.starts if op.sources and op.name in made.timeline.exposed]
    helps = frozenset(op.name for op in buckets)
    if bucketing is None or not buckets:
        return
    half = replace(bucketing, max_mb=_short(max(map(total_bytes, buckets)) / 2e6))
    halved = tuple(half if one is bucketing else one for one in made.passes)
    yield replace(_passes_tried(made, pass_text(half), halved), helps=helps)
    rest = tuple(one for one in made.passes if one is not bucketing)
    yield replace(_passes_tried(made, ",".join(map(pass_text, rest)), rest), helps=helps)


def _passes_tried(made: Made, change: str, passes: tuple[Pass, ...]) -> Attempt:
    limit = made.knobs.memory_limit
    return Attempt(change, passes, limit, partial(optimized, made, passes, limit))


def _faster_links(made: Made, exposed: Sequence[str]) -> Iterator[Attempt]:
    """Twice the bandwidth of each link that these collectives cross, those that join most ranks first; then of all."""
    machine, program = made.timeline.cost, made.timeline.program
    if not isinstance(machine, Machine):
        return
    comms = {name: program[name].collective for name in exposed}
    crossed = {name: set(machine.link_us(comm, 1)) for name, comm in comms.items() if comm is not None}
    levels = [one.name for one in reversed(machine.levels) if any(one.name in links for links in crossed.values())]
    for links in (*((level,) for level in levels), *([tuple(levels)] if len(levels) > 1 else [])):
        helps = frozenset(name for name, links_of in crossed.items() if links_of.issuperset(links))
        change = f"twice the bandwidth of {' and '.join(links)}"
        trial = partial(linked, made, machine, links)
        if helps:
            yield Attempt(change, made.passes, made.knobs.memory_limit, trial, links, helps)


def _short(number: float) -> float:
    """A number with three digits, as people would set a knob."""
    return float(f"{number:.3g}")
