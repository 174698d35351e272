"""Sizes that may be symbolic: polynomials over symbols that carry a hint.

A `Dim` is an int or an `Expr`. Arithmetic on them gives the canonical form, so two sizes that are equal as
polynomials are equal as objects. Hints guide decisions; the symbols stay in the program.

    >>> s0 = symbol("s0", 4096)
    >>> 2 * (s0 + 4) - 8 == s0 * 2, str(3 * s0 + 1), hint(s0 // 2), str((s0 + 1) // 2)
    (True, '3*s0 + 1', 2048, '(s0 + 1)//2')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """An unknown size. The hint is the value that it had when the program was made, or a guess."""

    name: str
    hint: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of sizes that is not a polynomial: one of `FUNCTIONS`."""

    function: str
    args: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Expr:
    """A sum of terms, each a product of atoms with a coefficient; sorted, without zeros, never a plain int."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum((*self.terms, *_terms(other)))

    def __mul__(self, other: Dim) -> Dim:
        return _sum(
            (tuple(sorted((*left, *right), key=_order)), a * b) for left, a in self.terms for right, b in _terms(other)
        )

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        exact = _divide(self, other)
        return exact if exact is not None else call("//", self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return call("//", other, self)

    def __mod__(self, other: Dim) -> Dim:
        return 0 if _divide(self, other) is not None else call("mod", self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return call("mod", other, self)

    def __str__(self) -> str:
        first, *rest = (_show_term(atoms, factor) for atoms, factor in self.terms)
        return reduce(lambda text, term: text + (f" - {term[1:]}" if term[0] == "-" else f" + {term}"), rest, first)


Atom: TypeAlias = Symbol | Call
Dim: TypeAlias = int | Expr

# A hint may be zero where the size itself is not; what is divided by it is then taken to be nothing.
FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "max": max,
    "min": min,
}


def symbol(name: str, hint: int) -> Expr:
    """The size called `name`."""
    return Expr((((Symbol(name, hint),), 1),))


def call(function: str, left: Dim, right: Dim) -> Dim:
    """`function(left, right)`, computed where both are plain numbers."""
    if isinstance(left, int) and isinstance(right, int):
        return FUNCTIONS[function](left, right)
    return Expr((((Call(function, (left, right)),), 1),))


def hint(dim: Dim) -> int:
    """What the size comes to when every symbol has the value of its hint."""
    if isinstance(dim, int):
        return dim
    return sum(factor * prod(_hint_of(atom) for atom in atoms) for atoms, factor in dim.terms)


def symbols(dim: Dim) -> Iterator[Symbol]:
    """The symbols that a size depends on, with repetition."""
    for atoms, _ in _terms(dim):
        for atom in atoms:
            if isinstance(atom, Symbol):
                yield atom
            else:
                for arg in atom.args:
                    yield from symbols(arg)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of sizes; one for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _terms(dim: Dim) -> tuple[tuple[tuple[Atom, ...], int], ...]:
    if isinstance(dim, int):
        return (((), dim),) if dim else ()
    return dim.terms


def _sum(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> Dim:
    total: dict[tuple[Atom, ...], int] = {}
    for atoms, factor in terms:
        total[atoms] = total.get(atoms, 0) + factor
    left = {atoms: factor for atoms, factor in total.items() if factor}
    if not left.keys() - {()}:
        return left.get((), 0)
    # Longest products first and the constant last, as people write polynomials.
    return Expr(tuple(sorted(left.items(), key=lambda term: (-len(term[0]), [_order(a) for a in term[0]]))))


def _divide(dividend: Expr, divisor: Dim) -> Dim | None:
    """The quotient where it is exact term by term, else None."""
    if not isinstance(divisor, int):
        if len(divisor.terms) != 1:
            return 1 if dividend == divisor else None
        (below, by), *_ = divisor.terms
    else:
        below, by = (), divisor
    quotient = []
    for atoms, factor in dividend.terms:
        rest = list(atoms)
        if by == 0 or factor % by:
            return None
        for atom in below:
            if atom not in rest:
                return None
            rest.remove(atom)
        quotient.append((tuple(rest), factor // by))
    return _sum(quotient)


def _hint_of(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return atom.hint
    left, right = (hint(arg) for arg in atom.args)
    return FUNCTIONS[atom.function](left, right)


def _order(atom: Atom) -> str:
    return _show_atom(atom)


def _show_atom(atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.function != "//":
        return f"{atom.function}({', '.join(map(str, atom.args))})"
    return atom.function.join(_parenthesised(arg) for arg in atom.args)


def _show_term(atoms: tuple[Atom, ...], factor: int) -> str:
    if not atoms:
        return str(factor)
    # a//b binds like a product: beside other factors it needs parentheses.
    alone = len(atoms) == 1 and factor == 1
    names = [_show_atom(a) if alone or _is_plain(a) else f"({_show_atom(a)})" for a in atoms]
    sign = {1: "", -1: "-"}.get(factor, f"{factor}*")
    return sign + "*".join(names)


def _is_plain(atom: Atom) -> bool:
    return isinstance(atom, Symbol) or atom.function != "//"


def _parenthesised(dim: Dim) -> str:
    text = str(dim)
    return text if text.isalnum() or text.isidentifier() else f"({text})"
