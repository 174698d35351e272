"""Pipelines as text: what is read, what is printed, what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import OptionError, ParseError
from weft.ir import Program
from weft.passes import PASSES, Context, Pass, Plan, make_pass, parse_pipeline, pass_text
from weft.passes.hoist_starts import HoistStarts
from weft.passes.sink_waits import SinkWaits


@dataclass(frozen=True)
class Bucket:
    """A pass with an option of every type."""

    name: ClassVar[str] = "bucket"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    cap_mb: float = 25.0
    count: int = 0
    mode: str = "all"
    eager: bool = False
    group: str | None = None
    kinds: tuple[str, ...] = ()
    caps: tuple[float, ...] = ()

    def plan(self, program: Program, context: Context) -> Plan:
        raise NotImplementedError

    def apply(self, program: Program, plan: Plan) -> Program:
        raise NotImplementedError


TABLE: Mapping[str, type[Pass]] = {**PASSES, "bucket": Bucket}


def parsed(text: str) -> Pass:
    (one,) = parse_pipeline(text, TABLE)
    return one


def refusal(text: str) -> str:
    with pytest.raises((OptionError, ParseError)) as caught:
        parse_pipeline(text, TABLE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bucket", Bucket()),
        ("bucket{}", Bucket()),
        ("bucket{ }", Bucket()),
        ("bucket{cap_mb=25}", Bucket()),
        ("bucket{cap_mb=0.5}", Bucket(cap_mb=0.5)),
        ("bucket{cap_mb=1e-07}", Bucket(cap_mb=1e-7)),
        ("bucket{cap_mb=-2.5e3}", Bucket(cap_mb=-2500.0)),
        ("bucket{cap_mb=inf}", Bucket(cap_mb=math.inf)),
        ("bucket{cap_mb=-inf}", Bucket(cap_mb=-math.inf)),
        ("bucket{count=-3}", Bucket(count=-3)),
        ("bucket{count=123456789012345678901234567890}", Bucket(count=123456789012345678901234567890)),
        ("bucket{mode=custom_ops}", Bucket(mode="custom_ops")),
        ('bucket{mode="a, b} \\" \\u00e9"}', Bucket(mode='a, b} " é')),
        ('bucket{mode=""}', Bucket(mode="")),
        ('bucket{mode="true"}', Bucket(mode="true")),
        ("bucket{eager=true}", Bucket(eager=True)),
        ("bucket{eager=False}", Bucket()),
        ("bucket{group=dp}", Bucket(group="dp")),
        ("bucket{group=none}", Bucket()),
        ('bucket{group="none"}', Bucket(group="none")),
        ("bucket{kinds=[]}", Bucket()),
        ("bucket{kinds=[all_gather]}", Bucket(kinds=("all_gather",))),
        ('bucket{kinds=[all_gather, "reduce scatter"]}', Bucket(kinds=("all_gather", "reduce scatter"))),
        ("bucket{caps=[1, 2.5]}", Bucket(caps=(1, 2.5))),
        ("  bucket { count = 1 , eager = true }  ", Bucket(count=1, eager=True)),
    ],
)
def test_options_are_read(text: str, expected: Bucket) -> None:
    assert parsed(text) == expected


def test_a_pipeline_is_passes_with_commas_between_them() -> None:
    text = 'sink_waits,hoist_starts{group="dp"}, bucket{kinds=[a, b], count=1},sink_waits'
    expected = (SinkWaits(), HoistStarts("dp"), Bucket(kinds=("a", "b"), count=1), SinkWaits())
    assert parse_pipeline(text, TABLE) == expected


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (SinkWaits(), "sink_waits"),
        (HoistStarts("dp"), 'hoist_starts{group="dp"}'),
        (Bucket(), "bucket"),
        (Bucket(cap_mb=25), "bucket"),
        (Bucket(cap_mb=50), "bucket{cap_mb=50}"),
        (Bucket(cap_mb=50.0), "bucket{cap_mb=50}"),
        (Bucket(cap_mb=0.1), "bucket{cap_mb=0.1}"),
        (Bucket(cap_mb=1e300), "bucket{cap_mb=1e+300}"),
        (Bucket(cap_mb=math.inf), "bucket{cap_mb=inf}"),
        (
            Bucket(count=2, mode='say "a"', eager=True, group="none", kinds=("a", "b"), caps=(1.0, 2.5)),
            'bucket{count=2, mode="say \\"a\\"", eager=true, group="none", kinds=["a", "b"], caps=[1, 2.5]}',
        ),
    ],
    ids=str,
)
def test_only_options_that_are_not_at_their_default_are_printed(made: Pass, text: str) -> None:
    assert pass_text(made) == text
    assert parsed(text) == made


@given(
    st.builds(
        Bucket,
        cap_mb=st.floats(allow_nan=False) | st.integers(),
        count=st.integers(),
        mode=st.text(),
        eager=st.booleans(),
        group=st.none() | st.text(),
        kinds=st.lists(st.text()).map(tuple),
        caps=st.lists(st.floats(allow_nan=False)).map(tuple),
    )
)
def test_what_is_printed_is_read_back(made: Bucket) -> None:
    again = parsed(pass_text(made))
    assert again == made
    assert pass_text(again) == pass_text(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bucket{cap=1}", "bucket has no option 'cap'; it takes: cap_mb, count, mode, eager, group, kinds, caps"),
        ("bucket{count=1.5}", "bucket: count must be int, not 1.5"),
        ("bucket{count=true}", "bucket: count must be int, not True"),
        ("bucket{count=many}", "bucket: count must be int, not 'many'"),
        ("bucket{cap_mb=false}", "bucket: cap_mb must be float, not False"),
        ("bucket{eager=1}", "bucket: eager must be bool, not 1"),
        ("bucket{mode=3}", "bucket: mode must be str, not 3"),
        ("bucket{mode=none}", "bucket: mode must be str, not None"),
        ("bucket{group=[dp]}", "bucket: group must be str or none, not ('dp',)"),
        ("bucket{kinds=all_gather}", "bucket: kinds must be a list of str, not 'all_gather'"),
        ("bucket{kinds=[1]}", "bucket: kinds must be a list of str, not (1,)"),
        ("bucket{kinds=[[a]]}", "bucket: kinds must be a list of str, not (('a',),)"),
    ],
)
def test_an_option_that_does_not_exist_or_does_not_fit_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


PASS_NAMES = ", ".join(TABLE)
VALUE = "a value: a number, a word, a quoted string, true, false or a list"


@pytest.mark.parametrize(
    ("text", "place", "expected", "found"),
    [
        ("", 1, "the name of a pass", "the end of the line"),
        ("sink_waits,", 12, "the name of a pass", "the end of the line"),
        (",sink_waits", 1, "the name of a pass", "','"),
        ("sink_wait", 1, f"a pass ({PASS_NAMES})", "'sink_wait'"),
        ("bucket sink_waits", 8, "the end of the line", "'sink_waits'"),
        ("bucket{count=1", 15, "'}'", "the end of the line"),
        ("bucket{count}", 13, "'='", "'}'"),
        ("bucket{count=}", 14, VALUE, "'}'"),
        ("bucket{count=-}", 15, VALUE, "'}'"),
        ("bucket{count=-dp}", 15, VALUE, "'dp'"),
        ("bucket{=1}", 8, "the name of an option", "'='"),
        ('bucket{mode="open}', 13, VALUE, "a string that does not end"),
        ("bucket{kinds=[a}", 16, "']'", "'}'"),
        ("bucket{kinds=[,]}", 15, VALUE, "','"),
        ("bucket{count=1, count=2}", 17, "each option once", "'count'"),
        ("bucket{count=1}}", 16, "the end of the line", "'}'"),
    ],
)
def test_text_that_is_no_pipeline_is_refused(text: str, place: int, expected: str, found: str) -> None:
    first, second, caret = refusal(text).split("\n")
    assert first == f"<pipeline>:1:{place}: expected {expected}, found {found}"
    assert second == f"  {text}"
    assert caret == " " * (place + 1) + "^"


def test_numbers_that_are_too_long_and_lists_that_are_too_deep_are_refused() -> None:
    assert "expected a whole number of less than 4000 digits" in refusal(f"bucket{{count={'9' * 5000}}}")
    assert "expected at most 20 levels of nesting" in refusal(f"bucket{{kinds={'[' * 100_000}}}")


def test_options_can_be_given_as_values() -> None:
    options: dict[str, Any] = {"count": 2, "kinds": ("a",)}
    assert make_pass(Bucket, options) == Bucket(count=2, kinds=("a",))
    assert make_pass(SinkWaits, {"group": None}) == SinkWaits()
    with pytest.raises(OptionError, match=r"^sink_waits has no option 'count'; it takes: group$"):
        make_pass(SinkWaits, options)


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_is_in_the_table_under_its_name_and_needs_no_options(name: str) -> None:
    assert PASSES[name].name == name
    assert pass_text(PASSES[name]()) == name
