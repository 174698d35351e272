from __future__ import annotations

from dataclasses import dataclass
from itertools import product as iproduct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.programs import combine, dims
from weft.ir import Dim, Expr, Program, hint, parse, symbol
from weft.ir.dims import call, product, symbols

_NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Leaf:
    what: str | int


@dataclass(frozen=True)
class Node:
    operator: str
    left: Leaf | Node
    right: Leaf | Node


Tree = Leaf | Node


def _trees(operators: str = "+ - * // % max min", leaves: int = 8) -> st.SearchStrategy[Tree]:
    leaf: st.SearchStrategy[Tree] = st.builds(Leaf, st.sampled_from(_NAMES) | st.integers(-9, 9))
    signs = st.sampled_from(operators.split())
    return st.recursive(leaf, lambda tree: st.builds(Node, signs, tree, tree), max_leaves=leaves)


_hints = st.fixed_dictionaries({name: st.integers(-20, 20) for name in _NAMES})


def _plain(tree: Tree, values: dict[str, int]) -> int:
    """What Python's integers make of it."""
    if isinstance(tree, Leaf):
        return tree.what if isinstance(tree.what, int) else values[tree.what]
    left, right = _plain(tree.left, values), _plain(tree.right, values)
    match tree.operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            assume(right != 0)
            return left // right
        case "%":
            assume(right != 0)
            return left % right
    return max(left, right) if tree.operator == "max" else min(left, right)


def _dim(tree: Tree, values: dict[str, int]) -> Dim:
    if isinstance(tree, Leaf):
        return tree.what if isinstance(tree.what, int) else symbol(tree.what, values[tree.what])
    return combine(tree.operator, _dim(tree.left, values), _dim(tree.right, values))


def _reparsed(dim: Dim) -> object:
    return parse(str(Program((), (dim,)))).outputs[0]


@given(_trees(), _hints)
def test_arithmetic_agrees_with_plain_integers(tree: Tree, values: dict[str, int]) -> None:
    expected = _plain(tree, values)
    assert hint(_dim(tree, values)) == expected


@given(_trees("+ - *", 4), _trees("+ - *", 4))
def test_polynomials_are_equal_as_objects_if_and_only_if_they_are_equal_everywhere(one: Tree, other: Tree) -> None:
    # Five values of each symbol settle it for polynomials of degree four.
    everywhere = [dict(zip(_NAMES, point, strict=True)) for point in iproduct(range(-2, 3), repeat=len(_NAMES))]
    same = all(_plain(one, point) == _plain(other, point) for point in everywhere)
    assert (_dim(one, everywhere[0]) == _dim(other, everywhere[0])) == same


@given(_trees("+ - *"), _hints)
def test_polynomials_that_differ_by_nothing_cancel(tree: Tree, values: dict[str, int]) -> None:
    dim = _dim(tree, values)
    assert dim - dim == 0
    assert dim + dim == 2 * dim
    assert (dim + 1) * (dim - 1) == dim * dim - 1


@given(_trees(), _trees(), _trees(), _hints)
def test_order_of_sums_and_products_does_not_matter(one: Tree, two: Tree, three: Tree, values: dict[str, int]) -> None:
    for tree in (one, two, three):
        _plain(tree, values)  # leaves out divisions by zero
    a, b, c = (_dim(tree, values) for tree in (one, two, three))
    assert (a + b) + c == c + (b + a)
    assert (a * b) * c == c * (b * a)
    assert a * (b + c) == c * a + b * a
    assert str(a * b + c) == str(c + b * a)


@given(_trees(), _hints)
def test_an_expression_is_never_a_plain_number_in_disguise(tree: Tree, values: dict[str, int]) -> None:
    _plain(tree, values)
    dim = _dim(tree, values)
    if isinstance(dim, Expr):
        assert any(atoms for atoms, _ in dim.terms)
        assert all(factor for _, factor in dim.terms)
        assert list(symbols(dim))


@given(dims)
def test_print_then_parse_gives_the_same_size(dim: Dim) -> None:
    assert repr(_reparsed(dim)) == repr(dim)


@given(_hints)
def test_division_that_is_exact_leaves_no_division(values: dict[str, int]) -> None:
    a, b, c = (symbol(name, value) for name, value in values.items())
    assert (6 * a * b + 4 * a) // (2 * a) == 3 * b + 2
    assert (6 * a * b + 4 * a) % (2 * a) == 0
    assert (a + b) // (b + a) == 1
    assert (a * (b // c)) // (b // c) == a
    assert -6 * a // -3 == 2 * a


A, B, C = symbol("a", 10), symbol("b", 4), symbol("c", 3)


@pytest.mark.parametrize(
    ("dim", "text", "value"),
    [
        (A, "a", 10),
        (-A, "-a", -10),
        (3 * A + 1, "3*a + 1", 31),
        (1 - A, "-a + 1", -9),
        (B * A - 2 * B, "a*b - 2*b", 32),
        (A * A - A - 5, "a*a - a - 5", 85),
        ((A + 1) // 2, "(a + 1)//2", 5),
        (2 * (A // 4) * B, "2*(a//4)*b", 16),
        (-(A // 4), "-(a//4)", -2),
        (A // 4 // C, "(a//4)//c", 0),
        (A // (B // C), "a//(b//c)", 10),
        (A // -4, "a//(-4)", -3),
        (-7 // A, "(-7)//a", -1),
        (7 // A, "7//a", 0),
        (A % 4, "mod(a, 4)", 2),
        (A % 4 * B, "b*mod(a, 4)", 8),
        (4 % A, "mod(4, a)", 4),
        ((A + 1) % B % C, "mod(mod(a + 1, b), c)", 0),
        (call("max", A + 1, B), "max(a + 1, b)", 11),
        (2 * call("min", A, 4), "2*min(a, 4)", 8),
        (call("max", call("min", A, B), 5) // 2, "(max(min(a, b), 5))//2", 2),
    ],
)
def test_sizes_print_as_people_write_them(dim: Dim, text: str, value: int) -> None:
    assert str(dim) == text
    assert hint(dim) == value
    assert _reparsed(dim) == dim


def test_symbols_with_other_hints_are_other_symbols() -> None:
    assert symbol("a", 1) != symbol("a", 2)
    assert symbol("a", 1) - symbol("a", 2) != 0


def test_product_of_sizes() -> None:
    assert product([]) == 1
    assert product([2, A, 3]) == 6 * A
    assert product([A, 0, B]) == 0


def test_functions_of_plain_numbers_are_computed() -> None:
    assert [call(name, 7, -2) for name in ("//", "mod", "max", "min")] == [-4, -1, 7, -2]


def test_symbols_are_found_inside_functions() -> None:
    assert [found.name for found in symbols(A // (B + 1) + call("max", C, 2))] == ["a", "b", "c"]
    assert list(symbols(7)) == []


def test_dividing_by_a_hint_of_zero_gives_a_hint_of_zero() -> None:
    size = symbol("n", 0)
    assert [hint(4 // size), hint(4 % size)] == [0, 0]
