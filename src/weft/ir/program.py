"""The nouns: `Group`, `Collective`, `Op`, `Program`. All frozen; an `Editor` makes the next Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from weft.ir.args import Arg, Ref, names_in
from weft.ir.notebook import listing
from weft.ir.printer import print_program
from weft.ir.specs import Spec
from weft.ir.traits import PURE, Traits

T = TypeVar("T")

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute")


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part in a collective, as seen by the rank whose program this is."""

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Collective:
    """What a start communicates: its kind, among whom, and how numbers are reduced ("" where none are)."""

    kind: str
    group: Group
    reduce_op: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One line of a Program.

    `sources` names the ops of the first Program that this one stands for: the members of a bucket, the collective
    that a chunk was cut from. It is empty on ops that were there from the beginning. `given` names the values among
    the arguments, in order, with repetition.

    A collective that an op carries out together with a matmul is `inside` it: such an op is synchronous. There is no
    wait, and `comm` stays empty.
    """

    name: str
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: Mapping[str, Arg] = field(default_factory=dict, hash=False)
    out: tuple[Spec, ...] = ()
    traits: Traits = PURE
    comm: Collective | None = None
    origin: str = ""
    sources: tuple[str, ...] = ()
    inside: Collective | None = None
    given: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = names_in((*self.args, *self.kwargs.values()) if self.kwargs else self.args)
        object.__setattr__(self, "given", tuple(found))  # every analysis asks, and an op never changes

    @property
    def is_start(self) -> bool:
        return self.comm is not None

    @property
    def collective(self) -> Collective | None:
        """What it communicates, if that is known: as a start, or inside it."""
        return self.comm if self.comm is not None else self.inside

    @property
    def is_wait(self) -> bool:
        return self.target == "wait"

    @property
    def is_input(self) -> bool:
        return self.target == "input"

    @property
    def has_effect(self) -> bool:
        """Whether it matters that it runs even if nobody uses its result."""
        traits = self.traits
        return bool(traits.mutates) or traits.random or traits.communicates or traits.barrier

    def refs(self) -> tuple[Ref, ...]:
        """The values that it is given, in order, with repetition; `given` has their names."""
        return tuple(map(Ref, self.given))

    def argument(self, key: int | str, name: str = "") -> Arg:
        """The argument at a position, or under a keyword; None where it was left out. One that has a `name` may be
        given in either way."""
        if isinstance(key, str):
            return self.kwargs.get(key)
        return self.args[key] if key < len(self.args) else self.kwargs.get(name)


@dataclass(frozen=True)
class Program:
    """A step: its ops in the order in which they are issued, and what it returns.

    `source` is whatever the importer needs to lower the program again, kept from Program to Program and
    meaningless to everybody else. It takes no part in comparison. `rank` is the rank whose program this is, if that is
    known: only then can it be told that a part of a tensor is the rank's own.
    """

    ops: tuple[Op, ...]
    outputs: tuple[Arg, ...] = ()
    history: tuple[str, ...] = ()
    source: Any = field(default=None, compare=False, repr=False)
    rank: int | None = None

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Where each op stands. If a name is taken twice the last one counts; `verify` reports it."""
        return {op.name: position for position, op in enumerate(self.ops)}

    def __getitem__(self, name: str) -> Op:
        return self.ops[self.index[name]]

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def inputs(self) -> tuple[Op, ...]:
        return tuple([op for op in self.ops if op.target == "input"])

    @cached_property
    def attributes(self) -> tuple[Op, ...]:
        """The ops that fetch an attribute of the module."""
        return tuple([op for op in self.ops if op.target == "get_attr"])

    @cached_property
    def starts(self) -> tuple[Op, ...]:
        """The collectives, in the order in which they are issued."""
        return tuple([op for op in self.ops if op.comm is not None])

    @cached_property
    def communicating(self) -> tuple[Op, ...]:
        """The starts and the ops with a collective inside them, in order."""
        return tuple([op for op in self.ops if op.comm is not None or op.inside is not None])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that communicate, in order of first appearance."""
        return tuple(dict.fromkeys(found.group for op in self.communicating if (found := op.collective) is not None))

    @cached_property
    def _facts(self) -> dict[object, Any]:
        return {}

    def fact(self, analysis: Callable[[Program], T]) -> T:
        """`analysis(self)`, computed once: a Program never changes."""
        facts = self._facts
        if analysis not in facts:
            facts[analysis] = analysis(self)
        found: T = facts[analysis]
        return found

    def know(self, analysis: Callable[[Program], T], found: T) -> None:
        """Take `found` for what `analysis(self)` would find."""
        self._facts[analysis] = found

    def stamped(self, stamp: str) -> Program:
        """The same ops after a pass that changed nothing: `stamp` is added to the history, and all facts stay known."""
        history = (*self.history, stamp)
        made = replace(self, history=history)
        known = {"_facts": self._facts, **vars(self)}  # the fields, and the properties that were asked for
        vars(made).update(known | {"history": history})
        return made

    def __str__(self) -> str:
        return print_program(self)

    def _repr_html_(self) -> str:
        """Its beginning, for a notebook."""
        return listing(str(self).splitlines(), most=100)
