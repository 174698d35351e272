"""The option `pin` of `schedule`: which collectives stay where they are, and which are put somewhere first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.analysis.windows import Window, windows
from weft.errors import OptionError
from weft.ir.origins import module_path
from weft.ir.program import Program
from weft.passes.only import path_matches


@dataclass(frozen=True)
class Pins:
    """- `names`: the starts that stay
    - `order`: the positions of the program's ops, after those that were pinned to a place have gone there
    """

    names: frozenset[str]
    order: list[int]


def pins_of(program: Program, texts: Sequence[str], keep_order: bool) -> Pins:
    """What pins ask for: `name` or `module.*`, or `name@op`. OptionError if it cannot be, or contradicts itself."""
    anchors: dict[str, str] = {}
    names: set[str] = set()
    for text in texts:
        name, at, anchor = text.partition("@")
        found = list(_named(program, name))
        if not found or (at and found != [name]):
            raise OptionError(f"schedule: pin={text} names no collective, and no module that has one")
        names.update(found)
        if at:
            if anchors.setdefault(name, anchor) != anchor:
                raise OptionError(f"schedule: the pins {name}@{anchors[name]} and {text} contradict each other")
            _check(program, text, name, anchor)
    order = _moved(program, anchors)
    if keep_order:
        _check_order(program, order, anchors)
    return Pins(frozenset(names), order)


def pinned(program: Program, texts: Sequence[str]) -> frozenset[str]:
    """The starts that pins name."""
    return frozenset(start for text in texts for start in _named(program, text.partition("@")[0]))


def _named(program: Program, name: str) -> Iterator[str]:
    for op in program.starts:
        if op.name == name or path_matches(module_path(op.origin), name):
            yield op.name


def _check(program: Program, text: str, name: str, anchor: str) -> None:
    """Raise OptionError unless the collective may be launched directly behind the anchor."""
    window = windows(program).get(name)
    if anchor not in program or window is None:
        what = f"there is no op %{anchor}" if anchor not in program else f"nobody waits for %{name}"
        raise OptionError(f"schedule: pin={text} cannot be: {what}")
    place = program.index[anchor]
    if place < window.ready:
        raise OptionError(f"schedule: pin={text} cannot be: %{name} needs %{program.ops[window.ready].name} first")
    if place >= window.due:
        raise OptionError(f"schedule: pin={text} cannot be: %{program.ops[window.due].name} comes after %{name}")


def _moved(program: Program, anchors: dict[str, str]) -> list[int]:
    """The order in which what is pinned to a place stands there. Waits that would come too early go behind it."""
    place: dict[int, tuple[int, int]] = {}
    for name, anchor in anchors.items():
        window: Window = windows(program)[name]
        there = program.index[anchor]
        place.update(dict.fromkeys(window.launched, (there, 2)))
        place.update(dict.fromkeys((one for one in window.waited if one <= there), (there, 3)))
    if not place:
        return list(range(len(program)))
    return sorted(range(len(program)), key=lambda position: (place.get(position, (position, 1)), position))


def _check_order(program: Program, order: Sequence[int], anchors: dict[str, str]) -> None:
    """Raise OptionError if pins bring the collectives of a group into another order."""
    last: dict[str, int] = {}
    for position in order:
        op = program.ops[position]
        if op.comm is None:
            continue
        before = last.get(op.comm.group.name, -1)
        if before > position:
            pins = ", ".join(f"{name}@{anchor}" for name, anchor in anchors.items())
            overtaken = f"%{program.ops[before].name} overtakes %{op.name}"
            raise OptionError(f"schedule: keep_order and pin={pins} contradict each other: {overtaken}")
        last[op.comm.group.name] = position
