"""Small random programs with a trunk: ops that nothing can cut, collectives between them, work beside them."""

from __future__ import annotations

from hypothesis import strategies as st

from weft import parse
from weft.ir import Program

_HEAD = ["weft 1", "group tp = 0..1", "group up = 0..1", "", "%x: f32[8,4] = input()", "%w: f32[4,4] = input()"]
_SHAPE = "f32[8,4]"
# A sum along the rows mixes them: neither it nor anything with it can be cut.
_WORK = {
    "cumsum": "aten.cumsum.default({}, 0)",
    "relu": "aten.relu.default({})",
    "mm": "aten.mm.default({}, %w)",
}
_SENT = {
    "reduce": ("all_reduce.start({}) sum", _SHAPE),
    "exchange": ("all_to_all.start({}, [4, 4], [4, 4])", _SHAPE),
    "gather": ("all_gather.start({})", "f32[16,4]"),
}


class _Text:
    """The program so far: its lines, the last value of the trunk and those beside it."""

    def __init__(self) -> None:
        self.lines, self.trunk = list(_HEAD), "%x"
        self.beside: list[str] = []

    def work(self, what: str, given: str) -> str:
        return self._add(_WORK[what].format(given), _SHAPE)

    def sent(self, what: str, group: str, given: str) -> str:
        """A collective and its wait; of what was gathered, the own part."""
        call, shape = _SENT[what]
        flight = self._add(f"{call.format(given)} over {group}", shape)
        found = self._add(f"wait({flight})", shape)
        return found if shape == _SHAPE else self._add(f"aten.slice.Tensor({found}, 0, 0, 8)", _SHAPE)

    def join(self) -> None:
        if self.beside:
            self.trunk = self._add(f"aten.add.Tensor({self.trunk}, {self.beside.pop(0)})", _SHAPE)

    def _add(self, call: str, shape: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name}: {shape} = {call}")
        return name

    def program(self) -> Program:
        return parse("\n".join([*self.lines, f"return {', '.join([self.trunk, *self.beside])}"]))


_WORDS = st.tuples(
    st.sampled_from(["trunk", "trunk", "trunk", "beside", "beside", "join"]),
    st.sampled_from(["cumsum", "cumsum", "cumsum", "relu", "mm", "reduce", "reduce", "exchange", "gather"]),
    st.sampled_from(["tp", "tp", "up"]),
)
_LAYERS = st.tuples(
    st.sampled_from(["before", "behind", "nothing"]), st.sampled_from([*_SENT]), st.sampled_from(["tp", "tp", "up"])
)


@st.composite
def chains(draw: st.DrawFn, most: int = 12) -> Program:
    """A program in which what is communicated between two sums of the trunk has nothing but what lies between them, and
    what is beside the trunk, to hide behind."""
    text = _Text()
    for where, what, group in draw(st.lists(_WORDS, min_size=4, max_size=most)):
        if where == "join":
            text.join()
            continue
        # An op next to a collective may be cut with it, so a chain's own ops are one further away.
        made = text.trunk
        made = text.work(what, made) if what in _WORK else text.work("relu", text.sent(what, group, made))
        if where == "trunk":
            text.trunk = made
        else:
            text.beside.append(made)
    return text.program()


@st.composite
def backwards(draw: st.DrawFn) -> Program:
    """A trunk of sums and, beside it, products of its values that are sent, as gradients of weights are; those of some
    layers come behind all of the trunk in the text. What the trunk ends with is sent as well."""
    text = _Text()
    late: list[tuple[str, str, str]] = []
    for where, what, group in draw(st.lists(_LAYERS, min_size=1, max_size=3)):
        text.trunk = text.work("cumsum", text.trunk)
        if where == "before":
            text.beside.append(text.sent(what, group, text.work("mm", text.trunk)))
        elif where == "behind":
            late.append((what, group, text.trunk))
    end = text.work("cumsum", text.trunk)
    text.trunk = text.sent("reduce", "tp", text.work("relu", end))
    text.beside += [text.sent(what, group, text.work("mm", given)) for what, group, given in late]
    return text.program()
