"""Remedies: the smallest change that hides a collective, or else the one that leaves least of it, found by trying it.

One trial serves all collectives. A large step is tried on its sketch, in milliseconds; a small one, and changes of
buckets, in earnest. What takes long comes last, and only if something is still exposed; another machine is tried only
for what no change of the program helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from weft.passes import pass_text
from weft.passes.holdups import held_up
from weft.remedies.made import Made, as_it_is, made_by, made_of
from weft.remedies.trials import FASTER, Trial
from weft.remedies.trying import Attempt, attempts
from weft.sim.explanation import Explanation, Remedy
from weft.sim.inside import inside
from weft.sim.reasons import Exposure

__all__ = ["FASTER", "Made", "as_it_is", "explain", "made_by", "made_of"]

_HIDDEN = 0.01  # of what is exposed: with less than this left it is hidden
_WORTH_IT = 0.05  # of what is exposed: a change that takes less than this away is no remedy
_SHORTER = 1e-9  # of the step: with less than this gained it is not shorter


def explain(made: Made, most: int = 20, watch: Callable[[str], None] = lambda change: None) -> tuple[Explanation, ...]:
    """The collectives that are exposed longest, at most so many, each with its causes and a remedy, if one was found.

    Those inside a matmul count with the time for which it waits. A remedy makes the step shorter, too: to hide one
    collective and expose another does not help. `watch` is told what is tried.
    """
    found = _longest(made, most)
    remedies: dict[str, Remedy] = {}
    tried = 0
    for attempt in attempts(made, [one.start for one in found]):
        exposed = {one.start: one.us for one in found if _open(remedies.get(one.start), one, attempt)}
        if not exposed:
            continue
        watch(attempt.change)
        tried += 1
        trial = attempt.trial()
        if trial is not None and trial.step_us < made.timeline.step_us * (1 - _SHORTER):
            remedies |= dict(_improved(made, attempt, trial, exposed, remedies))
    return tuple(Explanation(one, remedies.get(one.start), tried) for one in found)


def _longest(made: Made, most: int) -> tuple[Exposure, ...]:
    found = (*held_up(made.timeline, made.knobs, most), *inside(made.timeline))
    return tuple(sorted(found, key=lambda one: -one.us)[:most])


def _open(remedy: Remedy | None, one: Exposure, attempt: Attempt) -> bool:
    """Whether an attempt may give a better remedy than there is."""
    if attempt.helps is not None and one.start not in attempt.helps:
        return False
    if remedy is None:
        return True
    return not remedy.hides and bool(remedy.faster_links) == bool(attempt.links)


def _improved(
    made: Made, attempt: Attempt, trial: Trial, exposed: Mapping[str, float], remedies: Mapping[str, Remedy]
) -> Iterator[tuple[str, Remedy]]:
    """The collectives for which a change is the best so far."""
    for start, left in trial.left(made.timeline.program, exposed).items():
        least = remedies[start].left_us if start in remedies else exposed[start]
        hides = left <= _HIDDEN * exposed[start]
        if hides or left < least - _WORTH_IT * exposed[start]:
            yield (
                start,
                Remedy(
                    change=attempt.change,
                    saves_us=made.timeline.step_us - trial.step_us,
                    peak_bytes=trial.peak_bytes,
                    left_us=left,
                    hides=hides,
                    passes=",".join(map(pass_text, attempt.passes)),
                    memory_limit=attempt.memory_limit,
                    faster_links=attempt.links,
                ),
            )
