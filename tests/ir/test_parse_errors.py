from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import arbitrary_programs, programs
from weft.errors import ParseError
from weft.ir import Program, parse, print_program

_DTYPE_LIST = (
    "f64, f32, f16, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu, f4e2m1fnx2, "
    "i64, i32, i16, i8, u64, u32, u16, u8, bool, c128, c64, c32, qi8, qu8, qi32"
)
_LINE = "an op (%name: type = target(...)), 'group', 'symbol', 'rank', 'history' or 'return'"

# name: (the text, the whole message)
BAD: dict[str, tuple[str, str]] = {
    "nothing": (
        "",
        "<text>:1:1: expected 'weft 1', found the end of the file\n  \n  ^",
    ),
    "no version": (
        "%x: f32[2] = input()\nreturn",
        """\
<text>:1:1: expected 'weft 1', the first line of every program, found '%x'
  %x: f32[2] = input()
  ^""",
    ),
    "another version": (
        "# a comment\nweft 2\nreturn",
        """\
<text>:2:6: expected version 1 of the text form, the only one that this Weft reads, found '2'
  weft 2
       ^""",
    ),
    "more after the version": (
        "weft 1 2\nreturn",
        """\
<text>:1:8: expected the end of the line, found '2'
  weft 1 2
         ^""",
    ),
    "no return": (
        "weft 1\n%x: f32[2] = input()\n",
        "<text>:3:1: expected 'return' and the outputs, found the end of the file\n  \n  ^",
    ),
    "cut off in a shape": (
        "weft 1\n%x: f32[2,",
        """\
<text>:2:11: expected a size: a number or a symbol that was declared at the top, found the end of the line
  %x: f32[2,
            ^""",
    ),
    "cut off in a string": (
        'weft 1\n%x: f32[2] = f("ab',
        """\
<text>:2:16: expected an argument, found a string that does not end
  %x: f32[2] = f("ab
                 ^""",
    ),
    "cut off in a name": (
        'weft 1\n%"x: f32[2] = f()',
        f"""\
<text>:2:1: expected {_LINE}, found '%'
  %"x: f32[2] = f()
  ^""",
    ),
    "cut off in the arguments": (
        "weft 1\n%x: f32[2] = f(1",
        """\
<text>:2:17: expected ')', found the end of the line
  %x: f32[2] = f(1
                  ^""",
    ),
    "after return": (
        "weft 1\nreturn\n\n  %x: f32[2] = input()",
        """\
<text>:4:3: expected nothing after 'return', found '%x'
    %x: f32[2] = input()
    ^""",
    ),
    "a word that begins no line": (
        "weft 1\n  grp dp = 0..7",
        f"""\
<text>:2:3: expected {_LINE}, found 'grp'
    grp dp = 0..7
    ^""",
    ),
    "no colon": (
        "weft 1\n%x f32[2] = input()",
        """\
<text>:2:4: expected ':', found 'f32'
  %x f32[2] = input()
     ^""",
    ),
    "no target": (
        "weft 1\n%x: f32[2] = (%y)",
        """\
<text>:2:14: expected a target such as aten.mm.default, found '('
  %x: f32[2] = (%y)
               ^""",
    ),
    "unknown dtype": (
        "weft 1\n%x: f31[2] = input()",
        f"""\
<text>:2:5: expected a dtype ({_DTYPE_LIST}), found 'f31'
  %x: f31[2] = input()
      ^""",
    ),
    "no shape": (
        "weft 1\n%x: f32 = input()",
        """\
<text>:2:5: expected a dtype with a shape, or one of int, float, bool, str, none, object, found 'f32'
  %x: f32 = input()
      ^""",
    ),
    "strides of another rank": (
        "weft 1\n%x: f32[2,3;1] = input()",
        """\
<text>:2:14: expected 2 strides, found 1
  %x: f32[2,3;1] = input()
               ^""",
    ),
    "undeclared group": (
        "weft 1\ngroup dp = 0, 1\n%x: f32[2] = all_reduce.start(%y) sum over tp",
        """\
<text>:3:44: expected a group that was declared at the top, found 'tp'
  %x: f32[2] = all_reduce.start(%y) sum over tp
                                             ^""",
    ),
    "no group": (
        "weft 1\n%x: f32[2] = all_reduce.start(%y)",
        """\
<text>:2:34: expected 'over' and a group, or a reduction, found the end of the line
  %x: f32[2] = all_reduce.start(%y)
                                   ^""",
    ),
    "a group where nothing communicates": (
        "weft 1\ngroup dp = 0, 1\n%x: f32[2] = wait(%y) over dp",
        """\
<text>:3:23: expected the end of the line, found 'over'
  %x: f32[2] = wait(%y) over dp
                        ^""",
    ),
    "a group of nobody": (
        "weft 1\ngroup dp =",
        """\
<text>:2:11: expected a rank, found the end of the line
  group dp =
            ^""",
    ),
    "a range that falls": (
        "weft 1\ngroup dp = 0, 7..1",
        """\
<text>:2:15: expected a rising range of at most 1048576 ranks, found '7'
  group dp = 0, 7..1
                ^""",
    ),
    "a range that stands still": (
        "weft 1\ngroup dp = 0..7 by 0",
        """\
<text>:2:12: expected a rising range of at most 1048576 ranks, found '0'
  group dp = 0..7 by 0
             ^""",
    ),
    "a huge range": (
        "weft 1\ngroup dp = 0..99999999999999999999",
        """\
<text>:2:12: expected a rising range of at most 1048576 ranks, found '0'
  group dp = 0..99999999999999999999
             ^""",
    ),
    "ranges that are huge together": (
        "weft 1\ngroup dp = 0..1048575, 0..1048575",
        """\
<text>:2:24: expected a rising range of at most 1048576 ranks, found '0'
  group dp = 0..1048575, 0..1048575
                         ^""",
    ),
    "undeclared symbol in a shape": (
        "weft 1\n%x: f32[s0] = input()",
        """\
<text>:2:9: expected a size: a number or a symbol that was declared at the top, found 's0'
  %x: f32[s0] = input()
          ^""",
    ),
    "undeclared symbol in an argument": (
        "weft 1\n%x: f32[2] = f(s0)",
        """\
<text>:2:16: expected a value, a literal or a declared symbol, found 's0'
  %x: f32[2] = f(s0)
                 ^""",
    ),
    "a symbol that is a dtype": (
        "weft 1\nsymbol f32 = 4",
        """\
<text>:2:8: expected a name that is no dtype or literal, found 'f32'
  symbol f32 = 4
         ^""",
    ),
    "a symbol that is a function": (
        "weft 1\nsymbol max = 4",
        """\
<text>:2:8: expected a name that is no dtype or literal, found 'max'
  symbol max = 4
         ^""",
    ),
    "a hint that is no number": (
        "weft 1\nsymbol s0 = many",
        """\
<text>:2:13: expected its hint, found 'many'
  symbol s0 = many
              ^""",
    ),
    "division by zero": (
        "weft 1\nsymbol a = 4\n%x: f32[a//(a - a)] = input()",
        """\
<text>:3:12: expected a divisor that is not zero, found 0
  %x: f32[a//(a - a)] = input()
             ^""",
    ),
    "a float in a sum": (
        "weft 1\nreturn 1 + 2.5",
        """\
<text>:2:12: expected a size: a number or a symbol that was declared at the top, found '2.5'
  return 1 + 2.5
             ^""",
    ),
    "unknown trait": (
        "weft 1\n%x: f32[2] = f() {views(0), pur}",
        """\
<text>:2:29: expected 'pure', found 'pur'
  %x: f32[2] = f() {views(0), pur}
                              ^""",
    ),
    "a trait of no argument": (
        "weft 1\n%x: f32[2] = f() {views([])}",
        """\
<text>:2:25: expected the position or the keyword of an argument, found '['
  %x: f32[2] = f() {views([])}
                          ^""",
    ),
    "a keyword twice": (
        "weft 1\n%x: f32[2] = f(a=1, b=2, a=3)",
        """\
<text>:2:26: expected each keyword once, found 'a' again
  %x: f32[2] = f(a=1, b=2, a=3)
                           ^""",
    ),
    "a source that is no value": (
        "weft 1\n%x: f32[2] = f() from a",
        """\
<text>:2:23: expected a value such as %x, found 'a'
  %x: f32[2] = f() from a
                        ^""",
    ),
    "a history without quotes": (
        "weft 1\nhistory bucket",
        """\
<text>:2:9: expected the pass that made this program, quoted, found 'bucket'
  history bucket
          ^""",
    ),
    "an unknown escape": (
        'weft 1\nreturn "\\q"',
        """\
<text>:2:8: expected a string with JSON's escapes, found '"\\q"'
  return "\\q"
         ^""",
    ),
    "half a slice": (
        "weft 1\nreturn slice(1, 2)",
        """\
<text>:2:8: expected slice(a, b, c), complex(re, im) or opaque(key, text), found 'slice'
  return slice(1, 2)
         ^""",
    ),
    "a key without quotes": (
        "weft 1\nreturn {a: 1}",
        """\
<text>:2:9: expected a key in quotes, found 'a'
  return {a: 1}
          ^""",
    ),
    "no device": (
        "weft 1\nreturn @",
        """\
<text>:2:8: expected an argument, found '@'
  return @
         ^""",
    ),
    "no device of a tensor": (
        "weft 1\n%x: f32[2]@ = input()",
        """\
<text>:2:11: expected '=', found '@'
  %x: f32[2]@ = input()
            ^""",
    ),
    "no function": (
        "weft 1\nreturn &",
        """\
<text>:2:8: expected an argument, found '&'
  return &
         ^""",
    ),
    "digits that are no number": (
        "weft 1\ngroup dp = ²",
        """\
<text>:2:12: expected a rank, found '²'
  group dp = ²
             ^""",
    ),
    "digits that are no size": (
        "weft 1\n%x: f32[²] = input()",
        """\
<text>:2:9: expected a size: a number or a symbol that was declared at the top, found '²'
  %x: f32[²] = input()
          ^""",
    ),
    "digits of other scripts": (
        "weft 1\nreturn ٣",
        """\
<text>:2:8: expected an argument, found '٣'
  return ٣
         ^""",
    ),
    "a letter that needs quotes": (
        "weft 1\n%grö: f32[2] = input()",
        """\
<text>:2:4: expected ':', found 'ö'
  %grö: f32[2] = input()
     ^""",
    ),
    "a number with too many digits": (
        f"weft 1\nreturn {'7' * 4001}",
        f"""\
<text>:2:8: expected a whole number, found '{"7" * 40}'
  return {"7" * 113}…
         ^""",
    ),
    "a list that is too deep": (
        f"weft 1\nreturn {'[' * 101}",
        f"""\
<text>:2:108: expected at most 100 levels of nesting, found '['
  …{"[" * 61}
  {" " * 61}^""",
    ),
    "a size that is too deep": (
        f"weft 1\n%x: f32[{'(' * 101}1",
        f"""\
<text>:2:110: expected at most 100 levels of nesting, found '1'
  …{"(" * 60}1
  {" " * 61}^""",
    ),
    "a control character": (
        "weft 1\n\t\x1b[31m",
        f"""\
<text>:2:2: expected {_LINE}, found '·'
  ··[31m
   ^""",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_the_message_says_where_and_what_was_expected(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_the_parts_of_the_message_are_there_for_programs() -> None:
    with pytest.raises(ParseError) as caught:
        parse("weft 1\nreturn 1 2", source="step.weft")
    error = caught.value
    assert (error.source, error.line, error.column) == ("step.weft", 2, 10)
    assert (error.expected, error.found) == ("the end of the line", "'2'")
    assert str(error).startswith("step.weft:2:10: ")


_MEGABYTES = 10_000_000


@pytest.mark.parametrize(
    ("start", "piece", "message"),
    [
        ("", "[", f"2:1: expected {_LINE}, found '['"),
        ("", "7", f"2:1: expected {_LINE}, found '{'7' * 40}'"),
        ("", "x", f"2:1: expected {_LINE}, found '{'x' * 40}'"),
        ("", '"', f"2:1: expected {_LINE}, found '\"\"'"),
        ("", "\\", f"2:1: expected {_LINE}, found '\\'"),
        ("", '\\"', f"2:1: expected {_LINE}, found '\\'"),
        ("", "é", f"2:1: expected {_LINE}, found 'é'"),
        ("%", "x", "2:10000002: expected ':', found the end of the line"),
        ('%"', "x", f"2:1: expected {_LINE}, found '%'"),
        ("return ", "[", "2:108: expected at most 100 levels of nesting, found '['"),
        ("return ", "(", "2:108: expected at most 100 levels of nesting, found '('"),
        ("return ", "7", f"2:8: expected a whole number, found '{'7' * 40}'"),
        ("return ", "x", f"2:8: expected a value, a literal or a declared symbol, found '{'x' * 40}'"),
        ("return ", '"', "2:10: expected the end of the line, found '\"\"'"),
        ("return ", "-", "2:8: expected an argument, found '-'"),
        ("return 1", "-", "2:"),
        ("%x: f32[", "-", "2:"),
        ("%x: f32[1", "*9", "2:"),
        ("symbol s0 = ", "7", f"2:13: expected its hint, found '{'7' * 40}'"),
    ],
    ids=lambda part: part.partition(":")[0] if len(part) > 10 else part,
)
def test_a_line_of_megabytes_is_refused_in_seconds(soon: None, start: str, piece: str, message: str) -> None:
    text = "weft 1\n" + start + piece * (_MEGABYTES // len(piece))
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"<text>:{message}")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text",
    [
        "return " + "*".join(["9" * 3000] * 2),
        "symbol a = 1\nreturn a*" + "*".join(["9" * 3000] * 2),
        "group g = 0, 1\n%x: f32[1] = all_reduce.start(%y) sum over g\n"
        "group g = 2, 3\n%z: f32[1] = all_reduce.start(%y) sum over g\nreturn",
        "symbol a = 1\n%x: f32[a] = input()\nsymbol a = 2\nreturn a",
    ],
    ids=["a number too long to print", "a factor too long to print", "two groups of one name", "two hints of one name"],
)
def test_what_could_not_be_printed_and_read_back_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse("weft 1\n" + text)


def test_a_product_of_sums_is_refused_before_it_fills_the_memory(soon: None) -> None:
    symbols = "".join(f"symbol s{number} = 1\n" for number in range(32))
    factors = "*".join(f"(s{number} + s{number + 1})" for number in range(0, 32, 2))
    with pytest.raises(ParseError):
        parse(f"weft 1\n{symbols}return {factors}")


_FRAGMENTS = [
    *'%"\\()[]{},;:=-+*@&#~ \t\n\r\0²٣é',
    *("--", "..", "//", '%"', "%x", "\\u12", "\ud800", "9" * 5000, "1e999", "nan", "-inf", "0.", "1_0"),
    *("weft 1\n", "return", "history ", "group g = 0..3\n", "symbol s0 = 7\n", " over ", " by 2", " from ", "{pure}"),
    *("max(", "min(1, ", "slice(", "complex(1.0, ", "opaque(", "torch.", "f32", "None", "s0", "mod(1, ", "%(", "//0"),
]
_texts = (programs(steps=(2, 8)) | arbitrary_programs()).map(print_program)
_edits = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.just("") | st.sampled_from(_FRAGMENTS) | st.text()),
    min_size=1,
    max_size=4,
)


def _read(text: str) -> Program | ParseError:
    """The program, or the only kind of error that is allowed."""
    try:
        return parse(text)
    except ParseError as error:
        return error


@given(_texts, _edits)
def test_damaged_text_is_refused_politely_or_read_as_something_that_round_trips(
    text: str, edits: list[tuple[int, int, str]]
) -> None:
    for place, length, instead in edits:
        start = place % (len(text) + 1)
        text = text[:start] + instead + text[start + length :]
    read, lines = _read(text), text.split("\n")
    if isinstance(read, ParseError):
        assert 1 <= read.line <= len(lines)
        assert 1 <= read.column <= len(lines[read.line - 1]) + 1
    else:
        assert repr(parse(print_program(read))) == repr(read)


@given(st.text() | st.lists(st.sampled_from(_FRAGMENTS)).map("".join))
def test_garbage_is_refused_politely(garbage: str) -> None:
    for text in (garbage, f"weft 1\n{garbage}", f"weft 1\nreturn {garbage}", f"weft 1\n%x: f32[2] = f({garbage})"):
        assert isinstance(_read(text), Program | ParseError)


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(ParseError, match="2:1: expected a name that is not empty"):
        parse('weft 1\n%"": f32[2] = input()\nreturn')
